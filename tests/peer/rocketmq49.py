"""A real RocketMQ 4.9, started by its own programs: what tests/peer/java drives is RocketMQ 5, whose classes differ.

In:     a directory of a store.
Out:    the address of the name server. The broker creates topics, and its files are small.
Always: both processes listen on loopback, and write below the store's directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.peer.rocketmq import NoPeerError, bring_packages
from tests.ports import free_port

__all__ = ["RocketMQ49"]

PROJECT = Path(__file__).resolve().parent / "java49"
# What RocketMQ's own start script opens, so that it can unmap files.
JAVA = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
LOGBACK = """<configuration>
<appender name="file" class="ch.qos.logback.core.FileAppender">
<file>{log}</file><encoder><pattern>%d %p %m%n</pattern></encoder>
</appender>
<root level="WARN"><appender-ref ref="file"/></root>
</configuration>"""
SETTINGS: dict[str, Any] = {
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
}


class RocketMQ49:
    """A name server and a broker. Start it, or use it in `with`; may be started again on the same store."""

    def __init__(self, home: Path, store: Path, **settings: object) -> None:
        """`home` is for settings and logs, `settings` are more of the broker's. Raises NoPeerError."""
        java, maven = shutil.which("java"), shutil.which("mvn")
        if java is None:
            raise NoPeerError("RocketMQ 4.9 needs Java, version 17 or newer")
        self._home, self._store = home, store
        packages = bring_packages(maven, PROJECT)
        self._command = [java, *JAVA, f"-Duser.home={home}", "-classpath", str(packages / "*")]
        self.names = f"127.0.0.1:{free_port()}"
        # RocketMQ listens at the port two below, too, and at the one above for slaves.
        self._listen = free_port(below=3) - 1
        self.address = f"127.0.0.1:{self._listen}"
        self._settings = settings
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Returns when the broker has said that it runs."""
        (self._home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("broker", "namesrv"):
            logback = LOGBACK.format(log=self._home / f"{name}.log")
            (self._home / "conf" / f"logback_{name}.xml").write_text(logback)
        names = {"listenPort": self.names.rpartition(":")[2], "kvConfigPath": self._home / "kvConfig.json"}
        self._run("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv", names)
        paths = {"storePathRootDir": self._store, "storePathCommitLog": self._store / "commitlog"}
        own = {"listenPort": self._listen, "namesrvAddr": self.names}
        self._run("org.apache.rocketmq.broker.BrokerStartup", "broker", SETTINGS | paths | own | self._settings)

    def _run(self, program: str, name: str, settings: dict[str, Any]) -> None:
        """Starts a program, and waits for the line that says so."""
        file = self._home / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [*self._command, program, "-c", str(file)]
        environment = os.environ | {"ROCKETMQ_HOME": str(self._home)}
        with (self._home / f"{name}.err").open("ab") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "boot success" in line:
                return
        raise AssertionError(f"RocketMQ's {name} has ended: {''.join(said)}; see {self._home}")

    def stop(self) -> None:
        """Ends both, so that the broker closes its store."""
        for process in reversed(self._processes):
            process.terminate()
            process.communicate()
        self._processes.clear()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
