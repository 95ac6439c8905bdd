"""Options: the user's `.option(…)` values, with the names and conventions of Spark's Kafka source.

In:     texts.
Out:    `ReadOptions`, checked and picklable, without native objects.
Always: an unknown option is an error that names the nearest known one.
Not here: what the store holds.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txstore.arrow import unknown_topic
from txstore.errors import InvalidOptionError

__all__ = ["OPTIONS", "ReadOptions"]

EARLIEST, LATEST = "earliest", "latest"
ALL_COLUMNS = "*"
_OFFSET_MAX = (1 << 63) - 1
_EARLIEST_OFFSET, _LATEST_OFFSET = -2, -1
# The first queue offset to read and the end, by topic and queue.
Queues = dict[str, dict[int, tuple[int, int]]]

OPTIONS = tuple(
    """
    path view subscribe subscribePattern assign includeSystemTopics transactionTypes startingOffsets endingOffsets
    startingPhysicalOffset endingPhysicalOffset startingTimestamp endingTimestamp minPartitions maxPartitionBytes
    maxOffsetsPerTrigger maxBytesPerTrigger failOnDataLoss badRecords columns includeBody includeProperties batchRows
    batchBytes
    """.split()
)
_KNOWN = {name.lower(): name for name in OPTIONS}
# What Spark adds to the options in CREATE TABLE … USING. When the table is read, it passes no options at all.
_OF_TABLES = {"owner", "provider", "location", "external", "is_managed_location"}
_NO_TABLES = (
    "Spark passes no options to a Python source then\n"
    "hint: CREATE TEMPORARY VIEW orders USING txstore OPTIONS (path 'orders.store', columns 'topic,size')"
)


@dataclass(frozen=True)
class ReadOptions:
    """The options of one read."""

    path: str
    view: str = "messages"
    columns: tuple[str, ...] | None = None
    chose_columns: bool = False
    """Whether an option says which columns to read, even if it says all."""
    include_body: bool = True
    include_properties: bool = True
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    system_topics: bool = False
    transaction_types: tuple[str, ...] | None = None
    queues: Queues | None = None
    only_queues: bool = False
    starting: str = EARLIEST
    start_physical_offset: int | None = None
    end_physical_offset: int | None = None
    start_store_ms: int | None = None
    end_store_ms: int | None = None
    partitions_min: int | None = None
    partition_bytes_max: int | None = None
    trigger_rows_max: int | None = None
    trigger_bytes_max: int | None = None
    fail_on_data_loss: bool = True
    skip_bad_records: bool = False
    batch_rows: int | None = 16_384
    batch_bytes: int | None = 16 << 20

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parses the options as Spark passes them: texts, with names in any case."""
        if not {name.lower() for name in options}.isdisjoint(_OF_TABLES):
            raise _invalid("path", f"a table of Spark's catalog cannot read a store: {_NO_TABLES}")
        given = _Given({_known(name): text for name, text in options.items()})
        path = _local(given.text("path") or "")
        if not path:
            hint = 'hint: .load("orders.store") names the store\'s directory'
            raise _invalid("path", f"missing\n{hint}; for a table of Spark's catalog: {_NO_TABLES}")
        chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None]
        if len(chosen) > 1:
            raise _invalid(chosen[1], f"conflicts with {chosen[0]}\nhint: keep one of the two")
        given.exclude("startingPhysicalOffset", "startingOffsets", "startingTimestamp")
        given.exclude("endingPhysicalOffset", "endingOffsets", "endingTimestamp")
        starting, queues = given.starting()
        return cls(
            # Spark parses options on the driver. The tasks run in other directories, on other hosts.
            path=str(Path(path).absolute()),
            view=given.text("view") or "messages",
            columns=None if given.text("columns") == ALL_COLUMNS else given.names("columns"),
            chose_columns=given.any_of("columns", "includeBody", "includeProperties"),
            include_body=given.flag("includeBody", True),
            include_properties=given.flag("includeProperties", True),
            topics=given.names("subscribe"),
            topic_pattern=given.text("subscribePattern"),
            system_topics=given.flag("includeSystemTopics", False),
            transaction_types=given.names("transactionTypes"),
            queues=queues,
            only_queues=given.text("assign") is not None,
            starting=starting,
            start_physical_offset=given.number("startingPhysicalOffset", 0),
            end_physical_offset=given.number("endingPhysicalOffset", 0),
            start_store_ms=given.number("startingTimestamp", 0),
            end_store_ms=given.number("endingTimestamp", 0),
            partitions_min=given.number("minPartitions", 1),
            partition_bytes_max=given.size("maxPartitionBytes"),
            trigger_rows_max=given.number("maxOffsetsPerTrigger", 1),
            trigger_bytes_max=given.size("maxBytesPerTrigger"),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            skip_bad_records=given.choice("badRecords", ("fail", "skip")) == "skip",
            batch_rows=given.number("batchRows", 1) or cls.batch_rows,
            batch_bytes=given.size("batchBytes") or cls.batch_bytes,
        )

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `_native.Scan` other than path, columns and range."""
        return {
            "view": self.view,
            "topics": None if self.topics is None else list(self.topics),
            "topic_pattern": self.topic_pattern,
            "system_topics": self.system_topics or self.only_queues,
            "queues": self.queues,
            "only_queues": self.only_queues,
            "transaction_types": None if self.transaction_types is None else list(self.transaction_types),
            "start_store_ms": self.start_store_ms,
            "end_store_ms": self.end_store_ms,
            "batch_rows": self.batch_rows,
            "batch_bytes": self.batch_bytes,
            "skip_bad_records": self.skip_bad_records,
            "fail_on_data_loss": self.fail_on_data_loss,
        }

    def check_topics(self, known: list[str]) -> None:
        """Raises InvalidOptionError for a topic that the store does not have."""
        named = {"subscribe": self.topics or (), "assign" if self.only_queues else "startingOffsets": self.queues or ()}
        for option, names in named.items():
            for name in names:
                if name not in known:
                    raise _invalid(option, unknown_topic(name, known))


class _Given:
    """The texts, by the options' canonical names."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def text(self, option: str) -> str | None:
        return self._texts.get(option)

    def any_of(self, *options: str) -> bool:
        return any(option in self._texts for option in options)

    def exclude(self, option: str, *others: str) -> None:
        """Raises InvalidOptionError if more than one of these options is given."""
        given = [name for name in (option, *others) if name in self._texts]
        if len(given) > 1:
            raise _invalid(given[0], f"conflicts with {given[1]}\nhint: keep one of the two")

    def names(self, option: str) -> tuple[str, ...] | None:
        """Returns words separated by commas."""
        text = self._texts.get(option)
        if text is None:
            return None
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise _invalid(option, "contains no names\nhint: omit it for all")
        return names

    def flag(self, option: str, default: bool) -> bool:
        text = self._texts.get(option)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise _invalid(option, f"must be true or false, got {text!r}")
        return text.lower() == "true"

    def choice(self, option: str, choices: tuple[str, ...]) -> str:
        text = self._texts.get(option, choices[0]).lower()
        if text not in choices:
            raise _invalid(option, f"must be one of {', '.join(choices)}, got {text!r}")
        return text

    def number(self, option: str, least: int) -> int | None:
        text = self._texts.get(option)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= _OFFSET_MAX:
            raise _invalid(option, f"must be a whole number of {least} or more, got {text!r}")
        return int(text)

    def size(self, option: str) -> int | None:
        """Returns bytes, given as Spark writes them: `16m`."""
        text = self._texts.get(option)
        if text is None:
            return None
        found = re.fullmatch(r"(\d{1,12})\s*([kmgt]?)b?", text.strip().lower())
        if not found or int(found[1]) == 0:
            raise _invalid(option, f"must be a size, got {text!r}\nhint: for example 16m")
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]

    def starting(self) -> tuple[str, Queues | None]:
        """Returns where all queues begin, and the queues that have limits of their own."""
        queues: Queues = {}
        for topic, numbers in (self._json("assign") or {}).items():
            if not isinstance(numbers, list) or not all(isinstance(number, int) and number >= 0 for number in numbers):
                raise _invalid(
                    "assign", f'must be a list of queues, got {numbers!r}\nhint: for example {{"orders":[0,1]}}'
                )
            queues[topic] = dict.fromkeys(numbers, (0, _OFFSET_MAX))
        starting = self._texts.get("startingOffsets", EARLIEST)
        if starting not in (EARLIEST, LATEST):
            for topic, queue, offset in self._offsets("startingOffsets"):
                if offset == _LATEST_OFFSET:
                    what = "-1 (latest) cannot apply to one queue\nhint: a number, or latest for all queues"
                    raise _invalid("startingOffsets", what)
                _, end = queues.setdefault(topic, {}).get(queue, (0, _OFFSET_MAX))
                queues[topic][queue] = (max(0, offset), end)
            starting = EARLIEST
        if self._texts.get("endingOffsets", LATEST) != LATEST:
            for topic, queue, offset in self._offsets("endingOffsets"):
                if offset == _EARLIEST_OFFSET:
                    raise _invalid("endingOffsets", "-2 (earliest) cannot be the end of a queue")
                begin, _ = queues.setdefault(topic, {}).get(queue, (0, _OFFSET_MAX))
                queues[topic][queue] = (begin, _OFFSET_MAX if offset == _LATEST_OFFSET else offset)
        return starting, queues or None

    def _offsets(self, option: str) -> list[tuple[str, int, int]]:
        found = []
        for topic, queues in (self._json(option) or {}).items():
            for queue, offset in queues.items() if isinstance(queues, dict) else [("", None)]:
                if not queue.isdigit() or not isinstance(offset, int) or offset < _EARLIEST_OFFSET:
                    hint = f'hint: earliest, latest, or for example {{"{topic}":{{"0":23,"1":-2}}}}'
                    raise _invalid(option, f"must be queue offsets, got {queues!r}\n{hint}")
                found.append((topic, int(queue), offset))
        return found

    def _json(self, option: str) -> dict[str, Any] | None:
        text = self._texts.get(option)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise _invalid(option, f'must be a JSON object, got {text!r}\nhint: for example {{"orders":{{"0":23}}}}')
        return value


def _known(name: str) -> str:
    known = _KNOWN.get(name.lower())
    if known is None:
        near = difflib.get_close_matches(name.lower(), _KNOWN, 1)
        hint = f"did you mean {_KNOWN[near[0]]}?" if near else f"the options are {', '.join(OPTIONS)}"
        raise _invalid(name, f"unknown option\nhint: {hint}")
    return known


def _local(path: str) -> str:
    """Removes the scheme from a path. Spark users write one, but only local files can be mapped."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", path)
    if scheme is None:
        return path
    if scheme[1].lower() != "file":
        raise _invalid("path", f"must be a local path, got {path!r}\nhint: read a store where its files are mounted")
    return re.sub(r"^[A-Za-z]+:(//[^/]*(?=/))?", "", path)


def _invalid(option: str, what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option {option}: {what}", option=option)
