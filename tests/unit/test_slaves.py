"""Guards the port for slaves of RocketMQ: what a slave is sent, and which slave is sent nothing.

A slave appends whatever begins at its end. So it gets the bytes of the log in order, no piece over the end of a file,
and none at all before its last record was compared with the same record here. The slave's side of the protocol is
written by hand; what it is asked over remoting, a `txstore serve` on its copy answers. tests/peer has RocketMQ's own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import txstore
from tests.frames import Response, Wire
from tests.ports import free_port
from tests.unit.test_server_metrics import Seen
from tests.waiting import eventually
from txstore import Message, Server
from txstore._native import RequestCode, ResponseCode
from txstore.errors import InvalidOptionError

FILE = 64 << 10
QUIET: dict[str, Any] = {"name_server": None, "transaction_check_interval": 3600, "mapped_file_size_commit_log": FILE}


class Slave:
    """A slave's end of a connection to the HA port."""

    def __init__(self, master: Server, end: int) -> None:
        host, _, port = str(master.ha).rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self.begin: int | None = None
        self.log = b""
        self.report(end)

    def report(self, end: int) -> None:
        self._socket.sendall(struct.pack(">q", end))

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self._socket.recv(length - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def piece(self) -> tuple[int, bytes]:
        """The next piece, or a heartbeat without bytes."""
        begin, length = struct.unpack(">qi", self._exactly(12))
        return begin, self._exactly(length)

    def copy_up_to(self, end: int) -> None:
        """Takes pieces as a slave does, and reports its end after each."""
        while self.begin is None or self.begin + len(self.log) < end:
            begin, piece = self.piece()
            if self.begin is None:
                self.begin = begin
            assert begin == self.begin + len(self.log)
            assert not piece or begin // FILE == (begin + len(piece) - 1) // FILE, "a piece goes over a file's end"
            self.log += piece
            self.report(begin + len(piece))

    def is_refused(self) -> bool:
        """Whether the master closes the connection and sends nothing before."""
        try:
            self.piece()
        except ConnectionResetError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(path: Path, **options: Any) -> Server:
    """A master: the port two below its own must be free."""
    listen = f"127.0.0.1:{free_port(below=2)}"
    return txstore.serve(path, **(QUIET | {"listen": listen, "ha_listen": "127.0.0.1:0"} | options))


def send(server: Server, count: int, what: str = "m") -> None:
    producer = server.broker.producer("shop")
    for number in range(count):
        producer.send(Message("orders", f"{what} {number} ".encode() * 40, keys=[f"{what}-{number}"]))


def end_of(server: Server) -> int:
    return server.broker.stat().max_physical_offset


def files_of(path: Path, end: int) -> bytes:
    log = b"".join(file.read_bytes() for file in sorted((path / "commitlog").glob("[0-9]" * 20)))
    return log[:end]


def call(server: Server, code: int, fields: dict[str, Any] | None = None, *, port: int = 0) -> Response:
    host, _, own = str(server.address).rpartition(":")
    with Wire(f"{host}:{int(own) + port}") as wire:
        return wire.call(code, fields or {})


def register(master: Server, address: str, broker_id: int = 1, **changed: Any) -> Response:
    config = master.broker.config
    fields = {"brokerName": config.broker_name, "clusterName": config.cluster_name, "haServerAddr": "127.0.0.1:1"}
    return call(master, RequestCode.REGISTER_BROKER, fields | {"brokerAddr": address, "brokerId": broker_id} | changed)


@contextlib.contextmanager
def copied(directory: Path, log: bytes) -> Iterator[Server]:
    """What answers for a slave that has a log: a server on a store with nothing but the log."""
    (directory / "commitlog").mkdir(parents=True)
    for begin in range(0, len(log), FILE):
        file = directory / "commitlog" / f"{begin:020}"
        file.write_bytes(log[begin : begin + FILE].ljust(FILE, b"\0"))
    with txstore.serve(directory, listen="127.0.0.1:0", **QUIET) as server:
        assert end_of(server) == len(log)
        yield server


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path / "master") as server:
        send(server, 400)
        yield server


def test_an_empty_slave_gets_the_whole_log_and_what_is_added(master: Server, tmp_path: Path) -> None:
    end = end_of(master)
    assert end > 2 * FILE
    with Slave(master, 0) as slave:
        slave.copy_up_to(end)
        assert (slave.begin, slave.log) == (0, files_of(tmp_path / "master", end))
        send(master, 300, "later")
        slave.copy_up_to(end_of(master))
        assert slave.log == files_of(tmp_path / "master", end_of(master))


