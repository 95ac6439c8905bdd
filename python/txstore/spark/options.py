"""Options: the user's `.option(…)` values, with the names and conventions of Spark's Kafka source.

In:     texts.
Out:    `ReadOptions`, checked and picklable, without native objects.
Not here: what the store holds, the names of options (`option_names.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txstore import _native
from txstore.arrow import unknown_topic
from txstore.errors import TxStoreError
from txstore.spark.connection import broker_address
from txstore.spark.offsets import EARLIEST, LATEST, OFFSET_MAX, QueueLimits, Queues
from txstore.spark.option_names import invalid, known_options

__all__ = ["OPTIONS", "ReadOptions", "check_batch"]

ALL_COLUMNS = "*"
STORE_COLUMN, BROKER_COLUMN = "store", "broker"
# How long a micro-batch waits for `minOffsetsPerTrigger` rows, in milliseconds: 15 minutes, as in Spark's Kafka source.
_TRIGGER_DELAY_MS = 15 * 60_000
_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

# What only a store's own files can answer.
_OF_FILES = (
    *("path", "paths", "startingPhysicalOffset", "endingPhysicalOffset", "includeSystemTopics", "statisticsPath"),
)
_OF_NETWORK = ("groupId", "fetchTimeout", "tls", "accessKey", "secretKey")
# How long a task waits for a broker that is away, in milliseconds.
_FETCH_TIMEOUT_MS = 60_000

# Each of these says where a read begins, and where it ends.
_LIMITS = ("PhysicalOffset", "Offsets", "Timestamp", "OffsetsByTimestamp")

OPTIONS = tuple(
    """
    path paths view subscribe subscribePattern assign includeSystemTopics transactionTypes startingOffsets endingOffsets
    startingOffsetsByTimestamp endingOffsetsByTimestamp startingOffsetsByTimestampStrategy startingPhysicalOffset
    endingPhysicalOffset startingTimestamp endingTimestamp minPartitions maxPartitionBytes maxOffsetsPerTrigger
    maxBytesPerTrigger minOffsetsPerTrigger maxTriggerDelay failOnDataLoss badRecords columns includeBody
    includeProperties batchRows batchBytes statisticsPath brokers groupId fetchTimeout tls accessKey secretKey
    """.split()
)
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
    """The store, or the first one of several; empty if brokers are read."""
    paths: tuple[str, ...] = ()
    """All stores, if the read has several."""
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
    limits: QueueLimits = field(default_factory=QueueLimits)
    starting: str = EARLIEST
    start_physical_offset: int | None = None
    end_physical_offset: int | None = None
    start_store_ms: int | None = None
    end_store_ms: int | None = None
    partitions_min: int | None = None
    partition_bytes_max: int | None = None
    trigger_rows_max: int | None = None
    trigger_bytes_max: int | None = None
    trigger_rows_min: int | None = None
    trigger_delay_ms: int = _TRIGGER_DELAY_MS
    fail_on_data_loss: bool = True
    skip_bad_records: bool = False
    batch_rows: int | None = 16_384
    batch_bytes: int | None = 16 << 20
    statistics_path: str | None = None
    brokers: str | None = None
    """The address of name servers, of `txstore serve`, or of its socket; None: files are read."""
    group: str | None = None
    """The consumer group that pulls, and whose offsets a stream stores; None: RocketMQ's tools, no offsets."""
    fetch_timeout_ms: int = _FETCH_TIMEOUT_MS
    tls: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parses the options as Spark passes them: texts, with names in any case."""
        if not {name.lower() for name in options}.isdisjoint(_OF_TABLES):
            raise invalid("path", f"a table of Spark's catalog cannot read a store: {_NO_TABLES}")
        given = _Given(known_options(options, OPTIONS))
        brokers = given.brokers()
        paths = given.paths() if brokers is None else ("",)
        chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None]
        if len(chosen) > 1:
            raise invalid(chosen[1], f"conflicts with {chosen[0]}\nhint: keep one of the two")
        for side in ("starting", "ending"):
            given.exclude(*(f"{side}{what}" for what in _LIMITS))
        given.needs("startingOffsetsByTimestampStrategy", "startingOffsetsByTimestamp")
        given.needs("maxTriggerDelay", "minOffsetsPerTrigger")
        limits = QueueLimits.of(given.texts)
        if len(paths) > 1:
            given.refuse("startingPhysicalOffset", "endingPhysicalOffset")
            limits.check_several()
        return cls(
            path=paths[0],
            paths=paths if len(paths) > 1 else (),
            view=given.text("view") or "messages",
            columns=None if given.text("columns") == ALL_COLUMNS else given.names("columns"),
            chose_columns=given.any_of("columns", "includeBody", "includeProperties"),
            include_body=given.flag("includeBody", True),
            include_properties=given.flag("includeProperties", True),
            topics=given.names("subscribe"),
            topic_pattern=given.text("subscribePattern"),
            system_topics=given.flag("includeSystemTopics", False),
            transaction_types=given.names("transactionTypes"),
            limits=limits,
            starting=LATEST if given.text("startingOffsets") == LATEST else EARLIEST,
            start_physical_offset=given.number("startingPhysicalOffset", 0),
            end_physical_offset=given.number("endingPhysicalOffset", 0),
            start_store_ms=given.number("startingTimestamp", 0),
            end_store_ms=given.number("endingTimestamp", 0),
            partitions_min=given.number("minPartitions", 1),
            partition_bytes_max=given.size("maxPartitionBytes"),
            trigger_rows_max=given.number("maxOffsetsPerTrigger", 1),
            trigger_bytes_max=given.size("maxBytesPerTrigger"),
            trigger_rows_min=given.number("minOffsetsPerTrigger", 1),
            trigger_delay_ms=given.duration_ms("maxTriggerDelay", cls.trigger_delay_ms),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            skip_bad_records=given.choice("badRecords", ("fail", "skip")) == "skip",
            batch_rows=given.number("batchRows", 1) or cls.batch_rows,
            batch_bytes=given.size("batchBytes") or cls.batch_bytes,
            statistics_path=given.folder("statisticsPath"),
            brokers=brokers,
            group=given.group("groupId"),
            fetch_timeout_ms=given.duration_ms("fetchTimeout", _FETCH_TIMEOUT_MS),
            tls=given.text("tls"),
            access_key=given.text("accessKey"),
            secret_key=given.text("secretKey"),
        )

    @property
    def reads_whole(self) -> bool:
        """Whether the view is computed from the whole log, in one task."""
        return self.view in ("transactions", "statistics")

    def each(self) -> list[ReadOptions]:
        """Returns the options of each store."""
        if not self.paths:
            return [self]
        least = None if self.partitions_min is None else -(-self.partitions_min // len(self.paths))
        return [replace(self, path=path, paths=(), partitions_min=least) for path in self.paths]

    def arguments(self, queues: Queues | None = None) -> dict[str, Any]:
        """Returns the arguments of `_native.Scan` other than path, columns and range. `queues` limits some of them."""
        return {
            "view": self.view,
            "topics": None if self.topics is None else list(self.topics),
            "topic_pattern": self.topic_pattern,
            "system_topics": self.system_topics or self.limits.assigned is not None,
            "queues": queues,
            "only_queues": self.limits.assigned is not None,
            "transaction_types": None if self.transaction_types is None else list(self.transaction_types),
            "start_store_ms": self.start_store_ms,
            "end_store_ms": self.end_store_ms,
            "batch_rows": self.batch_rows,
            "batch_bytes": self.batch_bytes,
            "skip_bad_records": self.skip_bad_records,
            "fail_on_data_loss": self.fail_on_data_loss,
            "statistics_path": self.statistics_path,
        }

    def check_topics(self) -> None:
        """Raises InvalidOptionError for a topic or a queue that none of the stores has."""
        paths = self.paths or (self.path,)
        known = sorted({topic for path in paths for topic in _native.log_topics(path)})
        named = dict.fromkeys(self.topics or (), "subscribe") | self.limits.topics()
        for name, option in named.items():
            if name not in known:
                raise invalid(option, unknown_topic(name, known))
        self.limits.check_queues(paths)


def check_batch(options: ReadOptions) -> None:
    """Raises InvalidOptionError for what only a stream accepts."""
    if options.starting == LATEST or options.limits.begin_at_latest():
        raise invalid("startingOffsets", "a batch cannot begin at latest")
    for option, value in (
        ("maxOffsetsPerTrigger", options.trigger_rows_max),
        ("maxBytesPerTrigger", options.trigger_bytes_max),
        ("minOffsetsPerTrigger", options.trigger_rows_min),
    ):
        if value is not None:
            raise invalid(option, "only streams accept it")


class _Given:
    """The texts, by the options' canonical names."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def text(self, option: str) -> str | None:
        return self.texts.get(option)

    def any_of(self, *options: str) -> bool:
        return any(option in self.texts for option in options)

    def exclude(self, option: str, *others: str) -> None:
        """Raises InvalidOptionError if more than one of these options is given."""
        given = [name for name in (option, *others) if name in self.texts]
        if len(given) > 1:
            raise invalid(given[0], f"conflicts with {given[1]}\nhint: keep one of the two")

    def refuse(self, *options: str) -> None:
        """Raises InvalidOptionError if one of these is given, which several stores do not accept."""
        for option in options:
            if option in self.texts:
                hint = "hint: read each store by itself, or use startingTimestamp and endingTimestamp"
                raise invalid(option, f"physical offsets are those of one store, and the read has several\n{hint}")

    def brokers(self) -> str | None:
        """Returns the address of brokers in the form of `txstore.connect`, or None. Refuses what goes with files."""
        text = self.texts.get("brokers")
        if text is None:
            for option in _OF_NETWORK:
                self.needs(option, "brokers")
            return None
        address = broker_address(text)
        for option in _OF_FILES:
            if option in self.texts:
                hint = "hint: omit it, or read the store's files by path"
                raise invalid(option, f"conflicts with brokers: only files have it\n{hint}")
        view = self.texts.get("view", "messages")
        if view != "messages":
            hint = "hint: omit it, or read the store's files by path, which have the other views"
            raise invalid("view", f"brokers send only messages, and not the view {view!r}\n{hint}")
        for key, other in (("accessKey", "secretKey"), ("secretKey", "accessKey")):
            self.needs(key, other)
        return address

    def group(self, option: str) -> str | None:
        text = self.texts.get(option)
        if text is not None:
            try:
                _native.validate_group(text)
            except TxStoreError as error:
                raise invalid(option, str(error)) from None
        return text

    def paths(self) -> tuple[str, ...]:
        """Returns the absolute paths of the stores."""
        self.exclude("path", "paths")
        texts = [self.texts["path"]] if "path" in self.texts else self._listed()
        if not texts or not all(texts):
            hint = 'hint: .load("orders.store") names the store\'s directory, option("brokers", "host:9876") brokers'
            raise invalid("path", f"missing\n{hint}; for a table of Spark's catalog: {_NO_TABLES}")
        paths = tuple(_local("path", text) for text in texts)
        for path in paths:
            if paths.count(path) > 1:
                raise invalid("paths", f"names {path} twice")
        return paths

    def folder(self, option: str) -> str | None:
        """Returns the absolute path of a folder."""
        text = self.texts.get(option)
        if text is None:
            return None
        if not text or self.texts.get("view") != "statistics":
            raise invalid(option, "names a folder, and only the view statistics has a use for it")
        return _local(option, text)

    def _listed(self) -> list[str]:
        try:
            found = json.loads(self.texts.get("paths", "[]"))
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
            hint = 'hint: for example ["orders.store","payments.store"]'
            raise invalid("paths", f"must be a JSON list of paths, got {self.texts['paths']!r}\n{hint}")
        return found

    def needs(self, option: str, other: str) -> None:
        """Raises InvalidOptionError if an option is given without another."""
        if option in self.texts and other not in self.texts:
            raise invalid(option, f"applies only with {other}")

    def names(self, option: str) -> tuple[str, ...] | None:
        """Returns words separated by commas."""
        text = self.texts.get(option)
        if text is None:
            return None
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise invalid(option, "contains no names\nhint: omit it for all")
        return names

    def flag(self, option: str, default: bool) -> bool:
        text = self.texts.get(option)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise invalid(option, f"must be true or false, got {text!r}")
        return text.lower() == "true"

    def choice(self, option: str, choices: tuple[str, ...]) -> str:
        text = self.texts.get(option, choices[0]).lower()
        if text not in choices:
            raise invalid(option, f"must be one of {', '.join(choices)}, got {text!r}")
        return text

    def number(self, option: str, least: int) -> int | None:
        text = self.texts.get(option)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= OFFSET_MAX:
            raise invalid(option, f"must be a whole number of {least} or more, got {text!r}")
        return int(text)

    def size(self, option: str) -> int | None:
        """Returns bytes, given as Spark writes them: `16m`."""
        text = self.texts.get(option)
        if text is None:
            return None
        found = re.fullmatch(r"(\d{1,12})\s*([kmgt]?)b?", text.strip().lower())
        if not found or int(found[1]) == 0:
            raise invalid(option, f"must be a size, got {text!r}\nhint: for example 16m")
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]

    def duration_ms(self, option: str, default: int) -> int:
        """Returns milliseconds, given as Spark writes a duration: `15m`."""
        text = self.texts.get(option)
        if text is None:
            return default
        found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.strip().lower())
        if not found or found[2] not in _UNITS_MS:
            raise invalid(option, f"must be a duration, got {text!r}\nhint: for example 15m, 30s or 500ms")
        return int(found[1]) * _UNITS_MS[found[2]]


def _local(option: str, path: str) -> str:
    """Returns an absolute path without its scheme. Spark users write one, but only local files can be mapped.

    Spark parses options on the driver. The tasks run in other directories, on other hosts.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", path)
    if scheme is not None and scheme[1].lower() != "file":
        raise invalid(option, f"must be a local path, got {path!r}\nhint: read a store where its files are mounted")
    bare = path if scheme is None else re.sub(r"^[A-Za-z]+:(//[^/]*(?=/))?", "", path)
    return str(Path(bare).absolute())
