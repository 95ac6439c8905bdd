"""Chronicle Queue in a Java process of its own, one thread.

In:     counts.
Out:    rates.
Always: the process is warm before it is measured; it opens no connection.
"""

import functools
import subprocess
from pathlib import Path

from benches.python.measure import scratch
from tests.peer.rocketmq import java_program

__all__ = ["append"]

_PROJECT = Path(__file__).resolve().parent / "java"
_WARM = 300_000
# The options that Chronicle needs on Java 17, and the one that turns its usage reports off.
_MACHINE = """
--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-exports=java.base/sun.nio.ch=ALL-UNNAMED
--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED --add-exports=jdk.compiler/com.sun.tools.javac.file=ALL-UNNAMED
--add-opens=jdk.compiler/com.sun.tools.javac=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED
--add-opens=java.base/java.lang.reflect=ALL-UNNAMED --add-opens=java.base/java.io=ALL-UNNAMED
--add-opens=java.base/java.util=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED
--add-opens=java.base/sun.nio.ch=ALL-UNNAMED -Dchronicle.analytics.disable=true -Xms1g -Xmx1g
""".split()


@functools.cache
def _program() -> tuple[str, str]:
    return java_program(_PROJECT)


def append(count: int, size: int, sync_every: int = 0) -> float:
    """Bodies a second by `writeBytes`; `sync_every`: `sync()` after so many, 0: never. Raises NoPeerError."""
    java, classpath = _program()
    with scratch() as folder:
        words = [str(folder), str(count), str(size), str(sync_every), str(_WARM)]
        command = [java, *_MACHINE, f"-Djava.io.tmpdir={folder}", "-classpath", classpath]
        run = subprocess.run(
            [*command, "org.txstore.bench.Chronicle", *words], capture_output=True, text=True, check=False
        )
    if run.returncode != 0:
        raise RuntimeError(f"Chronicle Queue ended with {run.returncode}: {run.stderr[-2000:]}")
    return float(run.stdout.split()[-1])
