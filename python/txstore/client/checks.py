"""Answers the transaction checks of brokers with the checkers of this client's producers.

In:     CHECK_TRANSACTION_STATE with the half message. The broker decides when a check is due.
Out:    END_TRANSACTION on the same connection.
Always: any producer of the group may answer, also for a process that has ended. Checkers run in a bounded pool; a
        missing answer counts as UNKNOWN. While the local transaction still runs here, no checker is called.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from txstore._native import RemotingCommand, RequestCode, ResponseCode, StoredMessage, decode_records
from txstore.client.client import Client
from txstore.client.connection import Connection
from txstore.client.sending import Sending, end_fields
from txstore.errors import ProtocolError, TxStoreError
from txstore.interface import ProducerMember
from txstore.listener import Checker
from txstore.message import HalfMessage, LocalTransactionState
from txstore.remoting.refusals import refusal
from txstore.transactions.answer import answer_of
from txstore.transactions.pool import Pool, Result

__all__ = ["Checks"]

_log = logging.getLogger("txstore.remoting")
_EXPIRE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Asked:
    """The half message that a check is about."""

    message_id: str
    transaction_id: str
    topic: str
    queue_offset: int
    physical_offset: int


class Checks:
    """Answers the checks for one client. Calls no checker after `stop`."""

    def __init__(self, client: Client, sending: Sending) -> None:
        self._client = client
        self._sending = sending
        options = client.options
        self._pool = Pool(options.check_threads, options.seconds("check_time_limit"), time.monotonic)
        client.listeners[RequestCode.CHECK_TRANSACTION_STATE] = self._handle
        client.background_tasks.append(self._expire)

    def stop(self, wait: float) -> bool:
        """Stops and waits up to `wait` seconds for running checks. Must not be called on the loop."""
        return self._pool.stop(wait)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            self._pool.expire()

    def _handle(self, connection: Connection, request: RemotingCommand) -> None:
        facts = request.ext_fields
        records = decode_records(request.body)
        try:
            (stored,) = records
            queue_offset, physical_offset = int(facts["tranStateTableOffset"]), int(facts["commitLogOffset"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"malformed check, expected one half message and its offsets: {error!r}") from error
        half = HalfMessage(stored)
        name = facts.get("transactionId") or half.transaction_id or half.message_id
        asked = _Asked(half.message_id, name, half.topic, queue_offset, physical_offset)
        if self._sending.is_running(half.message_id):
            _log.debug("transaction %s still runs here: its checker is not called", name)
            if self._client.is_store or connection.number is not None:
                # Without an answer, a txstore server would ask another process, which may not know the transaction.
                fields = end_fields(asked, half.producer_group or "", LocalTransactionState.UNKNOWN, from_check=True)
                connection.tell(RequestCode.END_TRANSACTION, fields)
        elif self._sending.is_settled(asked.message_id, connection):
            self._drop_copy(connection, half.producer_group or "", asked)
        elif not self._ask(connection, stored, half, asked):
            _log.warning(
                "transaction %s of group %s: no producer here can answer its check",
                name,
                half.producer_group,
                extra={"transaction_id": name, "group": half.producer_group, "address": connection.address},
            )

    def _drop_copy(self, connection: Connection, group: str, asked: _Asked) -> None:
        """Rolls back a copy of a half message whose transaction has ended.

        RocketMQ may check a copy that it put back after the transaction ended. A second commit would append the
        message once more (apache/rocketmq#5574). The rollback of the copy does not undo the commit.
        """
        if self._sending.is_copy(asked.message_id, asked.queue_offset):
            connection.tell(
                RequestCode.END_TRANSACTION, end_fields(asked, group, LocalTransactionState.ROLLBACK, from_check=True)
            )

    def _ask(self, connection: Connection, stored: StoredMessage, half: HalfMessage, asked: _Asked) -> bool:
        """Hands the check to the first producer of the group that has a checker for it and a free slot."""
        group = stored.producer_group or ""
        for number, member in self._client.producers.of_group(group):
            checker = member.checker_for(half.topic, half.tags)
            if checker is not None and self._submit(connection, number, member, checker, half, group, asked):
                return True
        return False

    def _submit(
        self,
        connection: Connection,
        number: int,
        member: ProducerMember,
        checker: Checker,
        half: HalfMessage,
        group: str,
        asked: _Asked,
    ) -> bool:
        loop = self._client.loop

        def starting() -> bool:
            return self._client.producers.get(number) is member

        def done(result: Result) -> None:
            answer = answer_of(result)
            _log.log(
                logging.INFO if answer.reason is None else logging.WARNING,
                "transaction %s of group %s: check answered %s%s",
                asked.transaction_id,
                group,
                answer.state.name,
                "" if answer.reason is None else f": {answer.reason}",
                extra={"transaction_id": asked.transaction_id, "group": group, "answer": answer.state.name},
            )
            loop.call_soon_threadsafe(self._client.spawn, self._end(connection, group, asked, answer.state))

        key = (connection.address, asked.queue_offset)
        return self._pool.submit(number, key, lambda: checker(half), starting=starting, done=done)

    async def _end(self, connection: Connection, group: str, asked: _Asked, state: LocalTransactionState) -> None:
        """Sends the answer. Brokers confirm COMMIT and ROLLBACK, not UNKNOWN. A lost answer is asked for again."""
        fields = end_fields(asked, group, state, from_check=True)
        try:
            if state is LocalTransactionState.UNKNOWN:
                connection.tell(RequestCode.END_TRANSACTION, fields)
                return
            timeout = self._client.options.seconds("end_timeout")
            answer = await connection.call(RequestCode.END_TRANSACTION, fields, timeout=timeout)
            if answer.code == ResponseCode.SUCCESS:
                self._sending.note_settled(asked.message_id, connection)
            else:
                raise refusal(answer, f"the end of transaction {asked.transaction_id}", connection.address)
        except TxStoreError as error:
            _log.warning("the answer to a check could not be sent, the broker will ask again: %s", error)
