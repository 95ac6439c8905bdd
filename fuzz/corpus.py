"""A corpus for the fuzz targets, made from the golden stores: real brokers' bytes to begin with.

In: tests/golden/stores, snapshots of the engine that took them over, requests by hand. Out: fuzz/corpus/TARGET/NAME, by
content; with `--seeds` a few small ones in fuzz/seeds, which are committed. Always: the same from the same stores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import struct
import tempfile
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard

import txstore
from tests.frames import binary_header, frame, json_header, signed
from tests.golden.unpack import NAMES, TRANSACTIONAL, Unpacked

FUZZ = Path(__file__).parent
MAGICS = {0xDAA320A7: 1, 0xDAA320AB: 2}
INPUT_BYTES_MAX = 1024
SEED_BYTES_MAX = 600
SEEDS_MAX = 6
RECORDS_MAX = 120
STORES = 300

Input = tuple[str, bytes]
CODES = (310, 34, 37, 10, 11, 12, 14, 15, 29, 30, 33, 35, 36, 38, 41, 46, 105, 106, 215, 320, 361, 9999)
FIELDS = {"a": "g", "b": "orders", "topic": "orders", "consumerGroup": "g", "group": "g", "offset": 7, "e": -1}


def records(log: Path) -> Iterator[bytes]:
    """The whole records that a log's file begins with."""
    data, at = log.read_bytes(), 0
    while len(data) - at >= 8:
        size, magic = struct.unpack_from(">II", data, at)
        if magic not in MAGICS:
            return
        yield data[at : at + size]
        at += size


def of_record(record: bytes) -> Iterator[Input]:
    """A record as it is, its properties, its body as half and op, its ids."""
    sys_flag = struct.unpack_from(">i", record, 36)[0]
    at = 84 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    (body_length,) = struct.unpack_from(">I", record, at)
    body, at = record[at + 4 : at + 4 + body_length], at + 4 + body_length
    wide = MAGICS[struct.unpack_from(">I", record, 4)[0]]
    topic_length = int.from_bytes(record[at : at + wide])
    topic, at = record[at + wide : at + wide + topic_length], at + wide + topic_length
    properties = record[at + 2 :]
    yield "record", b"\x04" + record
    yield "properties", properties
    yield "half", bytes([min(len(properties), 255)]) + properties[:255] + body[:200]
    yield "names", bytes(8) + topic
    values = (entry.split(b"\x01")[-1] for entry in properties.split(b"\x02") if entry)
    yield from (("names", bytes(8) + value) for value in values)
    if sys_flag & 1:
        yield "body", bytes([sys_flag >> 8 & 7]) + body


def of_store(store: Path) -> Iterator[Input]:
    """Every file of a store, for the target that reads its kind."""
    for path in sorted(store.rglob("*")):
        room = path.relative_to(store).parts[0]
        if not path.is_file():
            continue
        if room == "commitlog" and path.name.isdigit():
            for record in islice(records(path), RECORDS_MAX):
                yield from of_record(record)
        elif room == "consumequeue":
            yield "queue", b"\x00\x03" + path.read_bytes()[:240]
        elif room == "index":
            yield "index", bytes(4) + path.read_bytes()[:240]
        elif room == "config":
            yield "config", path.read_bytes()
            yield "offsets", path.read_bytes()


def made(directory: Path, golden: Unpacked) -> Iterator[Input]:
    """What no broker writes: the engine's snapshots, other compressions, plans of whole stores."""
    for name in TRANSACTIONAL:
        copy = golden[name].copy_to(directory)
        txstore.open(copy).close()
        yield "snapshot", (copy / "txstore" / "snapshot").read_bytes()
        yield "config", (copy / "txstore" / "settings.json").read_bytes()
    yield "body", b"\x03" + zlib.compress(b"seventeen" * 20)
    yield "body", b"\x02" + zstandard.compress(b"seventeen" * 20)
    chance = random.Random(17)
    for _ in range(STORES):
        yield "store", bytes([chance.randrange(32), chance.randrange(40)]) + chance.randbytes(chance.randrange(20, 240))


