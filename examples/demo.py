"""The demonstration: a service is killed between database and message, and a real broker's store is read.

Exits with 0 if the proof holds, otherwise with 1. All files are in a temporary directory that is removed at the end. A
random seed is printed unless you pass one. The service that is killed is examples/order_payment.py.

Run `make demo`, or `python -m examples.demo --orders 200 --kills 2 --seed 7`.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import txstore
from examples import order_payment
from examples.order_payment import CANNOT_PAY, PAYS, PAYS_BUT_WE_STUMBLE, database
from txstore.cli.output import print_table, utc
from txstore.cli.progress import Progress

PROJECT = Path(__file__).resolve().parents[1]
SETTLE_SECONDS_MAX = 60


def make_orders(directory: Path, count: int, chance: random.Random) -> Counter[str]:
    """Creates the database with `count` open orders of all kinds of customers."""
    kinds = chance.choices([PAYS, CANNOT_PAY, PAYS_BUT_WE_STUMBLE], weights=[87, 10, 3], k=count)
    with database(directory) as db, db:
        db.executescript(order_payment.SCHEMA)
        db.executemany("INSERT INTO orders (id, customer) VALUES (?, ?)", enumerate(kinds, start=1))
    return Counter(kinds)


def handled(directory: Path) -> int:
    """Returns how many orders are paid or refused."""
    with database(directory) as db:
        return int(db.execute("SELECT count(*) FROM orders WHERE state <> 'open'").fetchone()[0])


def start(directory: Path) -> subprocess.Popen[bytes]:
    """Starts the order service in another process."""
    return subprocess.Popen([sys.executable, "-m", "examples.order_payment", str(directory)], cwd=PROJECT)


def run_until(directory: Path, service: subprocess.Popen[bytes], threshold: int, bar: Progress) -> None:
    """Waits until the service has handled so many orders, or has ended."""
    while service.poll() is None and (done := handled(directory)) < threshold:
        bar.to(done)
        time.sleep(0.005)


def after_a_kill(directory: Path) -> str:
    """Describes what the killed process left open; only reads."""
    with txstore.open(directory / "orders.store", read_only=True) as broker:
        halves = [broker.store.half(half.half_queue_offset) for half in broker.store.halves_waiting(-1, 1000)]
    with database(directory) as db:
        paid = {row[0] for row in db.execute("SELECT transaction_id FROM payments")}
    known = sum(half.transaction_id in paid for half in halves)
    return f"{len(halves)} transactions left open: {known} paid, {len(halves) - known} not"


def run_with_kills(directory: Path, orders: int, kills: int, chance: random.Random) -> bool:
    """Runs the service to its end and kills it several times; returns False if it does not end."""
    moments = sorted(chance.sample(range(orders // 20, orders * 9 // 10), kills))
    with Progress("orders", orders) as bar:
        for number, moment in enumerate(moments, start=1):
            service = start(directory)
            run_until(directory, service, moment, bar)
            time.sleep(chance.uniform(0, 0.02))
            service.kill()
            service.wait()
            bar.wipe()
            print(f"  SIGKILL {number} after {handled(directory):,} orders. {after_a_kill(directory)}")
        service = start(directory)
        run_until(directory, service, orders, bar)
    try:
        return service.wait(SETTLE_SECONDS_MAX) == 0
    except subprocess.TimeoutExpired:
        service.kill()
        service.wait()
        return False


def messages_per_order(directory: Path) -> Counter[int]:
    """Returns how many messages a consumer gets for each order."""
    found: Counter[int] = Counter()
    with (
        txstore.open(directory / "orders.store") as broker,
        broker.consumer("shipping", order_payment.TOPIC) as consumer,
    ):
        while messages := consumer.poll(100, timeout=0.2):
            found.update(int(message.keys[0].removeprefix("order-")) for message in messages)
    return found


def prove(directory: Path) -> bool:
    """Compares the database with the messages that a consumer got."""
    messages = messages_per_order(directory)
    with database(directory) as db:
        states = Counter(dict(db.execute("SELECT state, count(*) FROM orders GROUP BY state").fetchall()))
        paid = {row[0] for row in db.execute("SELECT order_id FROM payments")}
    facts = [
        ["orders paid in the database", len(paid)],
        ["orders refused", states["refused"]],
        ["orders still open", states["open"]],
        ["messages a consumer got", messages.total()],
        ["paid, but without a message", len(paid - set(messages))],
        ["with a message, but not paid", len(set(messages) - paid)],
        ["with more than one message", sum(count > 1 for count in messages.values())],
    ]
    print_table(["the proof", "count"], facts)
    return not states["open"] and messages == Counter(paid)


def orders_and_payments(orders: int, kills: int, seed: int) -> bool:
    """Runs the first part."""
    chance = random.Random(seed)
    print(f"1. Orders and payments: {orders:,} orders, a service killed {kills} times (seed {seed})")
    with tempfile.TemporaryDirectory(prefix="txstore-demo-") as name:
        directory = Path(name)
        kinds = make_orders(directory, orders, chance)
        print("  customers: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()))
        settled = run_with_kills(directory, orders, kills, chance)
        print("  the last run ended normally, nothing is pending" if settled else "  THE LAST RUN DID NOT END")
        print()
        holds = settled and prove(directory)
    print("exactly the paid orders have a message, each exactly one" if holds else "THE PROOF FAILS")
    return holds


def a_brokers_store(shown: int) -> bool:
    """Runs the second part: reads a real RocketMQ broker's store as transactions."""
    from tests.golden.unpack import unpack  # The golden stores are packed with zstandard, a development dependency.

    print("2. A store of Apache RocketMQ 5.4.0: 300 transactions, as its broker left them")
    with tempfile.TemporaryDirectory(prefix="txstore-demo-") as name:
        store = unpack("tx", Path(name)).store
        with Progress("reading the log"), txstore.open(store, read_only=True) as broker:
            rows = broker.store.transactions()
    states = Counter(row.state for row in rows)
    print("  " + ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in states.most_common()))
    twice = [row for row in rows if len(row.finals) > 1]
    some = [row for number, row in enumerate(rows) if number < shown or len(row.finals) > 1]
    print_table(
        ["transaction", "topic", "state", "prepared", "copies", "checks", "messages at"],
        [
            [
                row.transaction_id,
                row.topic,
                row.state,
                utc(row.prepared_timestamp),
                len(row.halves),
                row.checks,
                " and ".join(map(str, row.finals)) + (" <- committed twice" if len(row.finals) > 1 else ""),
            ]
            for row in some
        ],
    )
    print(f"  … and {len(rows) - len(some)} more")
    print(f"{len(twice)} were delivered twice by the broker: an end and a check's answer crossed.")
    print("In txstore, one ordered table takes all ends: the first decides, the second finds it decided.")
    return len(twice) == 2


def main() -> int:
    arguments = argparse.ArgumentParser(description="Shows what txstore promises, in under a minute.")
    arguments.add_argument("--orders", type=int, default=1000)
    arguments.add_argument("--kills", type=int, default=3)
    arguments.add_argument("--seed", type=int, help="repeats the choices of a run (not its timing)")
    arguments.add_argument("--rows", type=int, default=10, help="how many of the broker's transactions are shown")
    options = arguments.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    began = time.monotonic()
    first = orders_and_payments(options.orders, options.kills, seed)
    print()
    second = a_brokers_store(options.rows)
    print()
    print(f"{time.monotonic() - began:.1f} s")
    return 0 if first and second else 1


if __name__ == "__main__":
    sys.exit(main())
