"""The peer: a real Apache RocketMQ in a Java process, driven by JSON lines.

In:     commands as typed calls.
Out:    what RocketMQ found, told and received, as dictionaries in txstore's names.
Always: everything listens on loopback and writes below the home directory or the store it was given. A refused store is
        an answer; an error of a command is a PeerError with Java's own text.

A `dump` opens a store as a broker does, and so changes its files: pass a copy to keep them.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import ports

Facts = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).resolve().parent / "java"
BUILT = ROOT / "target" / "peer"
MAVEN_TIMEOUT_S = 900
# Another version than pom.xml's.
VERSION = os.environ.get("TXSTORE_ROCKETMQ", "")
CALL_TIMEOUT_S = 120

# Small files, so that a few hundred messages reach their ends; the same for txstore in SIZES.
SMALL: Facts = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "timerWheelEnable": False,
}
SIZES: dict[str, int] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 500,
    "max_index_num": 2_000,
}
# A retry after 1 s, and after 2 s from then on, instead of RocketMQ's 10 s and more.
SHORT_DELAYS: Facts = {"messageDelayLevel": "1s 1s 1s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s"}
SHORT_TIMES: Facts = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 3,
    "transactionOpBatchInterval": 200,
    "defaultTopicQueueNums": 4,
}


# For tests: small, and started soon. For benches: RocketMQ's own settings, fully compiled.
QUICK_MACHINE = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FAST_MACHINE = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC")


class NoPeerError(Exception):
    """Java, Maven or RocketMQ's packages are not available here."""


class PeerError(Exception):
    """A command failed in Java."""


class PeerGoneError(Exception):
    """The process ended (or was killed) before it answered."""


def message(topic: str, body: bytes, **facts: Any) -> Facts:
    """A message to send: `tags`, `keys` (a str), `properties`, `flag`, `delay_level`, `delay_ms`, `queue_id`,
    `immunity_s`, `name`; for a transaction `answers`: its local answer, then one for each check (COMMIT,
    ROLLBACK, UNKNOWN, or THROW).
    """
    return {"topic": topic, "body": base64.b64encode(body).decode(), **facts}


def signing(account: tuple[str, str] | None) -> Facts:
    """An account in the form of commands."""
    return {} if account is None else {"access_key": account[0], "secret_key": account[1]}


@dataclass(frozen=True)
class Home:
    """RocketMQ's packages, the few classes of this project, and a directory for logs."""

    directory: Path
    java: str
    classpath: str

    @classmethod
    def build(cls, directory: Path) -> Home:
        """Downloads the packages and compiles, unless that was done for these very sources. Raises NoPeerError."""
        java, classpath = java_program(PROJECT)
        return cls(directory, java, classpath)

    def start(self, machine: Sequence[str] = QUICK_MACHINE) -> Peer:
        """A Java process; `machine`: options of its virtual machine."""
        return Peer(self, machine)


def made(name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """A directory named by its sources; built under another name and renamed, so that it is complete or absent."""
    digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    wanted = BUILT / f"{name}-{digest}"
    if not wanted.is_dir():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as directory:
            unfinished = Path(directory) / name
            make(unfinished)
            # Another process built the same at the same time.
            with suppress(OSError):
                unfinished.rename(wanted)
    return wanted


def _run(command: Sequence[str], what: str) -> None:
    try:
        subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=MAVEN_TIMEOUT_S, text=True
        )
    except subprocess.CalledProcessError as problem:
        raise NoPeerError(f"{what} failed: {problem.stdout[-2000:]}") from problem
    except subprocess.TimeoutExpired as problem:
        raise NoPeerError(f"{what} took longer than {MAVEN_TIMEOUT_S} s") from problem


def java_program(project: Path) -> tuple[str, str]:
    """The program `java`, and the class path of a Maven project: its packages, downloaded, and its sources,
    compiled.

    Raises NoPeerError.
    """
    java, javac, maven = (shutil.which(name) for name in ("java", "javac", "mvn"))
    if java is None or javac is None:
        raise NoPeerError("the peer needs a Java development kit, version 17 or newer (java, javac)")
    packages = bring_packages(maven, project)
    classes = _compile(javac, packages, project)
    return java, os.pathsep.join([str(classes), str(packages / "*")])


def bring_packages(maven: str | None, project: Path) -> Path:
    """Downloads what the project needs; offline if Maven has it already."""
    pom = project / "pom.xml"

    def make(target: Path) -> None:
        if maven is None:
            raise NoPeerError("the peer needs Maven (mvn) to download its packages")
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        version = [f"-Drocketmq.version={VERSION}"] if VERSION else []
        command = [maven, "--quiet", "--batch-mode", "--file", str(pom), *version, *goal]
        try:
            _run([*command, "--offline"], "Maven, offline")
        except NoPeerError:
            _run(command, "Maven")

    return made(f"lib{VERSION}", [pom], make)