def of_wire() -> Iterator[Input]:
    """Requests by hand, in both ways of writing headers, some of them signed."""
    beat = {"clientID": "c1", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "orders"}]}]}
    for number, code in enumerate(CODES):
        fields: dict[str, Any] = FIELDS | ({"tranStateTableOffset": number} if code == 37 else {})
        body = json.dumps(beat | {"consumerGroup": "g", "mqSet": []}).encode() if code in (34, 41) else b"seventeen"
        who = ("nothing", "sends", "reads", "operator")[number % 4]
        for said in (fields, signed(fields, body, who, f"the secret of {who}")):
            for kind, header in enumerate((json_header, binary_header)):
                whole = frame(header(code, said, number), body, kind=kind)
                yield "frame", bytes([1 + number * 9]) + whole
                yield "access", bytes([number]) + whole
    two = frame(json_header(105, {"topic": "käse"}, 1)) + frame(binary_header(30, {}, 2, 1), b"x", kind=1)
    yield from (("frame", bytes([size]) + two) for size in (1, 5, 200))


def of_grpc() -> Iterator[Input]:
    """Requests of the gRPC protocol, as RocketMQ's Python client encodes them."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # The client makes a folder of logs there at its import.
        from google.protobuf import json_format
        from rocketmq.grpc_protocol import service_pb2

        system = {"message_id": "01" * 17, "tag": "paid", "keys": ["k1", "k2"], "body_encoding": "IDENTITY"}
        kinds: list[dict[str, Any]] = [
            {"message_type": "NORMAL", "born_timestamp": "2026-01-02T03:04:05Z"},
            {"message_type": "FIFO", "message_group": "g"},
            {"message_type": "DELAY", "delivery_timestamp": "2023-11-14T22:13:21Z"},
            {"message_type": "TRANSACTION", "orphaned_transaction_recovery_duration": "30s"},
            {"body_encoding": "GZIP"},
        ]
        requests: list[tuple[int, str, dict[str, Any]]] = []
        for kind in kinds:
            message = {"topic": {"name": "orders"}, "system_properties": system | kind, "body": "eHh4"}
            requests.append((0, "SendMessageRequest", {"messages": [message | {"user_properties": {"a": "1"}}]}))
        end = {"topic": {"name": "orders"}, "message_id": "01" * 17, "transaction_id": "0" * 31 + "7"}
        requests.append((1, "EndTransactionRequest", end | {"resolution": "COMMIT", "source": "SOURCE_SERVER_CHECK"}))
        publishing = {"topics": [{"name": "orders"}]}
        subscription = {"group": {"name": "g"}, "subscriptions": [{"topic": {"name": "orders"}}]}
        settings = (
            {"client_type": "PRODUCER", "publishing": publishing},
            {"client_type": 2, "subscription": subscription},
        )
        requests += [(2, "TelemetryCommand", {"settings": said}) for said in settings]
        endpoints = {"scheme": "IPv4", "addresses": [{"host": "127.0.0.1", "port": 8081}]}
        requests.append((3, "QueryRouteRequest", {"topic": {"name": "orders"}, "endpoints": endpoints}))
        requests.append((4, "HeartbeatRequest", {"group": {"name": "g"}, "client_type": "PUSH_CONSUMER"}))
        for number, name, said in requests[-1:] + requests[:-1]:
            encoded = json_format.ParseDict(said, getattr(service_pb2, name)()).SerializeToString(deterministic=True)
            yield "grpc", bytes([number]) + encoded


def write(inputs: Iterator[Input], folder: Path, small: bool) -> dict[str, int]:
    """Writes each input once, named by its content; how many there are of each target."""
    counts: dict[str, int] = {}
    seen: set[Input] = set()
    for target, data in inputs:
        full = small and counts.get(target, 0) >= SEEDS_MAX
        if full or (target, data) in seen or len(data) > (SEED_BYTES_MAX if small else INPUT_BYTES_MAX):
            continue
        seen.add((target, data))
        counts[target] = counts.get(target, 0) + 1
        (folder / target).mkdir(parents=True, exist_ok=True)
        (folder / target / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    return counts


def main() -> None:
    """Makes the corpus, or the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", action="store_true", help="only a few small ones, into fuzz/seeds")
    small = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as directory:
        golden = Unpacked(Path(directory) / "golden")
        real = (found for name in NAMES for found in of_store(golden[name].store))
        inputs = (*of_wire(), *of_grpc(), *made(Path(directory) / "copies", golden), *real)
        counts = write(iter(inputs), FUZZ / ("seeds" if small else "corpus"), small)
    print(", ".join(f"{target} {count}" for target, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
