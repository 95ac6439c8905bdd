"""Topics and groups: the content of topics.json and subscriptionGroup.json, in RocketMQ's format.

In:     the files' text, and the queues in the log.
Out:    the queues of each topic, and a new text after each change.
Always: unknown keys are kept, and `dataVersion` rises with each write. A change is on disk when the call returns, but
        many changes in a row are written together shortly after, because each write replaces the whole file. A crash
        before that loses no topic with messages: it is found in the log.
Not here: the rules for names, and safe reading and writing of the files (the engine).
"""

import json
import logging
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from txstore._native import is_system_topic, validate_group, validate_topic
from txstore.errors import InvalidNameError, InvalidOptionError

__all__ = ["MESSAGE_TYPES", "ConfigFiles", "GroupSettings", "Groups", "Topics"]

_log = logging.getLogger("txstore.topics")
_READ = 4  # RocketMQ's PermName.
_WRITE = 2
_QUEUES_MAX = 1024
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
"""What a topic may declare; MIXED is all of them. A server checks it for clients of the gRPC protocol."""
_MESSAGE_TYPE = "message.type"
_WRITING_SECONDS = 0.25  # Time that may be spent on writes at once. It refills as a share of the elapsed time.
_WRITING_SHARE = 0.05
_RETRY_MAX_TIMES = 16
_RETRIES_MAX = 1_000
_WAIT_SECONDS_MAX = 1.0  # The longest time that a change waits to be written.


class ConfigFiles(Protocol):
    """The calls that read and replace a file of `config/`."""

    def config_text(self, name: str) -> str | None: ...
    def set_config_text(self, name: str, text: str) -> None: ...


class _Table:
    """One file: a JSON object with `dataVersion` and a table of entries by name."""

    def __init__(
        self,
        files: ConfigFiles,
        file: str,
        table: str,
        time_ms: Callable[[], int],
        *,
        read_only: bool,
        monotonic: Callable[[], float] = time.monotonic,
        write_later: Callable[[float], None] | None = None,
    ) -> None:
        """`write_later` has `write` called after so many seconds; with None each change is written at once."""
        self._files = files
        self._file = file
        self._name = table
        self._time_ms = time_ms
        self._read_only = read_only
        self._lock = threading.RLock()
        self._monotonic = monotonic
        self._write_later = write_later
        self._allowed_seconds = _WRITING_SECONDS
        self._allowed_at = monotonic()
        self._unwritten = False
        self._root = self._parsed(files.config_text(file))
        self._entries: dict[str, dict[str, Any]] = self._root[table]

    def _parsed(self, text: str | None) -> dict[str, Any]:
        """Parses the file. Reports a file that is not RocketMQ's table and starts with an empty one, from the log."""
        root = {} if text is None else _json_object(text)
        table = root.setdefault(self._name, {}) if root is not None else None
        if root is not None and isinstance(table, dict) and all(isinstance(entry, dict) for entry in table.values()):
            return root
        what = f"config/{self._file} is not a valid table: it is rebuilt from the log"
        warnings.warn(what, RuntimeWarning, stacklevel=2)
        _log.warning(what, extra={"file": f"config/{self._file}"})
        return {self._name: {}}

    def _read_again(self) -> None:
        """Reads the file again. For readers only: a writer's table in memory is newer than its file."""
        self._root = self._parsed(self._files.config_text(self._file))
        self._entries = self._root[self._name]

    def remove(self, names: Collection[str]) -> None:
        """Removes entries. Unknown names are ignored."""
        with self._lock:
            self._replace({}, removed=[name for name in names if name in self._entries])

    def _replace(self, changed: dict[str, dict[str, Any]], removed: Collection[str] = ()) -> None:
        """Changes entries and writes the table now or shortly after. If writing now fails, nothing is changed."""
        if not (changed or removed):
            return
        before = {name: self._entries.get(name) for name in (*changed, *removed)}
        others_wait = self._unwritten
        self._put(changed, removed)
        if self._read_only:
            return
        self._unwritten = True
        wait = self._seconds_to_wait()
        # A removal is written at once, because what was removed must not come back after a crash.
        if wait > 0 and self._write_later is not None and not removed:
            self._write_later(wait)
            return
        try:
            self._write()
        except BaseException:
            self._put({name: entry for name, entry in before.items() if entry is not None}, before)
            self._unwritten = others_wait
            raise

    def _seconds_to_wait(self) -> float:
        now = self._monotonic()
        earned = (now - self._allowed_at) * _WRITING_SHARE
        self._allowed_seconds, self._allowed_at = min(_WRITING_SECONDS, self._allowed_seconds + earned), now
        return min(max(0.0, -self._allowed_seconds / _WRITING_SHARE), _WAIT_SECONDS_MAX)

    def _put(self, changed: dict[str, dict[str, Any]], removed: Collection[str]) -> None:
        # The table is changed itself: copying it for each topic would take time proportional to all topics.
        for name in removed:
            self._entries.pop(name, None)
        self._entries.update(changed)

    def write(self) -> None:
        """Writes pending changes. Raises the errors of writing; the changes stay pending then."""
        with self._lock:
            if self._unwritten:
                self._write()

    def _write(self) -> None:
        began = self._monotonic()
        version = self._root.get("dataVersion")
        version = dict(version) if isinstance(version, dict) else {"stateVersion": 0}
        counter = version.get("counter", 0)
        version["counter"] = counter + 1 if isinstance(counter, int) else 1
        version["timestamp"] = self._time_ms()
        root = self._root | {"dataVersion": version, self._name: self._entries}
        # The store formats the text; json.dumps with an indent is ten times as slow.
        self._files.set_config_text(self._file, json.dumps(root, sort_keys=True))
        self._root, self._unwritten = root, False
        self._allowed_seconds -= self._monotonic() - began


