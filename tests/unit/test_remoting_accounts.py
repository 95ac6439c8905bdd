"""Guards accounts: without a valid signature nothing is done, and an account does only what its permissions allow.

Requests are signed, unsigned, and changed on the way, built by hand; the accounts file, good and bad; our clients.
Java's own signatures are in tests/remoting, a real broker that verifies ours in tests/remoting_client.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txstore
import txstore.aio
from tests.frames import Response, Wire, frame, json_header, signed
from tests.remoting_requests import (
    BACK,
    BY_KEY,
    CHECK,
    CLUSTER,
    DELETE_TOPIC,
    END,
    HEARTBEAT,
    LOCK,
    MAX_OFFSET,
    MEMBERS,
    PULL,
    RESET,
    RESUME,
    ROUTE,
    RUNTIME,
    SEND,
    SEND_V2,
    UNREGISTER,
    UPDATE_OFFSET,
    UPDATE_TOPIC,
    VIEW,
)
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message, Server, ServerConfig, errors
from txstore._native import ResponseCode
from txstore.client.options import ConnectConfig
from txstore.server.listening import warn
from txstore.server.secrets import Account, Secrets, TlsFiles, parse_accounts

DENIED = ResponseCode.NO_PERMISSION
SECRETS = {"operator": "secret-of-operator", "shop-app": "secret-of-the-shop", "reader-app": "secret-of-reader"}
ACCOUNTS = """
[operator]
secret_key = "secret-of-operator"
admin = true

[shop-app]
secret_key = "secret-of-the-shop"
topics = { orders = "PUB", paid = "PUB|SUB", closed = "DENY" }

[reader-app]
secret_key = "secret-of-reader"
default_topic_perm = "SUB"
groups = { shipping = "SUB" }
topics = { secret = "DENY" }
"""


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.toml"
    path.touch(0o600)
    path.write_text(ACCOUNTS)
    return path


@pytest.fixture
def server(broker: EmbeddedBroker, accounts: Path) -> Iterator[Server]:
    with Server(broker, ServerConfig("127.0.0.1:0", name_server="127.0.0.1:0", accounts=accounts)) as server:
        yield server


def wire(server: Server, who: str | None, *, secret: str | None = None, binary: bool = False) -> Wire:
    """A connection that signs as an account, optionally with another secret; None: unsigned."""
    assert server.address is not None
    account = None if who is None else (who, SECRETS.get(who, "?") if secret is None else secret)
    return Wire(server.address, account=account, binary=binary)


def stored(broker: EmbeddedBroker) -> list[bytes]:
    return [message.body for message in broker.store.scan(0, 1000)[0]]


def sending(topic: str = "orders", text: str = "") -> dict[str, Any]:
    return {"a": "g", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": text, "j": 0}


def pulling(topic: str, group: str) -> dict[str, Any]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip


HALF = "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01ID1\x02"


def ending(sent: Response, how: int = 8) -> dict[str, Any]:
    physical_offset = int(sent.fields["msgId"][-16:], 16)
    queue_offset = sent.fields["queueOffset"]
    return {
        "producerGroup": "g", "tranStateTableOffset": queue_offset, "commitLogOffset": physical_offset,
        "commitOrRollback": how, "msgId": "ID1", "transactionId": "ID1", "topic": "orders",
    }  # fmt: skip


def beat(topic: object, group: object) -> bytes:
    """A consumer's heartbeat."""
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {"groupName": group, "subscriptionDataSet": [subscription]}
    return json.dumps({"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


# Signatures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_signed_request_is_done(server: Server, broker: EmbeddedBroker, binary: bool) -> None:
    with wire(server, "shop-app", binary=binary) as shop:
        assert shop.call(SEND_V2, sending(text="KEYS\x01käse\x02"), "füße".encode()).code == 0
        assert shop.call(SEND_V2, sending(), b"x").code == 0
        assert shop.call(ROUTE, {"topic": "orders"}).code == 0
        assert shop.call(CLUSTER).code == 0
    assert stored(broker) == ["füße".encode(), b"x"]
    assert server.counters()["requests_refused"] == 0


def tampered() -> dict[str, Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]]:
    """Ways to change a signed request on its way."""
    digest = base64.b64encode(b"\0" * 20).decode()

    def without(name: str) -> Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]:
        return lambda fields, body: ({key: value for key, value in fields.items() if key != name}, body)

    return {
        "no signature": without("Signature"),
        "no access key": without("AccessKey"),
        "a field missing": without("h"),
        "an additional field": lambda fields, body: (fields | {"z": "1"}, body),
        "another topic": lambda fields, body: (fields | {"b": "paid"}, body),
        "another body": lambda fields, body: (fields, body + b"!"),
        "another account": lambda fields, body: (fields | {"AccessKey": "operator"}, body),
        "an account that is not known": lambda fields, body: (fields | {"AccessKey": "nobody"}, body),
        "an empty signature": lambda fields, body: (fields | {"Signature": ""}, body),
        "a signature of zeros": lambda fields, body: (fields | {"Signature": digest}, body),
        "a shortened signature": lambda fields, body: (
            fields | {"Signature": base64.b64encode(base64.b64decode(fields["Signature"])[:4]).decode()},
            body,
        ),
        "no base64": lambda fields, body: (fields | {"Signature": "ü" * 28}, body),
    }


