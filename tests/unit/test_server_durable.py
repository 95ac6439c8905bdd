"""Guards what a forwarder of outbox rows relies on: it deletes a row when the answer says that its message is durable.

The fields `durable` and `once` of a send are txstore's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.frames import Wire
from tests.remoting_requests import BATCH, SEND_V2, properties, sending
from tests.unit.conftest import SMALL
from txstore import Message, Server, ServerConfig
from txstore._native import OutboxRow, batch_body


@pytest.mark.parametrize("code", [SEND_V2, BATCH])
def test_answer_to_a_durable_send_comes_after_the_sync(tmp_path: Path, code: int) -> None:
    settings = {**SMALL, "flush_disk_type": "ASYNC_FLUSH", "flush_interval_commit_log": 3600}
    with txstore.open(tmp_path / "store", **settings) as broker:
        broker.create_topic("orders", 1)
        with Server(broker, ServerConfig("127.0.0.1:0", name_server=None)) as server:
            assert server.address is not None
            with Wire(server.address) as wire:

                def send(unique_id: str, **fields: Any) -> bool:
                    """Returns whether the log is durable up to its end when the answer is here."""
                    text, body = properties(UNIQ_KEY=unique_id), b"paid"
                    if code == BATCH:
                        body, text = batch_body([Message("orders", body, properties={})], [unique_id]), ""
                    answer = wire.call(code, sending(text=text, m=str(code == BATCH).lower(), **fields), body)
                    assert answer.code == 0
                    return bool(broker.store.durable_end >= broker.store.appended_end)

                assert not send("A")
                assert send("B", durable="true")
                assert not send("C")
                assert send("C", once="true", durable="true"), "it is stored, but was not synced"
                assert not send("D", once="true")
                assert len(broker.read("orders", 0, 0)[0]) == 4


def test_row_that_a_client_has_sent_is_not_stored_again(tmp_path: Path) -> None:
    """A client takes over a row of a process that is stopped for long, and the process then continues."""
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 1)
        first, second = (OutboxRow.of(Message("orders", body), "g", None) for body in (b"1", b"2"))
        assert broker.store.append_row(first, 0) == "appended"
        with Server(broker, ServerConfig("127.0.0.1:0", name_server=None)) as server:
            assert server.address is not None
            with Wire(server.address) as wire:
                for row in (first, second):
                    fields = sending(text=row.properties_text, g=round(row.born_timestamp.timestamp() * 1000))
                    assert wire.call(SEND_V2, fields | {"once": "true"}, row.body).code == 0
        assert broker.store.append_rows([second], [0], once=False) == ["present"]
        assert broker.store.append_row(second, 0) == "present"
        assert [message.body for message in broker.read("orders", 0, 0)[0]] == [b"1", b"2"]