class Topics(_Table):
    """The topics of a store and their queues. Thread-safe.

    `queues` are the (topic, queue id) pairs in the log. Those missing in topics.json are added at once.
    """

    def __init__(
        self,
        files: ConfigFiles,
        queues: Iterable[tuple[str, int]],
        time_ms: Callable[[], int],
        *,
        read_only: bool,
        auto_create: bool,
        queues_default: int,
        monotonic: Callable[[], float] = time.monotonic,
        write_later: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(
            files,
            "topics.json",
            "topicConfigTable",
            time_ms,
            read_only=read_only,
            monotonic=monotonic,
            write_later=write_later,
        )
        self._auto_create = auto_create
        self._queues_default = queues_default
        self._add_found(queues)

    def read_again(self, queues: Iterable[tuple[str, int]]) -> None:
        """Reads the file again. For readers: the writer may have created topics since."""
        with self._lock:
            self._read_again()
            self._add_found(queues)

    def _add_found(self, queues: Iterable[tuple[str, int]]) -> None:
        found: dict[str, int] = {}
        for topic, queue_id in queues:
            if not is_system_topic(topic):
                found[topic] = max(found.get(topic, 0), queue_id + 1)
        self._replace(
            {
                topic: self._entry(topic, count)
                for topic, count in found.items()
                if self._count(topic, "readQueueNums") < count or self._count(topic, "writeQueueNums") < 1
            }
        )

    def names(self) -> list[str]:
        """Returns the topics of users, sorted."""
        with self._lock:
            return sorted(topic for topic in self._entries if not is_system_topic(topic))

    def read_queues(self, topic: str) -> tuple[int, ...]:
        """Returns the ids of readable queues; empty for an unknown topic."""
        return self._allowed(topic, "readQueueNums", _READ)

    def write_queues(self, topic: str) -> tuple[int, ...]:
        """Returns the ids of writable queues; creates the topic if that is allowed. Raises InvalidNameError."""
        validate_topic(topic)
        if topic not in self._entries:
            if not self._auto_create:
                raise InvalidNameError(
                    f"unknown topic {topic}, and auto_create_topic_enable is off\nhint: broker.create_topic({topic!r})"
                )
            self.create(topic, None)
        return self._allowed(topic, "writeQueueNums", _WRITE)

    def create(self, topic: str, queues: int | None, message_type: str | None = None) -> None:
        """Creates a topic, adds queues to it, or declares its message type. None means the default number of queues, or
        the number it has, and the type it has.

        Raises InvalidNameError, and InvalidOptionError for fewer queues than the topic has, or an unknown type.
        """
        validate_topic(topic)
        if message_type is not None and message_type not in MESSAGE_TYPES:
            text = f"message_type must be one of {', '.join(MESSAGE_TYPES)}, got {message_type!r}"
            raise InvalidOptionError(text, option="message_type")
        with self._lock:
            has = self._count(topic, "writeQueueNums")
            count = queues if queues is not None else has or self._queues_default
            if not 1 <= count <= _QUEUES_MAX:
                raise InvalidOptionError(f"queues must be between 1 and {_QUEUES_MAX}, got {count!r}", option="queues")
            if count < has:
                raise InvalidOptionError(
                    f"topic {topic} has {has} queues; {count} would hide messages", option="queues"
                )
            declares = message_type is not None and message_type != self.message_type(topic)
            if count > has or declares or topic not in self._entries:
                entry = self._entry(topic, count)
                if declares:
                    entry["attributes"] = dict(_attributes(entry)) | {_MESSAGE_TYPE: message_type}
                self._replace({topic: entry})

    def message_type(self, topic: str) -> str | None:
        """Returns the message type that a topic declares; None if it declares none, or one that is not known here."""
        with self._lock:
            declared = _attributes(self._entries.get(topic, {})).get(_MESSAGE_TYPE)
        return declared if declared in MESSAGE_TYPES else None

    def has(self, topic: str) -> bool:
        """Tells whether the topic exists and is not a system topic."""
        return topic in self._entries and not is_system_topic(topic)

    def create_all_with_one_queue(self, topics: Iterable[str]) -> list[str]:
        """Creates the missing topics with one queue each, in one write, and returns them."""
        with self._lock:
            fresh = [topic for topic in topics if topic not in self._entries]
            for topic in fresh:
                validate_topic(topic)
            self._replace({topic: self._entry(topic, 1) for topic in fresh})
        return fresh

    def create_missing(self, topics: Iterable[str]) -> None:
        """Creates the missing topics with the default number of queues, without system topics."""
        with self._lock:
            fresh = [topic for topic in topics if topic not in self._entries and not is_system_topic(topic)]
            self._replace({topic: self._entry(topic, self._queues_default) for topic in fresh})

    def create_with_one_queue(self, topic: str) -> None:
        """Creates a topic with one queue, as retries and dead letters use it, unless it exists."""
        if not self.read_queues(topic):
            self.create(topic, 1)

    def _entry(self, topic: str, count: int) -> dict[str, Any]:
        """Returns RocketMQ's entry with at least `count` queues. Values that a broker added are kept."""
        fresh: dict[str, Any] = {
            "attributes": {},
            "order": False,
            "perm": _READ | _WRITE,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
        }
        entry = fresh | self._entries.get(topic, {})
        for name in ("readQueueNums", "writeQueueNums"):
            entry[name] = max(count, self._count(topic, name))
        return entry

    def _count(self, topic: str, name: str) -> int:
        value = self._entries.get(topic, {}).get(name, 0)
        return value if isinstance(value, int) else 0

    def _allowed(self, topic: str, name: str, permission: int) -> tuple[int, ...]:
        entry = self._entries.get(topic)
        if entry is None or is_system_topic(topic):
            return ()
        perm = entry.get("perm", _READ | _WRITE)
        if not isinstance(perm, int) or not perm & permission:
            return ()
        return tuple(range(self._count(topic, name)))


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a consumer group. They hold for clients of the gRPC protocol; others bring their own."""

    consume_message_orderly: bool = False
    """Whether the messages of a queue are delivered one after another, in their order (consumeMessageOrderly)."""
    retry_max_times: int = _RETRY_MAX_TIMES
    """How often a message is delivered again before it is a dead letter (retryMaxTimes)."""


class Groups(_Table):
    """The consumer groups of a store, as RocketMQ brokers expect them. Thread-safe."""

    def __init__(
        self,
        files: ConfigFiles,
        time_ms: Callable[[], int],
        *,
        read_only: bool,
        monotonic: Callable[[], float] = time.monotonic,
        write_later: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(
            files,
            "subscriptionGroup.json",
            "subscriptionGroupTable",
            time_ms,
            read_only=read_only,
            monotonic=monotonic,
            write_later=write_later,
        )
        self._root.setdefault("forbiddenTable", {})

    def read_again(self) -> None:
        """Reads the file again. For readers: the writer may have created groups since."""
        with self._lock:
            self._read_again()

    def names(self) -> list[str]:
        """Returns all groups, sorted."""
        with self._lock:
            return sorted(self._entries)

    def has(self, group: str) -> bool:
        """Tells whether the file has the group."""
        return group in self._entries

    def add(self, *groups: str) -> None:
        """Adds the missing groups in one write. The names must be valid."""
        with self._lock:
            self._replace({group: _fresh_group(group) for group in groups if group not in self._entries})

    def create(self, group: str, orderly: bool | None, retries: int | None) -> None:
        """Adds a group, or changes its settings. None keeps a setting. Raises InvalidNameError, InvalidOptionError."""
        validate_group(group)
        if retries is not None and not 0 <= retries <= _RETRIES_MAX:
            text = f"retry_max_times must be between 0 and {_RETRIES_MAX}, got {retries!r}"
            raise InvalidOptionError(text, option="retry_max_times")
        given = {"consumeMessageOrderly": orderly, "retryMaxTimes": retries}
        with self._lock:
            known = self._entries.get(group)
            changed = (known or _fresh_group(group)) | {
                name: value for name, value in given.items() if value is not None
            }
            if changed != known:
                self._replace({group: changed})

    def settings(self, group: str) -> GroupSettings:
        """Returns a group's settings; the defaults for an unknown group, and for values that have the wrong type."""
        with self._lock:
            entry = self._entries.get(group, {})
        retries = entry.get("retryMaxTimes")
        if not isinstance(retries, int) or isinstance(retries, bool):
            retries = _RETRY_MAX_TIMES
        return GroupSettings(entry.get("consumeMessageOrderly") is True, retries)


def _attributes(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the attributes of a topic's entry; none if a file of another program has something else there."""
    attributes = entry.get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def _fresh_group(group: str) -> dict[str, Any]:
    """Returns RocketMQ's entry for a group without settings."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": group,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": _RETRY_MAX_TIMES,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
