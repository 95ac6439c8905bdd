"""Guards commands on a terminal: the screen, its colours, Ctrl-C and completion by Tab.

Commands run in a real pseudo-terminal while a broker writes in this process; a terminal emulator shows the screen as a
user would see it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.unit.conftest import SMALL
from tests.unit.terminal import CTRL_C, Terminal
from txstore import EmbeddedBroker, Message

TXSTORE = [sys.executable, "-m", "txstore.cli.main"]
SCRIPTS = sysconfig.get_path("scripts")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    options = {**SMALL, "flush_consumer_offset_interval": 0.05, "transaction_check_interval": 3600}
    # A screen has 110 columns, and no path may push the numbers out of their line.
    directory = tmp_path / ("long-" * 20)
    directory.mkdir()
    with txstore.open(directory / "orders.store", **options) as broker:
        broker.create_topic("orders", 2)
        yield broker


def send(broker: EmbeddedBroker, count: int) -> None:
    producer = broker.producer("shop")
    for number in range(count):
        producer.send(Message("orders", f"order {number}".encode(), tags="paid", keys=[f"o-{number}"]))


def begun(broker: EmbeddedBroker, name: str) -> str:
    """Begins a transaction that stays pending."""
    message = Message("orders", name.encode())
    return broker.prepare(message, 0, "order-service").message_id


def test_table_has_a_bold_header_and_coloured_states(writer: EmbeddedBroker) -> None:
    done, _ = begun(writer, "first"), begun(writer, "second")
    writer.end_transaction(done, txstore.LocalTransactionState.COMMIT)
    command = [*TXSTORE, "tx", "list", "--all", writer.path]
    with Terminal(command) as terminal:
        assert terminal.end() == 0
        lines = terminal.screen.display
        row, column = next((n, line.index("committed")) for n, line in enumerate(lines) if "committed" in line)
        assert terminal.screen.buffer[row][column].fg == "green"
        assert terminal.screen.buffer[0][0].bold
        assert "pending" in terminal.text
    with Terminal(command, {"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert terminal.screen.buffer[row][column].fg == "default"
        assert not terminal.screen.buffer[0][0].bold
    piped = subprocess.run(command, capture_output=True, check=True)
    assert b"committed" in piped.stdout
    assert b"\x1b" not in piped.stdout


def test_tail_follows_a_writer_until_ctrl_c(writer: EmbeddedBroker) -> None:
    send(writer, 12)
    with Terminal([*TXSTORE, "tail", "-f", "-n", "3", writer.path, "orders"]) as terminal:
        screen = terminal.wait_for("order 11")
        assert [line.split()[-1] for line in screen.splitlines()] == ["9", "10", "11"]
        writer.producer("shop").send(Message("orders", "später".encode(), tags="new"))
        screen = terminal.wait_for("später")
        assert re.search(r"orders/\d@\d +new +später", screen)
        terminal.press(CTRL_C)
        assert terminal.end() == 130
        assert "txstore: interrupted" in terminal.text
        assert "Traceback" not in terminal.text


def test_consume_follows_and_keeps_its_offset_at_the_end(writer: EmbeddedBroker) -> None:
    send(writer, 3)
    writer.producer("shop").send(Message("orders", b"a second later", delay_level=1))
    path = writer.path
    writer.close()
    with Terminal([*TXSTORE, "consume", "-f", "-g", "shipping", path, "orders"]) as terminal:
        terminal.wait_for("order 0", "order 1", "order 2", "a second later")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.text
    with txstore.open(path, read_only=True) as reader:
        assert reader.open_report.clean
        assert reader.describe_group("shipping").lag == 0


def test_control_characters_of_a_message_do_not_reach_the_terminal(writer: EmbeddedBroker) -> None:
    writer.producer("shop").send(Message("orders", b"\x1b[2Jgone?\nnew line", keys=["\x1b[31mkey"]))
    with Terminal([*TXSTORE, "tail", writer.path, "orders"]) as terminal:
        assert terminal.end() == 0
        assert r"\x1b[2Jgone?\nnew line" in terminal.text
        assert r"\x1b[31mkey" in terminal.text


def test_top_shows_rates_lag_and_pending_transactions(writer: EmbeddedBroker) -> None:
    send(writer, 40)
    begun(writer, "an order that is pending")
    with (
        Terminal([*TXSTORE, "top", "--interval", "0.2", writer.path]) as terminal,
        writer.consumer("shipping", "orders") as consumer,
    ):
        screen = terminal.wait_for("orders.store", " B/s ", "pending longest", "order-service")
        head = r"^log [0-9.]+ KiB, .+ B/s [▁▂▃▄▅▆▇█]+    1 pending, the oldest for \w+ [▁▂▃▄▅▆▇█]+$"
        assert re.search(head, screen, re.MULTILINE)
        assert re.search(r"^orders +40 +0\.0 +▁+$", terminal.wait_for("0.0"), re.MULTILINE)
        assert "╭─ pending longest ─" in screen
        assert len(consumer.poll(32)) == 32
        consumer.acknowledge()
        terminal.wait_until(lambda screen: re.search(r"^shipping +orders +8 ", screen, re.MULTILINE) is not None)
        send(writer, 10)
        terminal.wait_until(lambda screen: re.search(r"^orders +50 +[1-9]", screen, re.MULTILINE) is not None)
        terminal.wait_until(lambda screen: re.search(r"^shipping +orders +18 ", screen, re.MULTILINE) is not None)
        rate = r"^orders +50 .* ▁*[▂▃▄▅▆▇█]"  # What was sent is seen in the line of its topic.
        terminal.wait_until(lambda screen: re.search(rate, screen, re.MULTILINE) is not None)
        row = next(number for number, line in enumerate(terminal.screen.display) if line.startswith("shipping"))
        assert colour_of(terminal, row, "18") == "brown"
        terminal.press(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.text


def colour_of(terminal: Terminal, row: int, text: str) -> str:
    """The colour of a text in a row of the screen. A terminal's yellow is called brown."""
    return str(terminal.screen.buffer[row][terminal.screen.display[row].index(text)].fg)


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_lag_and_age_are_coloured_by_how_bad_they_are(writer: EmbeddedBroker, environment: dict[str, str]) -> None:
    send(writer, 1)
    writer.create_group("slow")
    writer.set_consumer_offset("orders", "slow", 0, 0)
    writer.set_consumer_offset("orders", "slow", 1, 0)
    writer.write_offsets()
    begun(writer, "an order that is pending")
    with Terminal([*TXSTORE, "group", "list", writer.path], environment) as terminal:
        assert terminal.end() == 0
        row = next(number for number, line in enumerate(terminal.screen.display) if line.startswith("slow"))
        assert colour_of(terminal, row, "1") == ("default" if environment else "brown")
    with Terminal([*TXSTORE, "tx", "list", writer.path], environment) as terminal:
        assert terminal.end() == 0
        assert "order-service" in terminal.text
        assert all(cell.fg == "default" for cell in terminal.screen.buffer[1].values()), (
            "it waits for less than a minute"
        )


