"""Lets pending transactions of a replica escape to another broker while the source is away.

In:     pending half messages past their immunity time; producers that are connected to this replica.
Out:    half messages at another broker, which ends their transactions, and a record of each; the record for the source
        when it comes back.
Always: the record of the intent is synced before anything is sent. What may have been sent is sent again to a txstore
        alone, which recognizes it. Nothing is sent once the source answers, before it was told what has escaped.
Not here: how it is sent (`escape_target`), the record (`escape_journal`), what the source does with it (`returning`).

RocketMQ calls this an acting master with remote escape (enableSlaveActingMaster, enableRemoteEscape).
"""

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from txstore._native import ResponseCode, StoredMessage, WaitingHalf
from txstore.broker import EmbeddedBroker
from txstore.broker.escape_journal import EscapeJournal, facts_of
from txstore.client.options import ConnectConfig
from txstore.client.sending import ENDS
from txstore.config import milliseconds
from txstore.errors import (
    BrokerTimeoutError,
    BrokerUnreachableError,
    InvalidOptionError,
    MessageNotFoundError,
    ProtocolError,
    TxStoreError,
)
from txstore.listener import Checker
from txstore.message import HalfMessage, LocalTransactionState, utc
from txstore.server.escape_target import EscapeTarget, EscapeTargets, is_sendable
from txstore.server.request import OK, Refused, Reply, Request, number, text
from txstore.transactions.escaped import EscapedTransaction, EscapeState

__all__ = ["Escape", "EscapeReport", "EscapeRules", "rules_of"]

_log = logging.getLogger("txstore.escape")
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_ANSWER_SECONDS = 3.0  # How long a producer that is connected here may take for its answer.
_REFUSED_SECONDS = 30.0  # Until a transaction that a broker has refused is sent again.
_PAGE = 1_000
_ASKED_MAX = 1_000
_AWAY = (BrokerUnreachableError, BrokerTimeoutError, ProtocolError)
_STATES = {code: state for state, code in ENDS.items()}
# With these, a broker of RocketMQ has stored nothing.
_NOT_STORED = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)


class Telling(Protocol):
    """A connection to the source."""

    def call(self, name: str, /, *, timeout: float = ..., **arguments: object) -> object: ...


class EscapeReport:
    """Tells the source what has escaped, before anything else is copied from it."""

    def __init__(self, journal: EscapeJournal, *, escapes: bool) -> None:
        """`escapes`: whether this replica may let transactions escape from now on."""
        self._journal = journal
        self._escapes = escapes
        self._told = -1
        self.refusal: str | None = None
        """Why the source does not let this replica do it; None if it does."""

    def tell(self, source: Telling, replica: str) -> None:
        """Tells what is new. Raises what the call raises, except a refusal of the source."""
        version, escapes = self._journal.version, self._journal.escapes()
        if version == self._told or not (self._escapes or self._journal.is_own_known or escapes):
            return
        rows = [json.dumps(facts_of(one)) for one in escapes]
        try:
            source.call("note_escaped", replica=replica, escapes=self._escapes, rows=rows)
            self.refusal = None
            self._journal.note_own(escapes=self._escapes)
        except InvalidOptionError as error:
            if error.option != "escape_to":
                raise
            if self.refusal is None:
                _log.error("nothing escapes from this replica: %s", error)
            self.refusal = str(error)
        self._told = version

    def source_answers(self, source: Telling, replica: str) -> None:
        """Tells everything again: the source may be another process. Raises as `tell` does."""
        self._told = -1
        self.tell(source, replica)

    def source_left(self) -> None:
        """Does nothing: there is nobody to tell."""


@dataclass(frozen=True, slots=True)
class EscapeRules:
    """When transactions escape, and where to."""

    name_server: str
    after_seconds: float
    """How long the source must have been away."""
    immunity_ms: int
    """Of half messages without one of their own."""


@dataclass(slots=True)
class _Asked:
    """A check that a producer was sent by this replica."""

    physical_offset: int
    producer_group: str
    until: float
    answer: LocalTransactionState | None = None


