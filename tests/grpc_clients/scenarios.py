"""What each client is asked to do: the same on every server.

In:     a scene.
Out:    what was seen, without ids and times, so that two servers can be compared; or ProgramError with the code of
        a refusal.
Always: a scenario checks what every server must do by itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.grpc_clients.scenes import Facts, Scene, bodies_of
from tests.waiting import eventually

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True)
class Scenario:
    """`refused`: the code that every server must answer. `accounts`: on a server with accounts."""

    name: str
    feature: str
    run: Callable[[Scene], Facts]
    refused: int | None = None
    accounts: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    feature: str, *, refused: int | None = None, accounts: bool = False
) -> Callable[[Callable[[Scene], Facts]], Callable[[Scene], Facts]]:
    def add(run: Callable[[Scene], Facts]) -> Callable[[Scene], Facts]:
        SCENARIOS[run.__name__] = Scenario(run.__name__, feature, run, refused, accounts)
        return run

    return add


DETAILS: Facts = {"tag": "paid", "keys": ["k1", "k2"], "properties": {"colour": "blau ü", "size": "3"}}
IN_ORDER = {f"g{rest}": [str(number) for number in range(12) if number % 3 == rest] for rest in range(3)}
"""The bodies of each message group, where twelve messages went to three groups by turns."""


# Producers ------------------------------------------------------------------------------------------------------------


@scenario("send; tag, keys and properties are stored")
def send(scene: Scene) -> Facts:
    topic = scene.topic()
    producer = scene.producer(topic)
    sent = [scene.send(producer, topic, f"body {n} ü", **DETAILS) for n in range(8)]
    stored = scene.stored(topic, len(sent))
    assert {one.properties["UNIQ_KEY"] for one in stored} == {message["message_id"] for message in sent}
    assert Counter(one.body for one in stored) == Counter(f"body {n} ü" for n in range(8))
    wanted = {"TAGS": "paid"} | DETAILS["properties"]
    for one in stored:
        assert {name: one.properties.get(name) for name in wanted} == wanted
        assert sorted(one.properties["KEYS"].split()) == DETAILS["keys"]
    return {}


@scenario("send in message groups (FIFO), each group in one queue and in order")
def send_fifo(scene: Scene) -> Facts:
    topic = scene.topic("FIFO")
    producer = scene.producer(topic)
    for number in range(12):
        scene.send(producer, topic, str(number), message_group=f"g{number % 3}")
    order: dict[str, list[str]] = {}
    for one in scene.stored(topic, 12):
        order.setdefault(one.properties["__SHARDINGKEY"], []).append(one.body)
    assert order == IN_ORDER
    return {}


def delayed(scene: Scene, seconds: int) -> Facts:
    """In whole seconds, because some clients know no other times."""
    topic = scene.topic("DELAY")
    producer = scene.producer(topic)
    due_ms = (int(time.time()) + seconds) * 1000
    scene.send(producer, topic, "later", deliver_ms=due_ms)
    (one,) = scene.stored(topic, 1)
    assert one.stored_ms >= due_ms - 1_000, "it came too soon"
    return {}


@scenario("send with a delivery time in 30 s")
def send_delayed(scene: Scene) -> Facts:
    return delayed(scene, 30)


@scenario("send with a delivery time in 20 s")
def send_delayed_anyhow(scene: Scene) -> Facts:
    return delayed(scene, 20)


@scenario("recall a delayed message")
def recall(scene: Scene) -> Facts:
    topic = scene.topic("DELAY")
    producer = scene.producer(topic)
    due_ms = (int(time.time()) + 30) * 1000
    recalled = scene.send(producer, topic, "recalled", deliver_ms=due_ms)
    scene.call("producer.recall", handle=producer, topic=topic, recall_handle=recalled.get("recall_handle"))
    scene.send(producer, topic, "kept", deliver_ms=due_ms)
    (one,) = scene.stored(topic, 1)
    assert one.body == "kept"
    return {}


# Transactions ---------------------------------------------------------------------------------------------------------


@scenario("transaction: commit")
def commit(scene: Scene) -> Facts:
    topic = scene.topic("TRANSACTION")
    producer = scene.producer(topic, answers={})
    sent = scene.transact(producer, topic, "committed", "COMMIT")
    (one,) = scene.stored(topic, 1)
    assert (one.properties["UNIQ_KEY"], one.body) == (sent["message_id"], "committed")
    return {}


@scenario("transaction: roll back")
def roll_back(scene: Scene) -> Facts:
    topic = scene.topic("TRANSACTION")
    producer = scene.producer(topic, answers={})
    scene.transact(producer, topic, "rolled back", "ROLLBACK")
    scene.transact(producer, topic, "committed", "COMMIT")
    (one,) = scene.stored(topic, 1)
    assert one.body == "committed"
    return {}


@scenario("transaction: the server asks, first answer unknown, then commit or roll back")
def check(scene: Scene) -> Facts:
    topic = scene.topic("TRANSACTION")
    answers = {"paid": ["UNKNOWN", "COMMIT"], "not paid": ["UNKNOWN", "ROLLBACK"]}
    producer = scene.producer(topic, answers=answers)
    for body in answers:
        scene.transact(producer, topic, body, "NONE")
    eventually(lambda: all(scene.checks(producer).count(body) >= 2 for body in answers), 120)
    (one,) = scene.stored(topic, 1)
    assert one.body == "paid"
    return {}


@scenario("transaction: its producer was killed, another one of the topic is asked")
def orphan(scene: Scene) -> Facts:
    topic = scene.topic("TRANSACTION")
    with scene.another() as process:
        dying = scene.within(process)
        dying.transact(dying.producer(topic, answers={}), topic, "orphan", "NONE")
        process.kill()
    heir = scene.producer(topic, answers={"orphan": ["COMMIT"]})
    (one,) = scene.stored(topic, 1)
    assert one.body == "orphan"
    return {"asked": sorted(set(scene.checks(heir)))}


# Simple consumers -----------------------------------------------------------------------------------------------------


@scenario("SimpleConsumer: receive with tag, keys and properties, and acknowledge")
def simple(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic)
    sent = [scene.send(producer, topic, f"body {n} ü", **DETAILS) for n in range(20)]
    received = scene.take(consumer, 20, invisible_s=10)
    # Acknowledged messages do not come again, though their invisible duration ends.
    scene.stop(consumer)
    received += scene.receive(scene.simple(group, topic, await_s=15))
    assert Counter(message["message_id"] for message in received) == Counter(message["message_id"] for message in sent)
    assert Counter(bodies_of(received)) == Counter(f"body {n} ü" for n in range(20))
    seen = [{name: message[name] for name in (*DETAILS, "attempt")} for message in received]
    assert all(one == DETAILS | {"attempt": 1} for one in seen), seen
    return {"messages": len(received)}


@scenario("SimpleConsumer: message groups (FIFO) in order")
def simple_fifo(scene: Scene) -> Facts:
    topic, group = scene.topic("FIFO"), scene.group(fifo=True)
    producer, consumer = scene.producer(topic), scene.simple(group, topic)
    for number in range(12):
        scene.send(producer, topic, str(number), message_group=f"g{number % 3}")
    order: dict[str, list[str]] = {}
    for message in scene.take(consumer, 12):
        order.setdefault(message["message_group"], []).append(message["body"])
    assert order == IN_ORDER
    return {}


@scenario("SimpleConsumer: not acknowledged, received again with its attempt")
def redelivery(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic)
    scene.send(producer, topic, "again")
    (first,) = scene.take(consumer, 1, ack=False, invisible_s=10)
    (second,) = scene.take(consumer, 1)
    assert second["at_ms"] - first["at_ms"] >= 8_000, "it came before its invisible duration was over"
    assert second["message_id"] == first["message_id"]
    return {"attempts": [first["attempt"], second["attempt"]]}


@scenario("SimpleConsumer: change the invisible duration")
def change_invisible_duration(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic)
    scene.send(producer, topic, "sooner")
    (first,) = scene.take(consumer, 1, ack=False, invisible_s=600)
    scene.call("simple.change", handle=consumer, number=first["number"], invisible_s=10)
    (second,) = scene.take(consumer, 1)
    return {"attempts": [first["attempt"], second["attempt"]]}


@scenario("SimpleConsumer: acknowledge with an expired handle", refused=40013)
def expired_handle(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic)
    scene.send(producer, topic, "late")
    (first,) = scene.take(consumer, 1, ack=False, invisible_s=10)
    scene.take(consumer, 1, ack=False)
    scene.ack(consumer, first)
    return {}


@scenario("SimpleConsumer: filter by tags")
def tags(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic, tags="a || b")
    for number in range(12):
        scene.send(producer, topic, str(number), tag="abc"[number % 3])
    received = scene.take(consumer, 8)
    assert Counter(bodies_of(received)) == Counter(str(number) for number in range(12) if number % 3 < 2)
    return {"tags": dict(sorted(Counter(message["tag"] for message in received).items()))}


SQL = "(TAGS = 'a' OR colour = 'blue') AND size BETWEEN 2 AND 9 AND missing IS NULL"


def send_for_sql(scene: Scene, topic: str) -> list[str]:
    """Sends twelve messages; the bodies of those that the expression wants."""
    producer, wanted = scene.producer(topic), []
    for number in range(12):
        tag, colour = "abc"[number % 3], ["blue", "red"][number % 2]
        scene.send(producer, topic, str(number), tag=tag, properties={"colour": colour, "size": str(number)})
        if (tag == "a" or colour == "blue") and 2 <= number <= 9:
            wanted.append(str(number))
    return wanted


@scenario("SimpleConsumer: filter by an SQL92 expression over tag and properties")
def sql(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    consumer = scene.simple(group, topic, sql=SQL)
    wanted = send_for_sql(scene, topic)
    received = scene.take(consumer, len(wanted))
    received += scene.receive(consumer)  # A poll that waits for more finds nothing.
    assert Counter(bodies_of(received)) == Counter(wanted)
    return {"messages": len(received)}


@scenario("SimpleConsumer: a wrong SQL92 expression", refused=40010)
def wrong_sql(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic, sql="size >")
    scene.send(producer, topic, "unread")
    return {"received": bodies_of(scene.receive(consumer))}


@scenario("SimpleConsumer: a long poll ends with the first message")
def long_poll(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic, await_s=20)
    polling = scene.program.begin("simple.receive", handle=consumer, max=32, invisible_s=30)
    # The poll waits at the server; nothing tells from when on.
    time.sleep(1)
    assert not polling.done()
    scene.send(producer, topic, "woken")
    return {"received": bodies_of(polling.result(60))}


@scenario("SimpleConsumer: a long poll finds nothing")
def empty_poll(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    consumer = scene.simple(group, topic)
    began = time.monotonic()
    received = scene.call("simple.receive", handle=consumer, max=32, invisible_s=30)
    return {"received": received, "waited": time.monotonic() - began > 3}


# Push consumers -------------------------------------------------------------------------------------------------------


@scenario("PushConsumer: consume")
def push(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    consumer, producer = scene.push(group, topic, tags="a"), scene.producer(topic)
    for number in range(20):
        scene.send(producer, topic, str(number), tag="ab"[number % 2])
    received = scene.pushed(consumer, 10)
    assert Counter(bodies_of(received)) == Counter(str(number) for number in range(0, 20, 2))
    return {"attempts": sorted({message["attempt"] for message in received})}


@scenario("PushConsumer: filter by an SQL92 expression over tag and properties")
def push_sql(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    consumer = scene.push(group, topic, sql=SQL)
    wanted = send_for_sql(scene, topic)
    received = scene.pushed(consumer, len(wanted))
    assert Counter(bodies_of(received)) == Counter(wanted)
    return {"messages": len(received)}


@scenario("PushConsumer: failed, delivered again with its attempt")
def push_retry(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    consumer = scene.push(group, topic, fail={"fails twice": 2})
    producer = scene.producer(topic)
    for body in ("fails twice", "works"):
        scene.send(producer, topic, body)
    received = scene.pushed(consumer, 4)
    attempts = {body: [m["attempt"] for m in received if m["body"] == body] for body in ("fails twice", "works")}
    return {"attempts": attempts}


@scenario("PushConsumer: dead letter after the last attempt")
def dead_letter(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group(attempts=2)
    consumer = scene.push(group, topic, fail={"fails": 99})
    producer = scene.producer(topic)
    scene.send(producer, topic, "fails")
    eventually(lambda: scene.server.dead_letters(group) > 0, 120)
    received = scene.call("push.received", handle=consumer)
    return {"attempts": [message["attempt"] for message in received], "letters": scene.server.dead_letters(group)}


@scenario("PushConsumer: FIFO, order kept after a failure")
def push_fifo(scene: Scene) -> Facts:
    topic, group = scene.topic("FIFO"), scene.group(fifo=True)
    consumer = scene.push(group, topic, fail={"3": 1})
    producer = scene.producer(topic)
    for number in range(12):
        scene.send(producer, topic, str(number), message_group=f"g{number % 3}")
    received = scene.pushed(consumer, 13)
    order: dict[str, list[str]] = {}
    for message in received:
        if not message["failed"]:
            order.setdefault(message["message_group"], []).append(message["body"])
    assert order == IN_ORDER
    return {"attempts": [message["attempt"] for message in received if message["body"] == "3"]}


@scenario("PushConsumer: FIFO, dead letter after the last attempt")
def dead_letter_fifo(scene: Scene) -> Facts:
    topic, group = scene.topic("FIFO"), scene.group(fifo=True, attempts=2)
    consumer = scene.push(group, topic, fail={"fails": 99})
    producer = scene.producer(topic)
    for body in ("fails", "next"):
        scene.send(producer, topic, body, message_group="g")
    eventually(lambda: "next" in bodies_of(scene.call("push.received", handle=consumer)), 120)
    eventually(lambda: scene.server.dead_letters(group) > 0, 120)
    received = scene.call("push.received", handle=consumer)
    return {"order": bodies_of(received), "letters": scene.server.dead_letters(group)}


# Refusals -------------------------------------------------------------------------------------------------------------


@scenario("a topic that does not exist", refused=40402)
def unknown_topic(scene: Scene) -> Facts:
    topic = f"{scene.prefix}-nowhere"
    scene.send(scene.producer(topic), topic, "lost")
    return {}


@scenario("a system topic", refused=40002)
def illegal_topic(scene: Scene) -> Facts:
    topic = "RMQ_SYS_TRANS_HALF_TOPIC"
    scene.send(scene.producer(topic), topic, "lost")
    return {}


@scenario("a message type that the topic does not take", refused=40014)
def wrong_type(scene: Scene) -> Facts:
    topic = scene.topic()
    scene.send(scene.producer(topic), topic, "lost", message_group="g")
    return {}


@scenario("a body of more than 4 MiB", refused=41301)
def too_large(scene: Scene) -> Facts:
    topic = scene.topic()
    producer = scene.producer(topic)
    scene.call("producer.send", handle=producer, topic=topic, body_bytes=(4 << 20) + 1)
    return {}


@scenario("a message group of more than 64 bytes", refused=40006)
def illegal_message_group(scene: Scene) -> Facts:
    topic = scene.topic("FIFO")
    scene.send(scene.producer(topic), topic, "lost", message_group="g" * 65)
    return {}


@scenario("a consumer group of the system", refused=40003)
def illegal_group(scene: Scene) -> Facts:
    consumer = scene.simple("CID_RMQ_SYS_TRANS", scene.topic())
    scene.receive(consumer)
    return {}


@scenario("an invisible duration of one second", refused=40011)
def too_short(scene: Scene) -> Facts:
    consumer = scene.simple(scene.group(), scene.topic())
    scene.receive(consumer, invisible_s=1)
    return {}


# Access ---------------------------------------------------------------------------------------------------------------


def send_and_receive(scene: Scene) -> Facts:
    topic, group = scene.topic(), scene.group()
    producer, consumer = scene.producer(topic), scene.simple(group, topic)
    scene.send(producer, topic, "hello")
    return {"received": bodies_of(scene.take(consumer, 1))}


@scenario("TLS")
def tls(scene: Scene) -> Facts:
    scene.options |= {"tls": True}
    return send_and_receive(scene)


@scenario("an account's signature", accounts=True)
def account(scene: Scene) -> Facts:
    scene.sign()
    return send_and_receive(scene)


@scenario("a wrong secret", refused=40100, accounts=True)
def wrong_secret(scene: Scene) -> Facts:
    scene.sign("not-the-secret")
    return send_and_receive(scene)


@scenario("no account where one is needed", refused=40100, accounts=True)
def no_account(scene: Scene) -> Facts:
    return send_and_receive(scene)
