"""Guards the creation of many topics: the file of all topics is not written for each of them, and none is lost."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.waiting import eventually
from txstore import Message
from txstore.broker.topics import Groups, Topics


class _Files:
    """Config files in memory; a write takes the given time of the given clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.write_seconds = 0.01
        self.texts: dict[str, str] = {}
        self.writes = 0
        self.fails = False

    def config_text(self, name: str) -> str | None:
        return self.texts.get(name)

    def set_config_text(self, name: str, text: str) -> None:
        if self.fails:
            raise OSError("no space left")
        self.now += self.write_seconds
        self.writes += 1
        self.texts[name] = text

    def topics(self) -> set[str]:
        return set(json.loads(self.texts["topics.json"])["topicConfigTable"])


def _table(files: _Files, later: list[float]) -> Topics:
    return Topics(
        files,
        [],
        lambda: 0,
        read_only=False,
        auto_create=True,
        queues_default=4,
        monotonic=lambda: files.now,
        write_later=later.append,
    )


def test_few_topics_are_written_at_once_and_many_together() -> None:
    files, later = _Files(), list[float]()
    topics = _table(files, later)
    for n in range(10):
        topics.create(f"topic-{n}", None)
        assert f"topic-{n}" in files.topics()
    assert later == []
    for n in range(10, 4000):
        topics.create(f"topic-{n}", None)
    assert files.writes < 50
    assert topics.write_queues("topic-3999") == (0, 1, 2, 3), "the topic is known, written or not"
    assert later
    assert max(later) <= 1.0
    topics.write()
    assert len(files.topics()) == 4000
    writes = files.writes
    topics.write()
    assert files.writes == writes, "no topic waits to be written"
    files.now += 60
    topics.create("later", None)
    assert "later" in files.topics()


def test_removed_topic_is_gone_at_once_even_if_topics_wait() -> None:
    files, later = _Files(), list[float]()
    topics = _table(files, later)
    for n in range(100):
        topics.create(f"topic-{n}", None)
    assert later
    topics.remove(["topic-99", "never made"])
    assert files.topics() == {f"topic-{n}" for n in range(99)}


def test_write_that_fails_changes_nothing() -> None:
    files = _Files()
    topics = _table(files, [])
    topics.create("kept", None)
    files.fails = True
    with pytest.raises(OSError, match="no space"):
        topics.create("refused", None)
    with pytest.raises(OSError, match="no space"):
        topics.remove(["kept"])
    assert topics.names() == ["kept"]
    assert topics.read_queues("refused") == ()
    topics.write()  # No topic waits, so nothing fails.


def test_without_a_background_writer_each_topic_is_written() -> None:
    files = _Files()
    groups = Groups(files, lambda: 0, read_only=False)
    for n in range(50):
        groups.add(f"group-{n}")
    assert files.writes == 50


def _in_file(path: Path) -> set[str]:
    try:
        text = (path / "config" / "topics.json").read_text()
    except FileNotFoundError:
        return set()  # Between the two renames of a replacement.
    return set(json.loads(text)["topicConfigTable"])


def test_waiting_topics_are_in_the_file_after_a_moment_a_flush_and_a_close(tmp_path: Path) -> None:
    path = tmp_path / "store"
    names = {f"topic-{n}" for n in range(300)}
    with txstore.open(path) as broker:
        producer = broker.producer("p")
        for name in sorted(names):
            producer.send(Message(name, b"x"))
        eventually(lambda: _in_file(path) == names)
        for n in range(300):
            broker.create_topic(f"made-{n}", 2)
        broker.flush()
        names |= {f"made-{n}" for n in range(300)}
        assert _in_file(path) == names
        broker.create_topic("last")
    assert _in_file(path) == names | {"last"}


def test_topic_with_a_message_is_known_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "store"
    program = f"""
import os, signal, txstore
broker = txstore.open({str(path)!r})
producer = broker.producer("p")
for n in range(200):
    producer.send(txstore.Message(f"topic-{{n}}", b"x"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode < 0
    names = [f"topic-{n}" for n in range(200)]
    with txstore.open(path) as broker:
        assert broker.topics() == sorted(names)
        assert _in_file(path) == set(names)


def test_topics_are_listed_while_others_are_created(open_store: Any) -> None:
    broker = open_store()
    stop = threading.Event()
    failed: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                broker.topics()
        except BaseException as error:
            failed.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    for n in range(500):
        broker.create_topic(f"topic-{n}")
    stop.set()
    looking.join()
    assert failed == []
    assert len(broker.topics()) == 500
