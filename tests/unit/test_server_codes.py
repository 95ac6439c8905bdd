"""Guards the table of request codes: one table says who answers each, and all parts of the server use it.

The router, a live server that is sent each code once, and the errors that clients show.
"""

from __future__ import annotations

from pathlib import Path

from tests.frames import Wire
from txstore import EmbeddedBroker, Server, ServerConfig
from txstore._native import RequestCode, ResponseCode, request_rules

ANY = ServerConfig(listen="127.0.0.1:0", name_server=None)
RULES = {rule.code: rule for rule in request_rules()}
BY_PYTHON = ("Python", "engine or Python")
PAGE = Path(__file__).resolve().parents[2] / "docs/operate/serve.md"
# Answered only to slaves of RocketMQ, by a server with a port for them (test_slaves.py).
FOR_SLAVES = {
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.EXCHANGE_BROKER_HA_INFO,
}
# The settings of a server do not change while it runs; the answer says where to give them.
REFUSED_BY_PYTHON = {RequestCode.UPDATE_BROKER_CONFIG, *FOR_SLAVES}


def test_enum_equals_the_table() -> None:
    assert {code.value: code.name for code in RequestCode} == {rule.code: rule.name for rule in request_rules()}
    assert len(RULES) == 162


def test_python_handles_exactly_the_requests_it_answers(broker: EmbeddedBroker) -> None:
    with Server(broker, ANY) as server:
        handlers = [*server._handlers, *server._slow_handlers]
    assert sorted(code for code in handlers if code > 0) == [
        code for code, rule in RULES.items() if rule.answered_by in BY_PYTHON
    ]
    assert all(isinstance(code, RequestCode) for code in handlers if code > 0)


def test_server_refuses_exactly_the_requests_of_the_table(broker: EmbeddedBroker) -> None:
    unknown = [-6, -1, 0, 16, 999, 200_057]
    with Server(broker, ANY) as server, Wire(str(server.address)) as client:
        answers = {code: client.call(code, {"topic": "t", "group": "g", "b": "t"}) for code in [*unknown, *RULES]}
    refused = {code for code, answer in answers.items() if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
    not_served = {code for code, rule in RULES.items() if rule.answered_by in (None, "client")}
    assert refused == {*unknown, *not_served, *REFUSED_BY_PYTHON}


def test_refusal_names_the_request(broker: EmbeddedBroker) -> None:
    with Server(broker, ANY) as server, Wire(str(server.address)) as client:
        named, unknown = client.call(RequestCode.POP_MESSAGE, {}), client.call(999, {})
    assert named.remark == "request code 200050 (POP_MESSAGE) is not served"
    assert unknown.remark == "request code 999 (no request of RocketMQ 5.4) is not served"


def manual() -> str:
    """The tables of the manual's section about request codes."""
    rows = list(RULES.values())
    served = [rule for rule in rows if rule.answered_by not in (None, "client")]
    lines = ["| code | request | answered by | an account needs |", "|---|---|---|---|"]
    lines += [f"| {rule.code} | `{rule.name}` | {rule.answered_by} | {rule.permission} |" for rule in served]
    lines += ["", "| code | request that the server sends to clients |", "|---|---|"]
    lines += [f"| {rule.code} | `{rule.name}` |" for rule in rows if rule.answered_by == "client"]
    lines += ["", "| code | refused request |", "|---|---|"]
    lines += [f"| {rule.code} | `{rule.name}` |" for rule in rows if rule.answered_by is None]
    return "\n".join(lines)


def test_manual_has_the_table() -> None:
    assert manual() in PAGE.read_text(), f"docs/operate/serve.md lacks this text:\n{manual()}"