def test_error_is_red_and_says_what_to_do(tmp_path: Path) -> None:
    with Terminal([*TXSTORE, "topic", "list", str(tmp_path / "nowhere")]) as terminal:
        assert terminal.end() == 3
        shown = " ".join(terminal.text.split())
        assert shown.startswith("txstore: error: ")
        assert "hint: pass the directory" in shown
        assert terminal.screen.buffer[0][len("txstore: ")].fg == "red"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not there")
def test_tab_completes_verbs_and_topics_of_the_store(writer: EmbeddedBroker) -> None:
    assert (Path(SCRIPTS) / "txstore").exists(), "the command is installed with the package"
    writer.create_topic("paid-orders")
    settings = {"PATH": f"{SCRIPTS}:{os.environ['PATH']}", "PS1": "ready> ", "HISTFILE": ""}
    with Terminal(["bash", "--norc", "--noprofile", "-i"], settings) as terminal:
        terminal.wait_for("ready>")
        terminal.press(b'eval "$(txstore --show-completion)"; clear; echo loaded\n')
        terminal.wait_for("loaded\nready>")
        terminal.press(b"txstore topic des\t")
        terminal.wait_for("txstore topic describe")
        terminal.press(f"{writer.path} paid\t".encode())
        terminal.wait_until(lambda screen: "paid-orders" in screen.replace("\n", ""))
        terminal.press(b"\n")
        terminal.wait_for("write queues", "messages")


def test_irreversible_command_asks_for_confirmation(tmp_path: Path) -> None:
    path = tmp_path / "orders.store"
    with txstore.open(path, **SMALL) as broker:
        broker.create_topic("orders", 2)
        send(broker, 3)
    for answer, code, left in (("", 1, ["orders"]), ("n", 1, ["orders"]), ("y", 0, [])):
        with Terminal([*TXSTORE, "topic", "delete", str(path), "orders"]) as terminal:
            terminal.wait_for("delete topic orders with 3 messages? [y/N]")
            terminal.press(f"{answer}\r".encode())
            assert terminal.end() == code
        with txstore.open(path) as broker:
            assert broker.topics() == left
