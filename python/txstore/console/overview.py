"""The page `overview`: whether the store is well, and what needs a look first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txstore.broker.operations import OutboxFacts, Overview
from txstore.console.page import Asked, Page
from txstore.console.rates import Past
from txstore.console.text import age, counted, number, rate, size

__all__ = ["PAGE"]

_FULL = 0.9
_OUTBOX_LATE_MS = 60_000


@dataclass(frozen=True, slots=True)
class _Tile:
    """A number, what it means, and where to look further. `level` is `ok`, `warning` or `bad`."""

    name: str
    value: str
    note: str
    to: str | None
    """None: nothing more is shown."""
    level: str = ""
    past: Sequence[float] = ()
    """Its recent values."""


def _show(asked: Asked) -> Mapping[str, Any]:
    if not asked.viewer.is_admin:
        return {"overview": None}
    overview = asked.operator.overview()
    outboxes = [_outbox(one) for one in asked.operator.outbox_facts()]
    return {"overview": overview, "tiles": _tiles(overview, asked.rates.past(), outboxes)}


def _tiles(overview: Overview, past: Past, outboxes: Sequence[_Tile]) -> list[_Tile]:
    oldest = overview.oldest_pending_ms
    return [
        _health(overview),
        *_crash(overview),
        _Tile(
            "Pending transactions",
            number(overview.pending),
            f"the oldest for {age(oldest)}" if overview.pending else "none waits",
            "/transactions",
            "bad" if oldest > overview.pending_late_ms else "ok",
            past.pending,
        ),
        _Tile(
            "Consumer lag",
            number(overview.lag),
            f"of {counted(overview.groups, 'group')}",
            "/groups",
            "warning" if overview.lag > 0 else "ok",
            past.lag,
        ),
        _Tile(
            "Dead letters",
            number(overview.dead_letters),
            f"in {counted(len(overview.dead), 'group')}" if overview.dead_letters else "none",
            "/dead-letters",
            "bad" if overview.dead_letters else "ok",
        ),
        _Tile(
            "Discarded",
            number(overview.discarded),
            "transactions without an outcome; they can be resumed" if overview.discarded else "no transaction",
            "/transactions?state=discarded",
            "warning" if overview.discarded else "ok",
        ),
        *outboxes,
        _delayed(overview),
        _disk(overview),
        _Tile(
            "Messages per second",
            rate(past.messages_per_second),
            "measured in a few seconds"
            if past.bytes_per_second is None
            else f"the log grows by {size(round(past.bytes_per_second))} a second",
            "/topics",
            past=past.messages,
        ),
        _Tile("Topics", number(overview.topics), f"{counted(overview.sent, 'message')} ever stored", "/topics"),
        *_clients(overview),
    ]


def _outbox(one: OutboxFacts) -> _Tile:
    if one.waiting is None:
        return _Tile("Outbox", "cannot be read", f"{one.name}: {one.error}", "/outbox", "bad")
    waits = f"the oldest for {age(one.oldest_ms)}" if one.waiting else "nothing waits"
    note = f"{one.name}: {one.error or waits}"
    is_late = (one.oldest_ms or 0) > _OUTBOX_LATE_MS
    return _Tile("Outbox", number(one.waiting), note, "/outbox", "bad" if one.error or is_late else "ok")


def _health(overview: Overview) -> _Tile:
    if overview.failure is not None:
        return _Tile("Health", "no messages taken", overview.failure.partition("\n")[0], "/settings", "bad")
    if overview.read_only:
        return _Tile("Health", "reads only", "another process writes this store", "/settings")
    return _Tile("Health", "OK", "takes messages", "/settings", "ok")


def _crash(overview: Overview) -> list[_Tile]:
    if not overview.crashed:
        return []
    found = [f"cut off {size(overview.cut_bytes)} of a write"] if overview.cut_bytes else []
    found += [f"completed {counted(overview.healed, 'transaction')}"] if overview.healed else []
    note = f"opening the store {' and '.join(found) or 'found nothing damaged'}"
    return [_Tile("Opened", "after a crash", note, "/settings#opening", "warning")]


def _delayed(overview: Overview) -> _Tile:
    if not overview.retries:
        return _Tile("Delayed messages", number(overview.delayed), "wait for their time", "/delayed")
    note = f"{number(overview.retries)} of those due next failed in a consumer"
    return _Tile("Delayed messages", number(overview.delayed), note, "/delayed", "warning")


def _disk(overview: Overview) -> _Tile:
    log = size(overview.log_end - overview.log_first)
    if not overview.disk_size:
        return _Tile("Log", log, "in memory", "/settings")
    used = 1 - overview.disk_free / overview.disk_size
    note = f"{size(overview.disk_free)} of the disk are free ({used:.0%} used)"
    return _Tile("Log", log, note, "/settings", "bad" if used > _FULL else "ok")


def _clients(overview: Overview) -> list[_Tile]:
    found = []
    if overview.connections is not None:
        note = f"{counted(overview.producers or 0, 'producer')}, {counted(overview.consumers or 0, 'consumer')}"
        found.append(_Tile("Connections", number(overview.connections), note, "/groups"))
    if overview.replicas or overview.replicas_required > 1:
        slowest = max((overview.log_end - one.end for one in overview.replicas), default=0)
        missing = len(overview.replicas) + 1 < overview.replicas_required
        note = f"{overview.replicas_required} copies are required; the slowest is {size(slowest)} short of the end"
        level = "bad" if missing else "warning" if slowest > 0 else "ok"
        found.append(_Tile("Replicas", number(len(overview.replicas)), note, "/#replicas", level))
    return found


PAGE: Page = Page("/", "Overview", "overview.html", _show)
