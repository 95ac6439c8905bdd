"""A process with RocketMQ's Python client, driven by JSON lines: a command a line on stdin, a reply a line on stdout.

In:     {"id", "command", and its arguments}.
Out:    {"id", "result"}, or {"id", "error", "code"}.
Always: commands run concurrently, each in its own thread; the end of stdin ends the process. What is right, the
        scenarios decide.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

Facts = dict[str, Any]
REQUEST_TIMEOUT_S = 30
RESOLUTIONS = {
    "COMMIT": TransactionResolution.COMMIT,
    "ROLLBACK": TransactionResolution.ROLLBACK,
    "UNKNOWN": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


def configuration(facts: Facts) -> ClientConfiguration:
    """With a longer limit than the client's three seconds: a producer whose first route is later starts without one,
    reports nothing, and opens no stream for ten seconds."""
    credentials = Credentials(facts.get("access_key", ""), facts.get("secret_key", ""))
    return ClientConfiguration(facts["endpoints"], credentials, request_timeout=REQUEST_TIMEOUT_S)


def message_of(facts: Facts) -> Message:
    message = Message()
    message.topic = facts["topic"]
    message.body = facts["body"].encode() if "body" in facts else bytes(facts["body_bytes"])
    if "tag" in facts:
        message.tag = facts["tag"]
    for key in facts.get("keys", []):
        message.keys = key
    for name, value in facts.get("properties", {}).items():
        message.add_property(name, value)
    if "message_group" in facts:
        message.message_group = facts["message_group"]
    if "deliver_ms" in facts:
        message.delivery_timestamp = facts["deliver_ms"] // 1000  # The client takes seconds.
    return message


def facts_of(message: Message) -> Facts:
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "message_group": message.message_group or None,
        "attempt": message.delivery_attempt,
        "corrupted": message.corrupted,
        "at_ms": int(time.time() * 1000),
    }


def subscription(facts: Facts) -> dict[str, FilterExpression]:
    if "sql" in facts:
        return {facts["topic"]: FilterExpression(facts["sql"], FilterType.SQL)}
    return {facts["topic"]: FilterExpression(facts.get("tags", "*"))}


class Checks(TransactionChecker):  # type: ignore[misc]
    """Answers checks by the body; the last answer is repeated."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers = answers
        self.log: list[str] = []

    def check(self, message: Message) -> Any:
        body = message.body.decode()
        said = self.answers.get(body, ["UNKNOWN"])
        answer = said[min(self.log.count(body), len(said) - 1)]
        self.log.append(body)
        return RESOLUTIONS[answer]


class Listener(MessageListener):  # type: ignore[misc]
    """Fails a body as often as it was told."""

    def __init__(self, fail: dict[str, int]) -> None:
        self.fail = fail
        self.log: list[Facts] = []
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def consume(self, message: Message) -> Any:
        with self._lock:
            body = message.body.decode()
            self._seen[body] += 1
            failed = self._seen[body] <= self.fail.get(body, 0)
            self.log.append(facts_of(message) | {"failed": failed})
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS


class Program:
    """The clients of this process, by handle."""

    def __init__(self) -> None:
        self._handles = itertools.count(1)
        self._clients: dict[int, Any] = {}
        self._told: dict[int, Any] = {}
        self._messages: dict[int, Message] = {}

    def _hold(self, client: Any, told: Any = None) -> int:
        handle = next(self._handles)
        client.startup()
        self._clients[handle], self._told[handle] = client, told
        return handle

    def producer_start(self, facts: Facts) -> int:
        checks = Checks(facts["answers"]) if "answers" in facts else None
        producer = Producer(configuration(facts), facts["topics"], checks, tls_enable=facts.get("tls", False))
        return self._hold(producer, checks)

    def producer_send(self, facts: Facts) -> Facts:
        receipt = self._clients[facts["handle"]].send(message_of(facts))
        return {"message_id": receipt.message_id, "recall_handle": receipt.recall_handle}

    def producer_transact(self, facts: Facts) -> Facts:
        producer = self._clients[facts["handle"]]
        transaction = producer.begin_transaction()
        receipt = producer.send(message_of(facts), transaction)
        if facts["end"] == "COMMIT":
            transaction.commit()
        elif facts["end"] == "ROLLBACK":
            transaction.rollback()
        return {"message_id": receipt.message_id}

    def producer_recall(self, facts: Facts) -> None:
        self._clients[facts["handle"]].recall_message(facts["topic"], facts["recall_handle"])

    def producer_checks(self, facts: Facts) -> list[str]:
        return list(self._told[facts["handle"]].log)

    def simple_start(self, facts: Facts) -> int:
        consumer = SimpleConsumer(
            configuration(facts),
            facts["group"],
            subscription(facts),
            await_duration=facts["await_s"],
            tls_enable=facts.get("tls", False),
        )
        return self._hold(consumer)

    def simple_receive(self, facts: Facts) -> list[Facts]:
        messages = self._clients[facts["handle"]].receive(facts["max"], facts["invisible_s"]) or []
        found = []
        for message in messages:
            number = next(self._handles)
            self._messages[number] = message
            found.append(facts_of(message) | {"number": number})
        return found

    def simple_ack(self, facts: Facts) -> None:
        self._clients[facts["handle"]].ack(self._messages[facts["number"]])

    def simple_change(self, facts: Facts) -> None:
        message = self._messages[facts["number"]]
        self._clients[facts["handle"]].change_invisible_duration(message, facts["invisible_s"])

    def push_start(self, facts: Facts) -> int:
        listener = Listener(facts.get("fail", {}))
        consumer = PushConsumer(
            configuration(facts), facts["group"], listener, subscription(facts), tls_enable=facts.get("tls", False)
        )
        return self._hold(consumer, listener)

    def push_received(self, facts: Facts) -> list[Facts]:
        return list(self._told[facts["handle"]].log)

    def stop(self, facts: Facts) -> None:
        self._clients.pop(facts["handle"]).shutdown()

    def reply(self, line: str) -> Facts:
        facts = json.loads(line)
        try:
            return {"id": facts["id"], "result": getattr(self, facts["command"].replace(".", "_"))(facts)}
        except Exception as problem:
            code = getattr(problem, "code", None)
            error = f"{type(problem).__name__}: {problem}"
            return {"id": facts["id"], "error": error, "code": code if isinstance(code, int) else None}


def main() -> None:
    # What the client prints must not appear between replies.
    out, sys.stdout = sys.stdout, sys.stderr
    program, lock = Program(), threading.Lock()

    def answer(line: str) -> None:
        reply = json.dumps(program.reply(line))
        with lock:
            print(reply, file=out, flush=True)

    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            pool.submit(answer, line)
        os._exit(0)


if __name__ == "__main__":
    main()