class Escape:
    """Lets transactions escape, in a thread of its own."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        journal: EscapeJournal,
        rules: EscapeRules,
        config: ConnectConfig,
        *,
        report: EscapeReport,
        checkers: Callable[[str, str, str | None], list[Checker]],
        may_escape: Callable[[], bool],
        settled: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`checkers` returns those of a group's connected producers for a topic and a tag. `may_escape`: whether this
        node is a replica that lacks its source. `settled` is called after it was settled what has been sent.
        """
        self._broker, self._store, self._journal, self._rules = broker, broker.store, journal, rules
        self._config, self._report, self._checkers = config, report, checkers
        self._may_escape, self._settled, self._monotonic = may_escape, settled, monotonic
        self._lock = threading.Lock()  # Held while one transaction is sent.
        self._away_since: float | None = monotonic()
        self._asked: dict[int, _Asked] = {}
        self._skipped: set[int] = set()
        self._refused: dict[int, float] = {}  # By half queue offset: when to try again.
        self._told = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txstore-escape", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops after the transaction that is being sent. Idempotent."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    # Calls of the replica's own thread

    def source_answers(self, source: Telling, replica: str) -> None:
        """Ends escaping, and tells the source what has escaped. Raises what the call raises."""
        with self._lock:
            self._away_since = None
        self._report.source_answers(source, replica)

    def tell(self, source: Telling, replica: str) -> None:
        """Tells the source what has been settled since. Raises what the call raises."""
        self._report.tell(source, replica)

    def source_left(self) -> None:
        """Notes that the source no longer answers."""
        with self._lock:
            if self._away_since is None:
                self._away_since = self._monotonic()

    # Answers of producers

    def answered(self, request: Request) -> Reply:
        """Takes END_TRANSACTION, the answer to a check of this replica. Raises Refused if it asked no such question."""
        fields = request.ext_fields
        key, at = number(fields, "tranStateTableOffset"), number(fields, "commitLogOffset")
        state = _STATES.get(number(fields, "commitOrRollback"))
        asked = self._asked.get(key)
        if (
            asked is None
            or state is None
            or (asked.physical_offset, asked.producer_group)
            != (
                at,
                text(fields, "producerGroup"),
            )
        ):
            remark = "this is a replica: it takes no ends of transactions, except answers to checks of its own"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        asked.answer = state
        return OK

    # The thread

    def _run(self) -> None:
        with EscapeTargets(self._rules.name_server, self._config, self._broker.config.broker_name) as targets:
            while not self._stopped.is_set():
                pause = _AGAIN_SECONDS
                try:
                    self._settle(targets)
                    pause = self._round(targets)
                    self._tell("")
                except TxStoreError as error:
                    self._tell(str(error))
                except Exception:
                    _log.exception("transactions could not escape")
                self._stopped.wait(pause)

    def _settle(self, targets: EscapeTargets) -> None:
        """Finds out about what was being sent when an answer was lost, or this process ended."""
        for one in self._journal.escapes():
            if one.state is EscapeState.SENDING and not self._stopped.is_set():
                try:
                    with self._lock:
                        self._settle_one(targets, one)
                except _AWAY as error:
                    self._tell(str(error))
                    return
                self._settled()

    def _settle_one(self, targets: EscapeTargets, one: EscapedTransaction) -> None:
        if not one.is_txstore:
            self._record(one, EscapeState.IN_DOUBT)
            return
        target, queue_id = targets.choose(one.topic, one.broker_name)
        answer = target.send(self._store.half(one.half_queue_offset), queue_id)
        if target.has(answer):
            self._record(one, EscapeState.SENT)
        else:
            self._tell(f"broker {target.name} does not say whether it has {one.transaction_id}: {answer.remark}")

    def _round(self, targets: EscapeTargets) -> float:
        """Lets what is due escape. Returns the seconds until the next look."""
        if not self._is_away():
            self._asked.clear()
            return _AGAIN_SECONDS
        after = -1
        while page := self._store.halves_waiting(after, _PAGE):
            for waiting in page:
                if self._stopped.is_set() or not self._is_away():
                    return _AGAIN_SECONDS
                if self._is_due(waiting):
                    self._handle(targets, waiting)
            after = page[-1].half_queue_offset
        return _LOOK_SECONDS if self._asked else _AGAIN_SECONDS

    def _is_away(self) -> bool:
        since = self._away_since
        is_long = since is not None and self._monotonic() - since >= self._rules.after_seconds
        return is_long and self._report.refusal is None and self._may_escape()

    def _is_due(self, waiting: WaitingHalf) -> bool:
        known = self._journal.get(waiting.half_queue_offset)
        if known is not None and known.state is not EscapeState.REFUSED:
            return False
        if self._monotonic() < self._refused.get(waiting.half_queue_offset, 0.0):
            return False
        own = waiting.immunity_ms
        return waiting.age_ms >= (self._rules.immunity_ms if own is None else own)

    def _handle(self, targets: EscapeTargets, waiting: WaitingHalf) -> None:
        key = waiting.half_queue_offset
        try:
            stored = self._store.half(key)
        except MessageNotFoundError:
            return  # It was copied, and the source has not said that its readers see it.
        if not is_sendable(stored):
            if key not in self._skipped:
                self._skipped.add(key)
                _log.warning(
                    "transaction %s has several messages or a time, and waits for the source: it cannot escape",
                    HalfMessage(stored).transaction_id,
                )
            return
        asked = self._asked.get(key)
        if asked is None:
            asked = self._ask(waiting, stored)
        if asked is not None and asked.answer is None and self._monotonic() < asked.until:
            return
        answer = LocalTransactionState.UNKNOWN if asked is None or asked.answer is None else asked.answer
        self._let_escape(targets, waiting, stored, answer)
        self._asked.pop(key, None)

    def _ask(self, waiting: WaitingHalf, stored: StoredMessage) -> _Asked | None:
        """Asks a producer that is connected here. Returns None if there is none."""
        half = HalfMessage(stored)
        checkers = self._checkers(waiting.producer_group, half.topic, half.tags)
        if not checkers or len(self._asked) >= _ASKED_MAX:
            return None
        until = self._monotonic() + _ANSWER_SECONDS
        asked = _Asked(waiting.prepared_transaction_offset, waiting.producer_group, until)
        self._asked[waiting.half_queue_offset] = asked
        for checker in checkers:
            try:
                checker(half)
            except ConnectionError:
                continue
            return asked
        del self._asked[waiting.half_queue_offset]
        return None

    def _let_escape(
        self, targets: EscapeTargets, waiting: WaitingHalf, stored: StoredMessage, answer: LocalTransactionState
    ) -> None:
        half = HalfMessage(stored)
        is_rolled_back = answer is LocalTransactionState.ROLLBACK
        chosen = None if is_rolled_back else targets.choose(half.topic)
        intent = EscapedTransaction(
            transaction_id=half.transaction_id or half.message_id,
            producer_group=waiting.producer_group,
            topic=half.topic,
            half_queue_offset=waiting.half_queue_offset,
            physical_offset=waiting.prepared_transaction_offset,
            broker_name="" if chosen is None else chosen[0].name,
            is_txstore=chosen is not None and chosen[0].is_txstore,
            state=EscapeState.SENDING,
            time=_now(),
        )
        with self._lock:
            if not self._is_away():
                return
            if chosen is None:
                self._record(intent, EscapeState.ROLLED_BACK)
                return
            self._record(intent, EscapeState.SENDING)
            self._send(intent, *chosen, stored, answer)

    def _send(
        self,
        intent: EscapedTransaction,
        target: EscapeTarget,
        queue_id: int,
        stored: StoredMessage,
        decision: LocalTransactionState,
    ) -> None:
        try:
            answer = target.send(stored, queue_id)
        except (BrokerUnreachableError, BrokerTimeoutError) as error:
            if not error.in_doubt:
                self._record(intent, EscapeState.REFUSED)
            raise  # What is in doubt is settled next.
        if not target.has(answer):
            # A txstore that refuses has stored nothing, too, but only a resend tells that about an earlier send.
            not_stored = target.is_txstore or answer.code in _NOT_STORED
            self._record(intent, EscapeState.REFUSED if not_stored else EscapeState.IN_DOUBT)
            self._refused[intent.half_queue_offset] = self._monotonic() + _REFUSED_SECONDS
            name, why = intent.transaction_id, f"code {answer.code}: {answer.remark}"
            _log.warning("broker %s refuses transaction %s: %s", target.name, name, why)
            return
        self._record(intent, EscapeState.SENT)
        if decision is LocalTransactionState.COMMIT and answer.code != ResponseCode.TRANSACTION_FAILED:
            target.commit(stored, answer)  # Otherwise the other broker asks by itself.

    def _record(self, one: EscapedTransaction, state: EscapeState) -> None:
        self._journal.add([dataclasses.replace(one, state=state, time=_now())])
        if state is not EscapeState.SENDING:
            fields = {"transaction_id": one.transaction_id, "group": one.producer_group, "broker": one.broker_name}
            level = logging.INFO if state in (EscapeState.SENT, EscapeState.ROLLED_BACK) else logging.WARNING
            _log.log(
                level, "transaction %s escapes to %s: %s", one.transaction_id, one.broker_name, state, extra=fields
            )

    def _tell(self, why: str) -> None:
        if why != self._told:
            self._told = why
            if why:
                _log.warning("transactions cannot escape: %s", why)


def rules_of(broker: EmbeddedBroker, name_server: str, after_seconds: float) -> EscapeRules:
    """Returns the rules of a store."""
    return EscapeRules(name_server, after_seconds, milliseconds(broker.config.transaction_timeout))


def _now() -> datetime:
    return utc(time.time_ns() // 1_000_000)
