"""Guards the pytest plugin: its fixtures work in a project of a user's, and cost a project nothing that has none."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

PLACED_ORDERS = """
import pytest
from txstore import LocalTransactionState, Message
from txstore.testing import CrashPoint, SimulatedCrash

paid = set()

def check(message):
    return LocalTransactionState.COMMIT if message.transaction_id in paid else LocalTransactionState.ROLLBACK

def pay(broker):
    with broker.transaction_producer("pay", check_listener=check).transaction(Message("orders", b"17")) as tx:
        paid.add(tx.transaction_id)

def test_clock_is_the_brokers(txstore_broker, txstore_clock):
    assert txstore_broker.clock is txstore_clock

@pytest.mark.parametrize("point", ["before_end", "after_end"])
def test_paid_order_is_published_after_a_crash(txstore_broker, txstore_clock, point):
    txstore_broker.crash_at(point, power_loss=True)
    with pytest.raises(SimulatedCrash):
        pay(txstore_broker)
    broker = txstore_broker.reopen()
    broker.transaction_producer("pay", check_listener=check)
    txstore_clock.advance(6)
    assert broker.run_checks() == 1
    with broker.consumer("shipping", "orders") as consumer:
        assert [message.body for message in consumer.poll(timeout=5)] == [b"17"]
    pytest.brokers = [txstore_broker, broker]

def test_brokers_are_closed_after_their_test():
    assert all(broker.closed for broker in pytest.brokers)
"""


def run(*command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=120)


def test_fixtures_in_the_tests_of_a_project(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(PLACED_ORDERS)
    done = run("-m", "pytest", "-q", "-p", "pytest_txstore", "-p", "no:cacheprovider", "-p", "no:xdist", cwd=tmp_path)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_the_plugin_by_itself() -> None:
    assert [point.value for point in entry_points(group="pytest11", name="pytest_txstore")] == ["pytest_txstore"]


def test_plugin_imports_txstore_only_when_a_fixture_is_used(tmp_path: Path) -> None:
    program = "import sys, pytest_txstore; print([name for name in sys.modules if name.split('.')[0] == 'txstore'])"
    assert run("-c", program, cwd=tmp_path).stdout == "[]\n"


def test_fake_broker_needs_no_pytest(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pytest'] = None; from txstore.testing import FakeBroker; FakeBroker().close()"
    done = run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