def test_an_equal_slave_continues_exactly_at_its_end(master: Server, tmp_path: Path) -> None:
    end = end_of(master)
    log = files_of(tmp_path / "master", end)
    with copied(tmp_path / "copy", log) as copy:
        answer = register(master, str(copy.address))
        assert answer.fields == {"haServerAddr": str(master.ha), "masterAddr": str(master.address)}
        send(master, 10, "later")
        with Slave(master, end) as slave:
            slave.copy_up_to(end_of(master))
            assert (slave.begin, log + slave.log) == (end, files_of(tmp_path / "master", end_of(master)))


def test_a_slave_waits_until_it_has_registered(master: Server, tmp_path: Path) -> None:
    end = end_of(master)
    with copied(tmp_path / "copy", files_of(tmp_path / "master", end)) as copy, Slave(master, end) as slave:
        send(master, 1, "later")
        register(master, str(copy.address))
        slave.copy_up_to(end_of(master))
        assert slave.begin == end


def test_a_slave_that_is_ahead_is_refused(master: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = end_of(master)
    with Slave(master, end + 8) as slave:
        assert slave.is_refused()
    (line,) = [record.getMessage() for record in caplog.records if "may not copy" in record.getMessage()]
    assert f"its log ends at {end + 8}, and this one at {end}: it has what this store has lost or never had" in line
    assert "hint: keep the slave's store" in line


def test_a_slave_with_another_last_record_is_refused(
    master: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was given messages that this store lost when its power failed, and others are here since."""
    with serve(tmp_path / "lost") as lost:
        send(lost, 3, "lost")
        log = files_of(tmp_path / "lost", end_of(lost))
    with copied(tmp_path / "copy", log) as copy:
        register(master, str(copy.address))
        with Slave(master, len(log)) as slave:
            assert slave.is_refused()
        assert master.nodes.addresses() == {"0": str(master.address)}
    assert any("its log differs from this one: at " in record.getMessage() for record in caplog.records)


def test_a_slave_whose_log_ends_within_a_record_is_compared_by_the_one_before(master: Server, tmp_path: Path) -> None:
    end = end_of(master)
    found = master.broker.store.record_before(end)
    assert found is not None
    begin, _ = found
    with copied(tmp_path / "copy", files_of(tmp_path / "master", begin)) as copy:
        register(master, str(copy.address))
        with Slave(master, begin) as slave:
            slave.copy_up_to(end)
            assert slave.begin == begin


def test_a_slave_that_reports_more_than_it_was_sent_is_closed(master: Server, caplog: pytest.LogCaptureFixture) -> None:
    with Slave(master, 0) as slave:
        slave.copy_up_to(end_of(master))
        slave.report(end_of(master) + 1)
        assert slave.is_refused()
    eventually(lambda: any("and it was sent the log up to" in record.getMessage() for record in caplog.records))


def test_bytes_that_are_no_report_are_refused(master: Server, caplog: pytest.LogCaptureFixture) -> None:
    with Slave(master, -1) as slave:
        assert slave.is_refused()
    eventually(lambda: any("at 0 or above, got -1" in record.getMessage() for record in caplog.records))


def test_routes_name_a_slave_while_it_copies(master: Server, tmp_path: Path) -> None:
    end = end_of(master)
    with copied(tmp_path / "copy", files_of(tmp_path / "master", end)) as copy:
        register(master, str(copy.address), 7)
        alone = {"0": str(master.address)}
        assert master.nodes.addresses() == alone
        with Slave(master, end):
            eventually(lambda: master.nodes.addresses() == alone | {"7": str(copy.address)})
            route = json.loads(call(master, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).body)
            assert route["brokerDatas"][0]["brokerAddrs"] == alone | {"7": str(copy.address)}
        eventually(lambda: master.nodes.addresses() == alone)


def test_the_lag_of_a_slave_is_what_it_lacked_at_its_last_report(tmp_path: Path) -> None:
    with serve(tmp_path / "master", metrics="127.0.0.1:0") as master:
        send(master, 10)
        end = end_of(master)
        with copied(tmp_path / "copy", files_of(tmp_path / "master", end)) as copy:
            address = str(copy.address)
            register(master, address)
            assert Seen(master).all("txstore_slave_lag_bytes") == {}
            with Slave(master, end) as slave:
                send(master, 10, "later")
                begin, piece = slave.piece()
                assert begin == end
                lacks = end_of(master) - end
                assert Seen(master).one("txstore_slave_lag_bytes", slave=address) == lacks
                slave.report(end + len(piece) - 1)
                lacks -= len(piece) - 1

                def is_noted() -> bool:
                    return Seen(master).one("txstore_slave_lag_bytes", slave=address) == lacks

                eventually(is_noted)


def test_brokers_that_are_no_slaves_cannot_register(master: Server) -> None:
    others: list[dict[str, Any]] = [{"brokerName": "other"}, {"clusterName": "other"}]
    for changed in others:
        answer = register(master, "127.0.0.1:1", **changed)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "a slave must be of cluster DefaultCluster and broker" in str(answer.remark)
    assert register(master, "127.0.0.1:1", 0).code == ResponseCode.INVALID_PARAMETER
    assert register(master, "nowhere").remark == "brokerAddr must be HOST:PORT, got 'nowhere'"
    answers = [register(master, "127.0.0.1:1", broker_id).code for broker_id in range(1, 18)]
    assert answers == [ResponseCode.SUCCESS] * 16 + [ResponseCode.SYSTEM_BUSY]
    assert call(master, RequestCode.UNREGISTER_BROKER, {"brokerId": 3}).code == ResponseCode.SUCCESS
    assert register(master, "127.0.0.1:1", 17).code == ResponseCode.SUCCESS


def test_a_client_without_an_ip_address_cannot_register(tmp_path: Path) -> None:
    with serve(tmp_path / "store", unix=str(tmp_path / "s")) as server, Wire(str(tmp_path / "s")) as wire:
        answer = wire.call(RequestCode.REGISTER_BROKER, {"brokerId": 1, "brokerAddr": "127.0.0.1:1"})
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "unix is not among the networks of slaves\nhint: --ha-allow",
    )
    assert server.closed


def test_slaves_get_topics_groups_and_offsets_also_two_ports_below(master: Server) -> None:
    master.broker.create_group("readers")
    master.broker.store.set_consumer_offset("orders", "readers", 0, 2)
    topics = json.loads(call(master, RequestCode.GET_ALL_TOPIC_CONFIG, port=-2).body)
    wanted = {"orders", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"}
    assert wanted <= topics["topicConfigTable"].keys()
    assert topics["topicQueueMappingDetailMap"] == {}
    groups = json.loads(call(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert "readers" in groups["subscriptionGroupTable"]
    offsets = json.loads(call(master, RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert offsets["offsetTable"]["orders@readers"] == {"0": 2}
    assert "offsetTable" in json.loads(call(master, RequestCode.GET_ALL_DELAY_OFFSET).body)
    modes = json.loads(call(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body)
    assert modes == {"messageRequestModeMap": {}}
    assert len(call(master, RequestCode.GET_TIMER_CHECK_POINT, port=-2).body) == 56
    assert json.loads(call(master, RequestCode.GET_TIMER_METRICS, port=-2).body)["timingCount"] == {}
    there = call(master, RequestCode.EXCHANGE_BROKER_HA_INFO).fields
    assert (there["masterHaAddress"], there["masterAddress"]) == (str(master.ha), str(master.address))


def test_nothing_is_open_without_the_option(tmp_path: Path) -> None:
    with serve(tmp_path / "store", ha_listen=None) as server:
        assert server.ha is None
        answer = register(server, "127.0.0.1:1")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert str(answer.remark).endswith("hint: --ha-listen")
        with pytest.raises(ConnectionRefusedError):
            call(server, RequestCode.GET_ALL_TOPIC_CONFIG, port=-2)


def test_start_warns_of_what_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with serve(tmp_path / "store", ha_allow="10.1.2.0/24, 10.2.0.7"):
        pass
    (line,) = [record.getMessage() for record in caplog.records if "for slaves of RocketMQ" in record.getMessage()]
    assert "and every client in 10.1.2.0/24, 10.2.0.7, can read the whole log, without an account and without" in line


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ha_listen": None, "ha_allow": "10.0.0.0/8"}, "ha_allow needs a port for slaves"),
        ({"ha_allow": "10.0.0.1/8"}, "ha_allow must be networks, ADDRESS or ADDRESS/BITS: 10.0.0.1/8 has host bits"),
        ({"ha_allow": "all"}, "ha_allow must be networks"),
        ({"ha_listen": "slaves"}, "ha_listen must be HOST:PORT"),
        ({"listen": "127.0.0.1:0"}, "ha_listen needs listen with a port above 2, got '127.0.0.1:0'"),
        ({"listen": None}, "ha_listen needs listen with a port above 2, got None"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOptionError) as error:
        serve(tmp_path / "store", **({"unix": str(tmp_path / "s")} | options))
    assert text in str(error.value)
    assert not (tmp_path / "store").exists()