def _compile(javac: str, packages: Path, project: Path) -> Path:
    sources = sorted((project / "src").rglob("*.java"))

    def make(target: Path) -> None:
        options = ["--release", "17", "-d", str(target), "-classpath", str(packages / "*")]
        _run([javac, *options, *map(str, sources)], "javac")

    return made(f"classes{VERSION}", [*sources, project / "pom.xml"], make)


class Peer:
    """One Java process. Commands from several threads run concurrently."""

    def __init__(self, home: Home, machine: Sequence[str] = QUICK_MACHINE) -> None:
        self._next = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._jstack = Path(home.java).with_name("jstack")
        self._logs = Path(tempfile.mkdtemp(prefix="peer-", dir=home.directory))
        self._temporary.mkdir()
        with (self._logs / "stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                self._command(home, machine), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self._reader = threading.Thread(target=self._read, name="peer", daemon=True)
        self._reader.start()

    def _command(self, home: Home, machine: Sequence[str]) -> list[str]:
        resources = PROJECT / "src" / "main" / "resources"
        return [
            home.java,
            # Otherwise each server of RocketMQ generates a key and a certificate, which takes seconds.
            "-Dtls.server.mode=disabled",
            *machine,
            # What RocketMQ's own start script opens, so that it can unmap files.
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
            # A consumer looks for its queues every second, not every twenty.
            "-Drocketmq.client.rebalance.waitInterval=1000",
            "-Drocketmq.client.rebalance.minInterval=500",
            f"-Duser.home={self._logs}",
            # RocksDB's library is unpacked there, 60 MB that a killed process leaves.
            f"-Djava.io.tmpdir={self._temporary}",
            f"-Dpeer.log={self._logs / 'rocketmq.log'}",
            f"-Drmq.logback.configurationFile={resources / 'peer.logback.xml'}",
            "-classpath",
            home.classpath,
            "org.txstore.peer.Peer",
        ]

    @property
    def _temporary(self) -> Path:
        return self._logs / "tmp"

    @property
    def log(self) -> str:
        """What RocketMQ has logged so far (warnings and errors)."""
        path = self._logs / "rocketmq.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(reply["id"])
            if "error" in reply:
                waiting.set_exception(PeerError(f"{reply['error']}\n{reply['trace']}"))
            else:
                waiting.set_result(reply["result"])
        with self._lock:
            gone, self._waiting = self._waiting, {}
        for waiting in gone.values():
            waiting.set_exception(PeerGoneError(f"the peer ended; see {self._logs}"))

    def begin(self, command: str, **arguments: Any) -> Future[Any]:
        """Sends a command; its result comes later."""
        assert self._process.stdin is not None
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._next)
            self._waiting[number] = future
            try:
                line = json.dumps({"id": number, "command": command, "arguments": arguments})
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError):
                self._waiting.pop(number)
                future.set_exception(PeerGoneError(f"the peer is gone; see {self._logs}"))
        return future

    def call(self, command: str, **arguments: Any) -> Any:
        """Sends a command and waits for its result. Raises PeerError, PeerGoneError, TimeoutError."""
        try:
            return self.begin(command, **arguments).result(CALL_TIMEOUT_S)
        except TimeoutError as problem:
            problem.add_note(f"{command} is still running; the peer's threads:\n{self._threads()}")
            raise

    def _threads(self) -> str:
        """What each thread of the process is doing."""
        try:
            return subprocess.run(
                [self._jstack, str(self._process.pid)], capture_output=True, text=True, timeout=30
            ).stdout
        except (OSError, subprocess.TimeoutExpired) as problem:
            return f"not known: {problem}"

    def dump(
        self,
        store: Path,
        *,
        config: Mapping[str, Any] = SMALL,
        keys: Sequence[tuple[str, str]] = (),
        offset_ids: Sequence[str] = (),
    ) -> Facts:
        """Opens with the real DefaultMessageStore: `loaded`, else `refused`: why.

        `messages`: every queue in order, each with its unit (`unit_…`, `tags_code`); `gaps`: [topic, queue id, offset]
        of units without a message; `queues`: topic, queue_id, first, end; `by_key`: for each (topic, key) the physical
        offsets, newest first; `by_offset_id`: of each, or None.
        """
        result = self.call(
            "dump",
            store=str(store),
            store_config=dict(config),
            keys=[list(key) for key in keys],
            offset_ids=list(offset_ids),
        )
        assert isinstance(result, dict)
        return result

    def broker(
        self, store: Path, *, config: Mapping[str, Any] = SMALL, settings: Mapping[str, Any] = SHORT_TIMES
    ) -> EmbeddedBroker:
        """Starts a broker on a store; `config` as in MessageStoreConfig, `settings` as in BrokerConfig (without
        `listenPort` it takes a free one). `namesrvAddr` names other name servers that it registers with, so several
        brokers are a cluster."""
        own = {"listenPort": ports.free_port(below=2), **settings}
        facts = self.call("broker.start", store=str(store), store_config=dict(config), broker_config=own)
        return EmbeddedBroker(self, facts)

    def slave(
        self, store: Path, names: str, *, config: Mapping[str, Any] = SMALL, settings: Mapping[str, Any] = SHORT_TIMES
    ) -> EmbeddedBroker:
        """Starts a slave, which copies the master that the name server `names` tells it."""
        return self.member(store, names, config={**config, "brokerRole": "SLAVE"}, settings={"brokerId": 1, **settings})

    def member(
        self, store: Path, names: str, *, config: Mapping[str, Any] = SMALL, settings: Mapping[str, Any] = SHORT_TIMES
    ) -> EmbeddedBroker:
        """Starts a broker without a name server of its own: it registers with `names`."""
        facts = self.call(
            "broker.member",
            store=str(store),
            names=names,
            store_config=dict(config),
            broker_config={"listenPort": ports.free_port(below=2), **settings},
        )
        return EmbeddedBroker(self, facts)

    def name_server(self, *, acting: bool = False) -> str:
        """Starts a name server, which runs as long as this process. `acting`: supportActingMaster.

        Returns its address.
        """
        return str(self.call("names.start", acting=acting)["names"])

    def producer(
        self,
        names: str,
        group: str,
        *,
        checks: Mapping[str, Sequence[str]] | None = None,
        otherwise: Sequence[str] = ("UNKNOWN",),
        compression: str = "ZLIB",
        retries: int = 0,
        account: tuple[str, str] | None = None,
    ) -> Producer:
        """A TransactionMQProducer. `checks`: answers to the checks of transactions that it did not send itself, by
        transaction id; `otherwise`: to those of all others. The last answer is repeated. `account`: its access
        key and secret.
        """
        answers = {transaction: list(said) for transaction, said in (checks or {}).items()}
        facts = self.call(
            "producer.start",
            names=names,
            group=group,
            checks=answers,
            otherwise=list(otherwise),
            compression=compression,
            retries=retries,
            **signing(account),
        )
        return Producer(self, facts["handle"])

    def consume(self, names: str, group: str, topics: Mapping[str, str], **options: Any) -> list[Facts]:
        """Everything that a DefaultMQPushConsumer gets from the first offset on; `topics`: name to tags (`*` all).
        `later`: a first key to how often it is refused; `idle_ms` (1,500), `at_least` (0), `timeout_ms` (30,000)."""
        result = self.call("consume", names=names, group=group, topics=dict(topics), **options)
        assert isinstance(result, list)
        return result

    def resume(self, names: str, message_id: str) -> bool:
        """As an operator: resumes a discarded transaction."""
        return bool(self.call("resume", names=names, message_id=message_id))

    @staticmethod
    def free_port() -> int:
        """A port of the loopback on which no server listens, and that no other call returns for a while."""
        return ports.free_port()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: what runs in the process, brokers too, ends at once. Commands under way raise PeerGoneError."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """Ends the process; stop brokers first."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.wait(CALL_TIMEOUT_S)
        self._reader.join()
        self._process.stdout.close()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill() if kind else self.close()