@pytest.mark.parametrize("name", tampered())
def test_changed_request_is_refused(
    server: Server, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    fields = signed(sending(), b"x", "shop-app", SECRETS["shop-app"])
    with wire(server, None) as line:
        assert line.call(SEND_V2, fields, b"x").code == 0
        fields, body = tampered()[name](fields, b"x")
        for _ in range(2):
            answer = line.call(SEND_V2, fields, body)
            assert (answer.code, "not signed" in (answer.remark or "")) == (DENIED, True)
        line.write(SEND_V2, fields, body, one_way=True)
        assert line.call(ROUTE, {"topic": "orders"}).code == DENIED, "every request needs a signature"
    assert stored(broker) == [b"x"]
    counters = server.counters()
    assert (counters["requests_not_signed"], counters["requests_refused"], counters["requests_not_allowed"]) == (
        4,
        4,
        0,
    )
    eventually(lambda: "denied:" in caplog.text)
    assert caplog.text.count("denied:") == 1, "one for each connection"
    said = caplog.text + repr(server) + repr(server.counters())
    assert not any(secret in said for secret in (*SECRETS.values(), fields.get("Signature") or "?"))


def test_wrong_secret_is_refused(server: Server, broker: EmbeddedBroker) -> None:
    for secret in ("", "secret-of-reader", SECRETS["shop-app"] + "!", SECRETS["shop-app"][:-1]):
        with wire(server, "shop-app", secret=secret) as line:
            assert line.call(SEND_V2, sending(), b"x").code == DENIED
    assert stored(broker) == []


def test_unsolicited_response_does_not_bypass_signatures(server: Server, broker: EmbeddedBroker) -> None:
    """A response needs no signature, so its request code is ignored."""
    with wire(server, "shop-app") as shop:
        header = json_header(SEND_V2, sending(), 77, flag=1)
        shop.socket.sendall(frame(header, b"x"))
        assert shop.call(SEND_V2, sending(), b"y").opaque == 1
    assert stored(broker) == [b"y"]


def test_unix_socket_needs_signatures_too(broker: EmbeddedBroker, accounts: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with Server(broker, ServerConfig(None, path, None, accounts=accounts)), Wire(path) as line:
        assert line.call(SEND_V2, sending(), b"x").code == DENIED


# Permissions ----------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, int, dict[str, Any], bytes, bool]] = {
    "sends where it may": ("shop-app", SEND_V2, sending("orders"), b"x", True),
    "sends where it may both": ("shop-app", SEND_V2, sending("paid"), b"x", True),
    "sends elsewhere": ("shop-app", SEND_V2, sending("elsewhere"), b"x", False),
    "sends where it is denied": ("shop-app", SEND_V2, sending("closed"), b"x", False),
    "sends by old names": ("shop-app", SEND, {"producerGroup": "g", "topic": "elsewhere"}, b"x", False),
    "sends a batch elsewhere": ("shop-app", 320, sending("elsewhere"), b"x", False),
    "sends half a message elsewhere": ("shop-app", SEND_V2, sending("elsewhere", HALF), b"x", False),
    "sends to another's retries": ("shop-app", SEND_V2, sending("%RETRY%shipping"), b"x", False),
    "sends to its retries": ("reader-app", SEND_V2, sending("%RETRY%shipping"), b"x", True),
    "sends where it reads": ("reader-app", SEND_V2, sending("orders"), b"x", False),
    "reads where it sends": ("shop-app", PULL, pulling("orders", "shipping"), b"", False),
    "reads in its group": ("reader-app", PULL, pulling("orders", "shipping"), b"", True),
    "reads by a name of its group's": ("reader-app", PULL, pulling("orders", "shipping%orders"), b"", True),
    "reads in another's group": ("reader-app", PULL, pulling("orders", "billing"), b"", False),
    "reads in a group that begins so": ("reader-app", PULL, pulling("orders", "shipping2"), b"", False),
    "reads what it is denied": ("reader-app", PULL, pulling("secret", "shipping"), b"", False),
    "reads another's dead letters": ("reader-app", PULL, pulling("%DLQ%billing", "shipping"), b"", False),
    "lite pull": ("reader-app", 361, pulling("secret", "shipping"), b"", False),
    "heartbeat of its group": ("reader-app", HEARTBEAT, {}, beat("orders", "shipping"), True),
    "heartbeat of another's group": ("reader-app", HEARTBEAT, {}, beat("orders", "billing"), False),
    "heartbeat for a denied topic": ("reader-app", HEARTBEAT, {}, beat("secret", "shipping"), False),
    "heartbeat in UTF-16": ("reader-app", HEARTBEAT, {}, beat("orders", "billing").decode().encode("utf-16"), False),
    "heartbeat that is a number": ("reader-app", HEARTBEAT, {}, beat("orders", 7), False),
    "beats nothing": ("reader-app", HEARTBEAT, {}, b"", False),
    "leaves another's group": ("reader-app", UNREGISTER, {"clientID": "c1", "consumerGroup": "billing"}, b"", False),
    "leaves as a producer": ("shop-app", UNREGISTER, {"clientID": "c1", "producerGroup": "g"}, b"", True),
    "lists another's group": ("reader-app", MEMBERS, {"consumerGroup": "billing"}, b"", False),
    "acknowledges": (
        "reader-app", UPDATE_OFFSET, {"consumerGroup": "billing", "topic": "orders", "queueId": 0}, b"", False,
    ),
    "locks another's": ("reader-app", LOCK, {}, json.dumps({"consumerGroup": "billing", "mqSet": []}).encode(), False),
    "locks what it is denied": (
        "reader-app", LOCK, {}, json.dumps({"consumerGroup": "shipping", "mqSet": [{"topic": "secret"}]}).encode(),
        False,
    ),
    "locks": ("reader-app", LOCK, {}, b'{"consumerGroup":"shipping","clientId":"c1","mqSet":[]}', True),
    "finds by key": ("shop-app", BY_KEY, {"topic": "orders", "key": "k"}, b"", False),
    "asks for a queue's end": ("shop-app", MAX_OFFSET, {"topic": "orders", "queueId": 0}, b"", True),
    "asks for another queue's end": ("shop-app", MAX_OFFSET, {"topic": "elsewhere", "queueId": 0}, b"", False),
    "makes a topic": (
        "shop-app", UPDATE_TOPIC, {"topic": "orders", "readQueueNums": 9, "writeQueueNums": 9}, b"", False,
    ),
    "deletes a topic": ("shop-app", DELETE_TOPIC, {"topic": "orders"}, b"", False),
    "looks at the broker": ("reader-app", RUNTIME, {}, b"", False),
    "resets": ("reader-app", RESET, {"topic": "orders", "group": "shipping", "timestamp": 0}, b"", False),
    "unknown request": ("shop-app", 9999, {}, b"", False),
    "request reserved for the engine": ("shop-app", -1, {"topic": "x", "make": "true"}, b"", False),
    "views without an offset": ("reader-app", VIEW, {"offset": "x"}, b"", False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_account_does_what_its_permissions_allow(server: Server, broker: EmbeddedBroker, name: str) -> None:
    who, code, fields, body, allowed = CASES[name]
    for topic in ("orders", "secret", "paid"):
        broker.create_topic(topic, 4)
    topics = broker.topics()
    with wire(server, who) as line:
        answer = line.call(code, fields, body)
    assert (answer.code != DENIED) is allowed, answer
    if not allowed:
        assert f"account {who} may not" in (answer.remark or "")
        assert (stored(broker), broker.topics(), server.counters()["requests_not_allowed"]) == ([], topics, 1)
    with wire(server, "operator") as line:
        assert line.call(code, fields, body).code != DENIED


def test_system_topics_are_refused_to_all_accounts(server: Server, broker: EmbeddedBroker) -> None:
    """Administrators are refused, too."""
    with wire(server, "operator") as line:
        assert line.call(SEND_V2, sending("RMQ_SYS_TRANS_HALF_TOPIC"), b"x").code == DENIED
        assert line.call(PULL, pulling("RMQ_SYS_TRANS_HALF_TOPIC", "g")).code == DENIED
        assert line.call(-1, {"topic": "x", "make": "true"}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert stored(broker) == []


def test_end_needs_permission_on_the_topic_of_the_half(server: Server, broker: EmbeddedBroker) -> None:
    """The topic that the request itself names is ignored, so an account that may not send there can neither commit nor
    roll back.
    """
    with wire(server, "operator") as line:
        elsewhere = line.call(SEND_V2, sending("elsewhere", HALF), b"tx")
    with wire(server, "shop-app") as shop, wire(server, "reader-app") as reader:
        for line in (shop, reader):
            for how in (8, 12):
                answer = line.call(END, ending(elsewhere, how))
                assert (answer.code, "elsewhere" in (answer.remark or "")) == (DENIED, True)
            line.write(END, ending(elsewhere), one_way=True)
        assert shop.call(END, ending(elsewhere) | {"tranStateTableOffset": 99}).code not in (0, DENIED)
        assert shop.call(END, ending(elsewhere) | {"tranStateTableOffset": "x"}).code == DENIED
        sent = shop.call(SEND_V2, sending("orders", HALF.replace("ID1", "ID2")), b"own")
        assert shop.call(END, ending(sent) | {"transactionId": "ID2"}).code == 0
    assert [transaction.transaction_id for transaction in broker.transactions()] == ["ID1"]
    assert [message.body for message in broker.read("orders", 0, 0)[0]] == [b"own"]
    assert server.counters()["ends_committed"] == 1


def test_view_by_offset_needs_permission_on_the_topic(server: Server, broker: EmbeddedBroker) -> None:
    """The topic that the request names is ignored; a message sent back by its offset would reach the caller."""
    broker.create_group("shipping")
    offsets = {topic: broker.append(Message(topic, b"x"), 0).physical_offset for topic in ("secret", "orders")}
    with wire(server, "reader-app") as reader:
        for code, fields in ((VIEW, {}), (BACK, {"group": "shipping", "delayLevel": 1, "originTopic": "orders"})):
            found = fields | {"offset": offsets["secret"], "topic": "orders"}
            assert reader.call(code, found).code == DENIED
            assert reader.call(code, fields | {"offset": offsets["orders"]}).code == 0
            assert reader.call(code, fields | {"offset": 2**62}).code == ResponseCode.QUERY_NOT_FOUND
        own = {"group": "billing", "delayLevel": 1, "offset": offsets["orders"]}
        assert reader.call(BACK, own).code == DENIED


def test_discarded_transactions_are_visible_to_administrators_only(server: Server, broker: EmbeddedBroker) -> None:
    with wire(server, "shop-app") as shop, wire(server, "reader-app") as reader, wire(server, "operator") as operator:
        sent = shop.call(SEND_V2, sending(text=HALF), b"tx")
        half = int(sent.fields["msgId"][-16:], 16)
        broker.discard("ID1")
        (parked,) = (found for found in broker.store.scan(0, 10)[0] if found.topic == "TRANS_CHECK_MAX_TIME_TOPIC")
        resume = {"topic": parked.topic, "msgId": parked.offset_message_id}
        for line in (shop, reader):
            assert line.call(VIEW, {"offset": parked.physical_offset}).code == DENIED
            assert line.call(RESUME, resume).code == DENIED
        assert broker.transactions() == []
        assert operator.call(VIEW, {"offset": parked.physical_offset}).body == parked.record
        assert operator.call(VIEW, {"offset": half}).code == ResponseCode.QUERY_NOT_FOUND, (
            "half messages are shown to no account"
        )
        for wrong in (sent.fields["msgId"], "x" * 32, "F" * 32, "0" * 31 + "7"):
            assert operator.call(RESUME, resume | {"msgId": wrong}).code not in (0, DENIED), wrong
        assert operator.call(RESUME, resume).code == 0
        assert [waiting.transaction_id for waiting in broker.transactions()] == ["ID1"]
        assert operator.call(RESUME, resume).code != 0


def test_requests_of_the_server_are_not_signed(open_store: OpenStore, accounts: Path) -> None:
    """RocketMQ's are not signed either; the answer to a check is an end, which is signed."""
    broker = open_store(transaction_timeout=0.05, transaction_check_interval=0.2, transaction_check_max=10_000)
    config = ServerConfig("127.0.0.1:0", name_server=None, accounts=accounts)
    with Server(broker, config) as server, wire(server, "shop-app") as shop:
        sent = shop.call(SEND_V2, sending(text=HALF), b"tx")
        assert "Signature" not in shop.pushed(CHECK).fields
        shop.write(END, ending(sent) | {"fromTransactionCheck": "true"}, one_way=True)
        eventually(lambda: not broker.transactions())
    assert len(broker.read("orders", 0, 0)[0]) == 1


# Our clients ----------------------------------------------------------------------------------------------------------


def check(message: object) -> LocalTransactionState:
    return LocalTransactionState.COMMIT


def test_our_clients_sign(server: Server) -> None:
    address = str(server.name_server)
    shop = {"access_key": "shop-app", "secret_key": SECRETS["shop-app"]}
    with txstore.connect(address, **shop) as there:  # type: ignore[arg-type]
        with there.transaction_producer("p", check_listener=check).transaction(Message("orders", b"one")):
            pass
        there.producer("p").send_batch([Message("orders", b"two"), Message("orders", b"three")])
        with pytest.raises(errors.BrokerRefusedError, match="may not send to topic elsewhere"):
            there.producer("p").send(Message("elsewhere", b"x"))

    async def read() -> list[bytes]:
        reader = {"access_key": "reader-app", "secret_key": SECRETS["reader-app"]}
        found: list[bytes] = []
        async with (
            txstore.aio.connect(address, **reader) as there,  # type: ignore[arg-type]
            there.consumer("shipping", "orders") as consumer,
        ):
            async for message in consumer:
                found.append(message.body)
                if len(found) == 3:
                    break
        return sorted(found)

    assert asyncio.run(read()) == [b"one", b"three", b"two"]
    assert server.counters()["requests_not_signed"] == 0


def test_our_clients_report_refused_access(server: Server) -> None:
    for account in ({}, {"access_key": "shop-app", "secret_key": "not-the-secret"}):
        with pytest.raises(errors.BrokerRefusedError, match=r"not signed.*\nhint: .*access_key") as caught:
            txstore.connect(str(server.name_server), **account)  # type: ignore[arg-type]
        assert "not-the-secret" not in str(caught.value)


def test_our_clients_keep_the_secret() -> None:
    options = ConnectConfig(access_key="shop-app", secret_key="hush-hush-hush")
    assert "hush" not in repr(options) + repr(options.credentials)
    for wrong in ({"access_key": "a"}, {"secret_key": "hush-hush"}, {"access_key": 7, "secret_key": "hush-hush"}):
        with pytest.raises(errors.InvalidOptionError) as caught:
            ConnectConfig.from_options(wrong)
        assert "hush" not in str(caught.value)


# The file -------------------------------------------------------------------------------------------------------------


def test_accounts_are_reloaded_while_serving(
    broker: EmbeddedBroker, accounts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server reloads within ten seconds of this clock; an invalid file changes nothing."""
    now = [0.0]
    config = ServerConfig("127.0.0.1:0", name_server=None, accounts=accounts)
    with Server(broker, config, monotonic=lambda: now[0]) as server, wire(server, "shop-app") as shop:
        assert shop.call(SEND_V2, sending(), b"x").code == 0
        accounts.write_text("[shop-app]\nsecret_key = 7\n")
        now[0] += 11
        eventually(lambda: "accounts were not changed" in caplog.text)
        assert shop.call(SEND_V2, sending(), b"x").code == 0
        accounts.write_text(ACCOUNTS.replace("shop-app", "other-app"))
        now[0] += 11
        eventually(lambda: shop.call(SEND_V2, sending(), b"x").code == DENIED)
        with wire(server, "other-app", secret=SECRETS["shop-app"]) as other:
            assert other.call(SEND_V2, sending(), b"x").code == 0
        accounts.unlink()
        with pytest.raises(errors.InvalidOptionError, match="cannot be read"):
            server.reload()
        accounts.touch(0o600)
        server.reload()
        with wire(server, "operator") as operator:
            assert operator.call(SEND_V2, sending(), b"x").code == DENIED, "an empty file has no accounts"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_file_that_others_may_access_is_refused(broker: EmbeddedBroker, accounts: Path, mode: int) -> None:
    accounts.chmod(mode)
    with pytest.raises(errors.InvalidOptionError, match=f"mode {mode:04o}.*\nhint: chmod 600"):
        Server(broker, ServerConfig("127.0.0.1:0", name_server=None, accounts=accounts))


BAD = {
    "no TOML": ("[shop-app\nhush-hush", "not valid TOML, at line 1"),
    "a value cut off": ('[shop-app]\nsecret_key = "hush-hush', "not valid TOML, at"),
    "outside": ('secret_key = "hush-hush"', "outside of an account"),
    "no secret": ("[shop-app]", "must have 7 to 1024 characters"),
    "a short secret": ('[shop-app]\nsecret_key = "hush"', "must have 7 to 1024 characters"),
    "a short name": ('[shop]\nsecret_key = "hush-hush"', "must have 7 to 1024 characters"),
    "unknown field": ('[shop-app]\nsecret_key = "hush-hush"\nwhiteList = "*"', "unknown field 'whiteList'"),
    "no permission": (
        '[shop-app]\nsecret_key = "hush-hush"\ndefault_topic_perm = "ALL"',
        "default_topic_perm must be",
    ),
    "no permission of a topic": (
        '[shop-app]\nsecret_key = "hush-hush"\ntopics = { a = 3 }',
        "topics.a must be a perm",
    ),
    "topics as a list": ('[shop-app]\nsecret_key = "hush-hush"\ntopics = ["a=PUB"]', "topics must be a table"),
    "admin as text": ('[shop-app]\nsecret_key = "hush-hush"\nadmin = "true"', "must be true or false"),
    "twice": ('[shop-app]\nsecret_key = "hush-hush"\n[shop-app]\n', "not valid TOML, at line 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_file_is_reported(broker: EmbeddedBroker, accounts: Path, name: str) -> None:
    text, told = BAD[name]
    accounts.write_text(text)
    with pytest.raises(errors.InvalidOptionError, match=told) as caught:
        Server(broker, ServerConfig("127.0.0.1:0", name_server=None, accounts=accounts))
    assert str(accounts) in str(caught.value)
    assert "hint:" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=12)
    | st.sampled_from(["PUB", "SUB", "hush-hush-hush"]),
    lambda inner: st.dictionaries(st.sampled_from(["secret_key", "admin", "topics", "groups", "a", "shop-app"]), inner),
    max_leaves=12,
)


@given(st.text(max_size=200) | st.dictionaries(st.text(max_size=9), _VALUES, max_size=3).map(lambda said: _toml(said)))
def test_any_text_is_accounts_or_an_error(text: str) -> None:
    told = ""
    accounts: list[Account] = []
    try:
        accounts = parse_accounts(text)
    except errors.InvalidOptionError as error:
        told = str(error)
    assert "hush" not in told + repr(accounts)
    assert ("\nhint: " in told) or not told
    assert all(len(account.secret_key) >= 7 for account in accounts)


def _toml(value: object) -> str:
    """Close enough to TOML that many examples parse."""
    if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
        parts = (
            f"[{json.dumps(key)}]\n{_toml(inner)}" if isinstance(inner, dict) else "" for key, inner in value.items()
        )
        return "\n".join(parts)
    if isinstance(value, dict):
        return "\n".join(f"{json.dumps(key)} = {json.dumps(inner)}" for key, inner in value.items())
    return json.dumps(value)


# Listening addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "secured", "told"),
    [
        ("127.0.0.1:1", (), None),
        ("[::1]:1", (), None),
        ("10.0.0.7:1", (), "every client that reaches it may send and read\nhint: use --accounts"),
        ("[fd00::7]:1", ("tls",), "every client that reaches it may send and read\nhint: use --accounts"),
        ("0.0.0.0:1", ("accounts",), "others in the network can read and repeat requests\nhint: use --tls-cert"),
        ("0.0.0.0:1", ("accounts", "tls"), None),
    ],
)
def test_exposed_address_is_warned_about(
    caplog: pytest.LogCaptureFixture, listen: str, secured: tuple[str, ...], told: str | None
) -> None:
    tls = TlsFiles(b"", b"", None, required=True, handshake_seconds=10) if "tls" in secured else None
    with caplog.at_level(logging.WARNING):
        warn(ServerConfig(listen, name_server=None), Secrets(tls, [] if "accounts" in secured else None, None))
    assert (told in caplog.text) if told else not caplog.text


def test_a_consumer_of_a_pattern_finds_what_its_account_may_read(server: Server, broker: EmbeddedBroker) -> None:
    """It needs the names of topics, and no administrator."""
    for topic in ("orders", "secret", "paid"):
        broker.create_topic(topic)
    keys = {"access_key": "reader-app", "secret_key": SECRETS["reader-app"]}
    with (
        txstore.connect(str(server.name_server), poll_name_server_interval=0.1, **keys) as there,  # type: ignore[arg-type]
        there.consumer("shipping", re.compile(".*")) as consumer,
    ):
        assert consumer.topics == ("orders", "paid")
        broker.producer("p").send(Message("new", b"17"))
        for message in consumer:
            assert message.topic == "new"
            break
        assert list(consumer.topics) == ["new", "orders", "paid"]
    keys = {"access_key": "operator", "secret_key": SECRETS["operator"]}
    with txstore.connect(str(server.name_server), **keys) as there:  # type: ignore[arg-type]
        assert {"new", "orders", "paid", "secret"} <= set(there.subscribable_topics())
