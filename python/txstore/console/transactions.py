"""The pages of transactions: pending and discarded ones, a search by key or id, and the timeline of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from txstore._native import StoredMessage
from txstore.console.messages import Reader, body_form, readers_of
from txstore.console.page import ROWS, Action, Asked, Done, Page, Part
from txstore.console.text import link, shown
from txstore.errors import InvalidNameError, InvalidOptionError, MessageNotFoundError, OffsetTooOldError
from txstore.message import LocalTransactionState, TransactionState
from txstore.transactions.trace import EventKind, TransactionTrace

__all__ = ["ACTIONS", "LIST", "PAGE"]

_LIST, _PAGE = "/transactions", "/transaction"
_AGES: Mapping[str, timedelta] = {
    "1m": timedelta(minutes=1),
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
}
_STATES = ("pending", "discarded")


def _list(asked: Asked) -> Mapping[str, Any]:
    key, state = asked.get("key"), asked.get("state") or "pending"
    if state not in _STATES:
        raise InvalidOptionError(f"state must be {' or '.join(_STATES)}, got {state!r}", option="state")
    context = {"ages": _AGES, "states": _STATES, "state": state, "found": None, "page": None, "part": None}
    if key is not None:
        return context | {"found": asked.operator.transactions_by_key(key)}
    if state == "discarded":
        start = asked.number("start", 0)
        rows, total = asked.operator.discarded_page(start, ROWS)
        return context | {"part": Part(rows, start, total)}
    return context | {"page": _pending(asked), "after": asked.get("after")}


def _pending(asked: Asked) -> Any:
    older = asked.get("older")
    if older is not None and older not in _AGES:
        raise InvalidOptionError(f"older must be one of {', '.join(_AGES)}, got {older!r}", option="older")
    return asked.operator.pending_page(
        group=asked.get("group"),
        topic=asked.get("topic"),
        id_prefix=asked.get("prefix"),
        older_than=None if older is None else _AGES[older],
        after=asked.number("after", 0) if asked.get("after") else -1,
        limit=ROWS,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """An action that is possible now."""

    name: str
    note: str
    to: str


def _show(asked: Asked) -> Mapping[str, Any]:
    trace = asked.operator.transaction(asked.need("id"))
    return {
        "trace": trace,
        "message": _message(asked, trace),
        "form": body_form(asked),
        "choices": _choices(trace),
        "readers": _readers(asked, trace),
    }


def _message(asked: Asked, trace: TransactionTrace) -> StoredMessage | None:
    try:
        return asked.operator.transaction_message(trace.transaction_id or asked.need("id"))
    except (MessageNotFoundError, OffsetTooOldError):
        return None


def _choices(trace: TransactionTrace) -> list[_Choice]:
    name = trace.transaction_id
    notes = {
        TransactionState.PENDING: [
            ("ask now", "Asks a producer of the group for the outcome, before the check is due."),
            ("commit", "Only if the local transaction has committed: consumers then see the message."),
            ("roll back", "Only if the local transaction has not committed: no consumer sees the message."),
            ("discard", "If nobody knows the outcome: parks it. It can be resumed."),
        ],
        TransactionState.DISCARDED: [("resume", "Makes it pending again; its producers are asked.")],
    }.get(trace.state, [])
    return [_Choice(what, note, link(_PATHS[what], id=name)) for what, note in notes]


def _readers(asked: Asked, trace: TransactionTrace) -> list[Reader] | None:
    """Returns which groups have read the committed message; None if there is none."""
    # One with a time is delivered later, as another record.
    in_topic = (event for event in trace.events if event.kind is EventKind.COMMITTED and event.topic == trace.topic)
    final = next(in_topic, None)
    if final is None or final.queue_id is None or final.queue_offset is None:
        return None
    try:
        return readers_of(asked, trace.topic, final.queue_id, final.queue_offset)
    except InvalidNameError:
        return None  # Its topic was deleted.


def _end(state: LocalTransactionState, asked: Asked) -> Done:
    name = asked.need("id")
    end = asked.operator.end_transaction(name, state)
    already = " already; nothing was written" if end.already else ""
    return Done(f"transaction {shown(name)}: {str(end.outcome).replace('_', ' ')}{already}", link(_PAGE, id=name))


def _discard(asked: Asked) -> Done:
    name = asked.need("id")
    asked.operator.discard(name)
    return Done(f"transaction {shown(name)}: discarded", link(_PAGE, id=name))


def _resume(asked: Asked) -> Done:
    name = asked.need("id")
    asked.operator.resume(name)
    return Done(f"transaction {shown(name)}: pending again", link(_PAGE, id=name))


def _ask(asked: Asked) -> Done:
    name = asked.need("id")
    has_producer = asked.operator.ask(name)
    said = "a producer is asked" if has_producer else "its group has no live producer, so nobody can be asked"
    return Done(f"transaction {shown(name)}: {said}", link(_PAGE, id=name))


def _question(text: str) -> Any:
    """Returns the question of an action: what the transaction is, and what will happen."""

    def question(asked: Asked) -> str:
        trace = asked.operator.transaction(asked.need("id"))
        keys = f", keys {' '.join(trace.keys)}" if trace.keys else ""
        state = trace.state.replace("_", " ")
        return f"It is {state}, of group {trace.producer_group} for topic {trace.topic}{keys}. {text}"

    return question


_PATHS = {
    "ask now": f"{_PAGE}/ask",
    "commit": f"{_PAGE}/commit",
    "roll back": f"{_PAGE}/rollback",
    "discard": f"{_PAGE}/discard",
    "resume": f"{_PAGE}/resume",
}
LIST: Page = Page(_LIST, "Transactions", "transactions.html", _list, is_admin_only=True)
PAGE: Page = Page(_PAGE, "Transaction", "transaction.html", _show, is_admin_only=True)
ACTIONS: tuple[Action, ...] = (
    Action(
        _PATHS["ask now"],
        "ask now",
        ("id",),
        _question("A producer of its group is asked for the outcome. This counts as a check."),
        _ask,
    ),
    Action(
        _PATHS["commit"],
        "commit",
        ("id",),
        _question("Its consumers will see the message. This is final. Do it only if the local transaction committed."),
        lambda asked: _end(LocalTransactionState.COMMIT, asked),
    ),
    Action(
        _PATHS["roll back"],
        "roll back",
        ("id",),
        _question(
            "No consumer will see the message. This is final. Do it only if the local transaction did not commit."
        ),
        lambda asked: _end(LocalTransactionState.ROLLBACK, asked),
    ),
    Action(
        _PATHS["discard"],
        "discard",
        ("id",),
        _question("No consumer will see the message, and nobody is asked any more, until somebody resumes it."),
        _discard,
    ),
    Action(
        _PATHS["resume"],
        "resume",
        ("id",),
        _question("It will be pending again, and its producers are asked."),
        _resume,
    ),
)