@dataclass
class EmbeddedBroker:
    """A running broker, with its name server at `names`."""

    peer: Peer
    facts: Facts

    @property
    def names(self) -> str:
        return str(self.facts["names"])

    def status(self) -> Facts:
        """`queues`: [topic, queue id, first, end]; `offsets`: `TOPIC@GROUP` to queue id to offset; the log end."""
        result = self.peer.call("broker.status", handle=self.facts["handle"])
        assert isinstance(result, dict)
        return result

    @property
    def address(self) -> str:
        return str(self.facts["address"])

    def follow(self) -> str | None:
        """Lets a slave register and take topics, groups and offsets now. Returns the address of its master."""
        found = self.peer.call("broker.follow", handle=self.facts["handle"])
        assert found is None or isinstance(found, str)
        return found

    def stop(self) -> None:
        self.peer.call("broker.stop", handle=self.facts["handle"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@dataclass
class Producer:
    """A running producer. Each send is answered: `error`, or `status`, `message_id`, `transaction_id`, …"""

    peer: Peer
    handle: int

    def send(self, messages: Sequence[Facts]) -> list[Facts]:
        return list(self.peer.call("producer.send", handle=self.handle, messages=list(messages)))

    def batch(self, messages: Sequence[Facts]) -> Facts:
        return dict(self.peer.call("producer.batch", handle=self.handle, messages=list(messages)))

    def transactions(self, transactions: Sequence[Facts]) -> list[Facts]:
        """Sends each and runs its local transaction; checks come as long as the producer runs."""
        return list(self.peer.call("producer.transactions", handle=self.handle, transactions=list(transactions)))

    def log(self) -> list[Facts]:
        """Events in order, `what`: local (an answer), told (a send's result), check (asked and answered)."""
        return list(self.peer.call("producer.log", handle=self.handle))

    def stop(self) -> list[Facts]:
        return list(self.peer.call("producer.stop", handle=self.handle))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
