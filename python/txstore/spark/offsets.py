"""Queue offsets: where a read of each queue begins and ends, as the options of Spark's Kafka source say it.

In:     the JSON of `assign`, `startingOffsets`, `startingOffsetsByTimestamp` and their ends; a store.
Out:    ranges of queue offsets, and the part of the log that can hold them.
Always: parsing opens no store, so the driver can refuse an option early. A range is found once, when a batch is planned
        or a stream begins.
Not here: rows (`ranges.py`), what a stream keeps in its checkpoint (`stream.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from txstore import _native
from txstore.errors import InvalidOptionError

__all__ = [
    "EARLIEST",
    "LATEST",
    "OFFSET_MAX",
    "Limit",
    "QueueLimits",
    "QueueName",
    "Queues",
    "Starts",
    "shown",
    "starts_of",
]

_log = logging.getLogger("txstore.spark")

EARLIEST, LATEST = "earliest", "latest"
OFFSET_MAX = (1 << 63) - 1
_EARLIEST_OFFSET, _LATEST_OFFSET = -2, -1
# By topic and queue: the first queue offset to read and the end; the first one alone.
Queues = dict[str, dict[int, tuple[int, int]]]
Starts = dict[str, dict[int, int]]


class QueueName(NamedTuple):
    """A queue as options name it."""

    topic: str
    queue: int
    broker: str | None = None
    """The broker that has it; None: each broker that has such a queue."""

    def __str__(self) -> str:
        of_broker = "" if self.broker is None else f" on broker {self.broker}"
        return f"queue {self.queue} of {self.topic!r}{of_broker}"


@dataclass(frozen=True)
class Limit:
    """Where a read of one queue begins or ends: a queue offset, or -2 (earliest), -1 (latest), or a time."""

    option: str
    topic: str
    queue: int
    value: int
    """A queue offset, or with `is_time` milliseconds since the epoch."""
    is_time: bool
    broker: str | None = None
    """As in `QueueName`."""

    @property
    def name(self) -> QueueName:
        """The queue as the option names it."""
        return QueueName(self.topic, self.queue, self.broker)


@dataclass(frozen=True)
class QueueLimits:
    """The queues to read, and the limits of some of them."""

    assigned: tuple[QueueName, ...] | None = None
    """The only queues that are read; None: all."""
    starting: tuple[Limit, ...] = ()
    ending: tuple[Limit, ...] = ()
    is_late_start_latest: bool = False
    """Whether a queue begins at its end if it has no message at or after its starting time; otherwise an error."""

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> QueueLimits:
        """Parses the options, by their canonical names. Raises InvalidOptionError."""
        strategy = texts.get("startingOffsetsByTimestampStrategy", "error").lower()
        if strategy not in ("error", LATEST):
            raise _invalid("startingOffsetsByTimestampStrategy", f"must be error or latest, got {strategy!r}")
        limits = cls(
            assigned=_assigned(texts),
            starting=(
                *_limits(texts, "startingOffsets", _EARLIEST_OFFSET),
                *_limits(texts, "startingOffsetsByTimestamp", 0),
            ),
            ending=(*_limits(texts, "endingOffsets", _LATEST_OFFSET), *_limits(texts, "endingOffsetsByTimestamp", 0)),
            is_late_start_latest=strategy == LATEST,
        )
        if limits.assigned is not None:
            for limit in (*limits.starting, *limits.ending):
                if not {limit.name, QueueName(limit.topic, limit.queue)}.intersection(limits.assigned):
                    raise _invalid(limit.option, f"{limit.name} is not read\nhint: name it in assign, too")
        return limits

    def begin_at_latest(self) -> bool:
        """Returns whether a queue begins at its end."""
        return any(limit.value == _LATEST_OFFSET for limit in self.starting)

    def topics(self) -> dict[str, str]:
        """Returns the topics that are named, with the option that names each."""
        named = {limit.topic: limit.option for limit in (*self.starting, *self.ending)}
        return named | {name.topic: "assign" for name in self.assigned or ()}

    def check_queues(self, paths: Sequence[str]) -> None:
        """Raises InvalidOptionError for a queue that none of the stores has."""
        named = {(limit.topic, limit.queue): limit.option for limit in (*self.starting, *self.ending)}
        named |= {(name.topic, name.queue): "assign" for name in self.assigned or ()}
        for topic in {topic for topic, _ in named}:
            numbers = sorted({number for path in paths for number in _native.log_queue_ids(path, topic)})
            for (other, queue), option in named.items():
                if other == topic and queue not in numbers:
                    has = f"its queues are {shown(numbers)}" if numbers else "it has none yet"
                    raise _invalid(option, f"topic {topic!r} has no queue {queue}\nhint: {has}")

    def check_several(self) -> None:
        """Raises InvalidOptionError if a limit is a queue offset, which means another message in each store."""
        for limit in (*self.starting, *self.ending):
            if not limit.is_time and limit.value >= 0:
                hint = f"hint: {limit.option}ByTimestamp, -2 (earliest) and -1 (latest) apply to each store"
                raise _invalid(limit.option, f"queue offsets are those of one store, and the read has several\n{hint}")

    def starts(self, path: str, fail_on_data_loss: bool) -> Starts:
        """Returns the queue offsets at which queues begin that do not begin at the earliest one.

        An offset that the queue does not have any more, or not yet, is an error; without `fail_on_data_loss` it is only
        logged. Raises InvalidOptionError.
        """
        found: Starts = {}
        for limit in self.starting:
            if limit.queue not in _native.log_queue_ids(path, limit.topic):
                # Another store of the read has it.
                continue
            start = _resolved(path, limit, fail_on_data_loss)
            if start is None:
                if not self.is_late_start_latest:
                    raise _invalid(
                        limit.option,
                        f"queue {limit.queue} of {limit.topic!r} has no message stored at or after {limit.value}\n"
                        "hint: startingOffsetsByTimestampStrategy=latest begins such a queue at its end",
                    )
                start = _range(path, limit)[1]
            if start > 0:
                found.setdefault(limit.topic, {})[limit.queue] = start
        return found

    def fixed_starts(self) -> Starts:
        """Returns the starts that are queue offsets, which do not depend on when a stream began."""
        found: Starts = {}
        for limit in self.starting:
            if not limit.is_time and limit.value >= 0:
                found.setdefault(limit.topic, {})[limit.queue] = limit.value
        return found

    def depends_on_time(self) -> bool:
        """Returns whether a queue begins at its end or at a time."""
        return any(limit.is_time or limit.value == _LATEST_OFFSET for limit in self.starting)

    def queues(self, path: str, starts: Starts, fail_on_data_loss: bool) -> Queues | None:
        """Returns the ranges of queue offsets to read, with the result of `starts`; None: all. Raises as it does."""
        found: Queues = {}
        for topic, queue, _ in self.assigned or ():
            found.setdefault(topic, {})[queue] = (0, OFFSET_MAX)
        for topic, numbers in starts.items():
            found.setdefault(topic, {}).update({queue: (start, OFFSET_MAX) for queue, start in numbers.items()})
        for limit in self.ending:
            end = _resolved(path, limit, fail_on_data_loss)
            start, _ = found.setdefault(limit.topic, {}).get(limit.queue, (0, OFFSET_MAX))
            if end is not None and end < start:
                raise _invalid(
                    limit.option, f"queue {limit.queue} of {limit.topic!r} ends at {end}, before its start {start}"
                )
            found[limit.topic][limit.queue] = (start, OFFSET_MAX if end is None else end)
        return found or None

    def span(self, path: str, queues: Queues | None, start: int, end: int) -> tuple[int, int]:
        """Returns the part of a range of the log, between two records, that can hold messages of the assigned queues.

        Without `assign` it is the whole range.
        """
        if self.assigned is None or queues is None:
            return start, end
        begins, ends = [], []
        for topic, numbers in queues.items():
            for queue, (first, until) in numbers.items():
                begins.append(_native.log_queue_position(path, topic, queue, first) if first else start)
                is_open = until == OFFSET_MAX
                ends.append(end if is_open else _native.log_queue_position(path, topic, queue, until))
        begin = min(max(min(begins), start), end)
        return begin, max(min(max(ends), end), begin)


def starts_of(found: Mapping[str, Mapping[str, int]]) -> Starts:
    """Reads starts from JSON, where keys are texts. Raises AttributeError, TypeError or ValueError for other values."""
    return {topic: {int(queue): int(start) for queue, start in numbers.items()} for topic, numbers in found.items()}


def _resolved(path: str, limit: Limit, fail_on_data_loss: bool) -> int | None:
    """Returns a limit as a queue offset; None if no message is at or after it."""
    if limit.is_time:
        return _native.log_queue_offset_since(path, limit.topic, limit.queue, limit.value)
    if limit.value == _EARLIEST_OFFSET:
        return 0
    is_start = limit.option.startswith("starting")
    if limit.value == _LATEST_OFFSET:
        return _range(path, limit)[1] if is_start else None
    first, end = _range(path, limit)
    if not first <= limit.value <= end and (is_start or limit.value > end):
        what = f"queue {limit.queue} of {limit.topic!r} has the offsets {first} to {end}, and not {limit.value}"
        if fail_on_data_loss:
            hint = "failOnDataLoss=false reads what there is; -2 is the earliest offset, -1 the latest"
            raise _invalid(limit.option, f"{what}\nhint: {hint}")
        _log.warning("option %s: %s; the read has the messages that there are", limit.option, what)
    return limit.value


def _range(path: str, limit: Limit) -> tuple[int, int]:
    return _native.log_queue_range(path, limit.topic, limit.queue) or (0, 0)


def _assigned(texts: Mapping[str, str]) -> tuple[QueueName, ...] | None:
    if "assign" not in texts:
        return None
    found = []
    for topic, numbers in _json(texts, "assign", '{"orders":[0,1]}').items():
        listed = numbers if isinstance(numbers, list) else [None]
        names = [_named(texts, topic, str(number)) if _is_queue(number) else None for number in listed]
        if None in names:
            raise _invalid("assign", f'must be a list of queues, got {numbers!r}\nhint: for example {{"orders":[0,1]}}')
        found += [name for name in names if name is not None]
    if not found:
        raise _invalid("assign", "names no queue\nhint: omit it for all")
    return tuple(found)


def _limits(texts: Mapping[str, str], option: str, least: int) -> Iterator[Limit]:
    """Yields the limits that an option names, of `least` or more."""
    is_time = option.endswith("ByTimestamp")
    words = () if is_time else (EARLIEST, LATEST) if option.startswith("starting") else (LATEST,)
    if texts.get(option) in (None, *words):
        return
    usual = '{"orders":{"0":1700000000000}}' if is_time else '{"orders":{"0":23,"1":-2}}'
    for topic, numbers in _json(texts, option, usual).items():
        pairs: list[tuple[str, Any]] = list(numbers.items()) if isinstance(numbers, dict) else [("", None)]
        for queue, value in pairs:
            name = _named(texts, topic, queue)
            if name is None or not _is_number(value, least):
                what = "times in milliseconds, by queue" if is_time else "queue offsets"
                hint = f"hint: {usual}" if is_time else f"hint: earliest, latest, or for example {usual}"
                least_text = f" of {least} or more" if least else ""
                raise _invalid(option, f"must be {what}{least_text}, got {numbers!r}\n{hint}")
            yield Limit(option, topic, name.queue, value, is_time, name.broker)


def _named(texts: Mapping[str, str], topic: str, queue: str) -> QueueName | None:
    """Parses a queue's number, or if brokers are read also `broker-a:0`; None for other texts."""
    broker, colon, number = queue.rpartition(":")
    if not (number.isascii() and number.isdigit()) or (colon and not (broker and "brokers" in texts)):
        return None
    return QueueName(topic, int(number), broker or None)


def _is_queue(value: object) -> bool:
    return (isinstance(value, str) and ":" in value) or _is_number(value, 0)


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= OFFSET_MAX


def _json(texts: Mapping[str, str], option: str, usual: str) -> dict[str, Any]:
    try:
        value = json.loads(texts[option])
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _invalid(option, f"must be a JSON object, got {texts[option]!r}\nhint: for example {usual}")
    return value


def shown(numbers: list[int]) -> str:
    """Returns numbers of queues for an error: the first and the last, or the first twenty."""
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:20])) + (", …" if len(numbers) > 20 else "")


def _invalid(option: str, what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option {option}: {what}", option=option)
