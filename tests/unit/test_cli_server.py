"""Guards the command line on a store in use: each verb that writes works while a program has the store open, and the
program sees its effect.

`txstore serve` is a process of its own, so no command can open its store for writing: it is named by its address or by
the store's path. An embedded program answers at the store's socket.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.unit.conftest import Run
from tests.unit.test_administration import ACCOUNTS, Unknown
from tests.unit.test_cli_serve import serving
from tests.waiting import eventually
from txstore import Message, RemoteBroker
from txstore.database import Database

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FAST = ["--set", "transaction_check_interval=3600", "--set", "mapped_file_size_commit_log=1048576"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.store"


@pytest.fixture
def address(path: Path) -> Iterator[str]:
    """The address of a server's process."""
    with serving(path, *_FAST) as (_, addresses):
        yield addresses["broker"]


@pytest.fixture
def server(address: str) -> Iterator[RemoteBroker]:
    """The server, as another client sees it. It has a topic, a group with a dead letter, and pending transactions."""
    with txstore.connect(address) as remote:
        remote.create_topic("orders", 2)
        remote.create_group("shipping")
        yield remote


def begin(server: RemoteBroker) -> str:
    with server.transaction_producer("shop", Unknown()) as producer:
        return str(producer.send_in_transaction(Message("orders", b"17")).transaction_id)


def done(run: Run, *arguments: object) -> str:
    """Runs a command that must succeed, and returns its output."""
    code, out, err = run(*arguments)
    assert (code, err) == (0, ""), (arguments, out)
    return out


def test_messages_are_sent_and_consumed(run: Run, address: str, server: RemoteBroker) -> None:
    done(run, "send", "--server", address, "orders", "hello", "--tags", "paid", "--queue", 1)
    assert [message.body for message in server.read("orders", 1, 0)[0]] == [b"hello"]
    assert "hello" in done(run, "tail", "orders", "--server", address)
    assert "hello" in done(run, "consume", "orders", "--server", address, "--group", "shipping")
    eventually(lambda: server.describe_group("shipping").lag == 0)
    assert json.loads(done(run, "message", "get", "--json", "--server", address, _only_id(server)))["body"] == "hello"
    code, _, err = run("send", "--server", address, "other", "x")
    assert (code, "there is no topic other" in err, f"txstore topic create --server {address} other" in err) == (
        2,
        True,
        True,
    )


def test_message_is_sent_for_a_time_and_recalled(run: Run, address: str, server: RemoteBroker) -> None:
    sent = json.loads(done(run, "send", "--server", address, "orders", "pay!", "--deliver-at", "1h", "--json"))
    recalled = done(run, "message", "recall", "--server", address, sent["recall_handle"], "--json")
    assert json.loads(recalled) == {"recalled": sent["message_id"]}
    code, _, err = run("message", "recall", "--server", address, sent["recall_handle"])
    assert (code, "was delivered, recalled or never sent" in err) == (1, True)
    code, _, err = run("send", "--server", address, "orders", "x", "--deliver-at", "99d")
    assert (code, "timer_max_delay_sec" in err) == (2, True)


def _only_id(server: RemoteBroker) -> str:
    return server.read("orders", 1, 0)[0][0].message_id


def test_topics_and_groups_are_changed(run: Run, address: str, server: RemoteBroker) -> None:
    done(run, "topic", "create", "--server", address, "bills", "--queues", 3)
    assert len(server.describe_topic("bills").read_queues) == 3
    assert "bills" in done(run, "topic", "list", "--server", address)
    assert "queue" in done(run, "topic", "describe", "--server", address, "bills")
    done(run, "topic", "delete", "--server", address, "bills", "--yes")
    assert not server.has_topic("bills")
    done(run, "group", "create", "--server", address, "billing")
    assert server.has_group("billing")
    for _ in range(3):
        done(run, "send", "--server", address, "orders", "x", "--queue", 0)
    done(run, "group", "reset", "--server", address, "billing", "orders", "--to", "2", "--queue", 0)
    lag = next(row for row in server.lag("billing") if (row.topic, row.queue_id) == ("orders", 0))
    assert (lag.consumer_offset, lag.lag) == (2, 1)
    assert "billing" in done(run, "group", "list", "--server", address)
    assert "orders" in done(run, "group", "describe", "--server", address, "billing")
    done(run, "group", "delete", "--server", address, "billing", "--yes")
    assert not server.has_group("billing")


def test_transactions_are_ended(run: Run, address: str, server: RemoteBroker) -> None:
    committed, rolled_back, discarded = (begin(server) for _ in range(3))
    listed = json.loads(done(run, "tx", "list", "--server", address, "--json"))
    assert [row["transaction_id"] for row in listed] == [committed, rolled_back, discarded]
    assert "pending" in done(run, "tx", "explain", "--server", address, committed)
    done(run, "tx", "commit", "--server", address, committed)
    done(run, "tx", "rollback", "--server", address, rolled_back)
    done(run, "tx", "discard", "--server", address, discarded)
    assert [row.state for row in server.transactions(None)] == ["committed", "rolled_back", "discarded"]
    assert json.loads(done(run, "tx", "show", "--server", address, discarded, "--json"))["state"] == "discarded"
    done(run, "tx", "resume", "--server", address, discarded)
    assert [one.transaction_id for one in server.transactions()] == [discarded]


def test_a_server_is_watched_and_measured(
    run: Run, address: str, server: RemoteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(run, "send", "--server", address, "orders", "x", "--queue", 0)
    pending = begin(server)
    lines = done(run, "top", "--server", address, "--json", "--count", 2, "--interval", 0.1).splitlines()
    view = json.loads(lines[1])
    assert (len(lines), view["pending"], view["oldest"][0]["transaction_id"]) == (2, 1, pending)
    assert view["topics"] == [{"topic": "orders", "messages": 1, "per_second": 0.0}]
    assert done(run, "store", "stat", "--server", address).split()[:2] == ["path", address]
    monkeypatch.setenv("TXSTORE_SERVER", address)
    facts = json.loads(done(run, "store", "stat", "--json"))
    assert (facts["pending_transactions"], facts["open"]) == (1, None)
    assert {"topic": "orders", "queue_id": 0, "first": 0, "end": 1} in facts["queue_ranges"]


@pytest.mark.parametrize("verb", ["create", "check", "repair", "dump", "heal"])
def test_a_command_that_needs_files_says_so(verb: str, run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "127.0.0.1:1"
    texts = [run("store", verb, "--server", address)]
    texts.append(run("store", verb, path, f"--server={address}"))
    monkeypatch.setenv("TXSTORE_SERVER", address)
    texts.append(run("store", verb))
    for code, out, err in texts:
        assert (code, out) == (2, "")
        assert f"`txstore store {verb}` needs the files of a store, so no server can do it" in err
        assert "hint: pass the store's PATH" in err
    assert not path.exists()


def test_dead_letters_are_resent(run: Run, address: str, server: RemoteBroker) -> None:
    done(run, "send", "--server", address, "orders", "x")
    with server.consumer("shipping", "orders", max_reconsume_times=0) as consumer:
        for message in consumer.poll(timeout=20):
            message.retry()
    eventually(lambda: len(server.dead_letters("shipping")) == 1)
    assert "orders" in done(run, "dlq", "list", "--server", address, "shipping")
    done(run, "dlq", "resend", "--server", address, "shipping", "--all")
    assert server.queues("%RETRY%shipping")[0].end == 1


def test_program_that_has_the_store_open_makes_the_calls(
    run: Run, path: Path, server: RemoteBroker, tmp_path: Path
) -> None:
    done(run, "topic", "create", path, "bills", "--queues", 1)
    assert server.has_topic("bills")
    done(run, "send", path, "bills", "hello")
    assert "hello" in done(run, "consume", path, "bills", "--group", "shipping")
    pending = begin(server)
    done(run, "tx", "rollback", path, pending)
    assert [row.state for row in server.transactions(None)] == ["rolled_back"]
    done(run, "topic", "delete", path, "bills", "--yes")
    assert not server.has_topic("bills")


def test_embedded_program_makes_the_calls(run: Run, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "own.store", transaction_check_interval=3600) as broker:
        done(run, "topic", "create", broker.path, "bills", "--queues", 1)
        assert broker.has_topic("bills")
        with broker.transaction_producer("shop", Unknown()) as producer:
            pending = str(producer.send_in_transaction(Message("bills", b"17")).transaction_id)
        done(run, "tx", "commit", broker.path, pending)
        assert broker.transaction(pending).state == "committed"


def test_program_that_does_not_listen_is_reported(run: Run, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "own.store", listen=False) as broker:
        code, _, err = run("topic", "create", broker.path, "bills")
    assert (code, "does not answer" in err, "--server ADDRESS" in err) == (3, True, True)


# How the store is named


def test_variables_replace_the_argument(
    run: Run, address: str, path: Path, server: RemoteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXSTORE_SERVER", address)
    done(run, "topic", "create", "bills")
    assert server.has_topic("bills")
    done(run, "send", "bills", "one body")
    assert "bills" in done(run, "topic", "list", path), "a path that is given is used"
    # With both, the server is operated.
    monkeypatch.setenv("TXSTORE_PATH", "/does/not/exist")
    assert "bills" in done(run, "topic", "list")
    code, _, err = run("topic", "list", path, "--server", address)
    assert (code, "both a path and a server are given" in err) == (2, True)


def test_path_variable_replaces_the_argument(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orders.store"
    done(run, "store", "create", path)
    monkeypatch.setenv("TXSTORE_PATH", str(path))
    done(run, "topic", "create", "bills", "--queues", 1)
    done(run, "send", "bills", "hello")
    assert "hello" in done(run, "tail", "bills")
    assert "physical" in done(run, "store", "stat")
    assert run("tail")[0] == 2
    assert run("tail", "bills", "hello", "more")[0] == 2


def test_variables_leave_commands_without_a_path_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from txstore.cli.arguments import noun  # It needs typer.

    seen: list[str] = []
    app = noun()

    @app.command()
    def look(database: str) -> None:
        seen.append(database)

    monkeypatch.setenv("TXSTORE_PATH", "orders.store")
    app(["orders"], standalone_mode=False)
    assert seen == ["orders"]


def test_part_of_an_id_is_enough(run: Run, address: str, server: RemoteBroker, path: Path) -> None:
    first, second = begin(server), begin(server)
    alike = next(at for at, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    code, _, err = run("tx", "commit", "--server", address, first[:alike])
    assert (code, "2 transactions begin with" in err, second in err) == (2, True, True)
    assert server.transactions(id_prefix=second[: alike + 1])[0].transaction_id == second
    out = done(run, "tx", "commit", "--server", address, second[: alike + 1])
    assert out.startswith(f"{second}: committed")
    assert "committed" in done(run, "tx", "explain", "--server", address, second[: alike + 1])
    assert "committed" in done(run, "tx", "show", path, second[: alike + 1]), "also where the store is"
    code, _, err = run("tx", "commit", "--server", address, "7F00FFFFFFFF")
    assert (code, "no transaction" in err) == (1, True)


def test_accounts_and_tls_come_from_the_environment(
    run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    with serving(path, "--accounts", str(accounts)) as (_, addresses):
        monkeypatch.setenv("TXSTORE_SERVER", addresses["broker"])
        code, _, err = run("topic", "list")
        assert (code, "NO_PERMISSION" in err) == (3, True)
        monkeypatch.setenv("TXSTORE_ACCESS_KEY", "operator")
        monkeypatch.setenv("TXSTORE_SECRET_KEY", "operator-secret")
        done(run, "topic", "create", "orders")
        monkeypatch.setenv("TXSTORE_ACCESS_KEY", "shop-app")
        monkeypatch.setenv("TXSTORE_SECRET_KEY", "shop-app-secret")
        done(run, "send", "orders", "an account that may only send")
        assert run("topic", "delete", "orders", "--yes")[0] == 3
        code, _, err = run("send", "other", "x")
        assert (code, "there is no topic other" in err) == (2, True)
        monkeypatch.setenv("TXSTORE_TLS", str(tmp_path / "missing.pem"))
        code, _, err = run("topic", "list")
        assert (code, "missing.pem" in err) == (2, True)


# Hints

# The commands that texts of the package and the engine name, each with arguments with which it must succeed. {id} is a
# pending transaction's id, {server} the served store, {path} its directory, {closed} a store that no program has open.
NAMED = {
    "dlq list {path} {group}": "dlq list {server} shipping",
    "group delete --yes": "group delete {server} shipping --yes",
    "outbox list": "outbox list {database}",
    "replica forget": "replica forget --help",
    "replica promote": "replica promote --help",
    "replica promote {address}": "replica promote --help",
    "replica status": "replica status {address}",
    "serve": "serve --help",
    "serve PATH --replica-of ADDRESS": "serve --help",
    "store check": "store check {path}",
    "store check --deep {self._store}": "store check --deep {closed}",
    "store create {path}": "store create {new}",
    "store repair {path}": "store repair {closed}",
    "store stat {path}": "store stat {path}",
    "topic create {path} {topic}": "topic create {server} bills",
    "tx commit": "tx commit {server} {id}",
    "tx list --all": "tx list {server} --all",
    "tx list --topic {topic}": "tx list {server} --topic orders",
    "tx resume": "tx resume {server} {discarded}",
}


def texts(source: Path) -> Iterator[str]:
    """The texts of a source file, without comments and docstrings. Names in braces are those of the source."""
    if source.suffix == ".rs":
        yield "\n".join(line for line in source.read_text().splitlines() if not line.lstrip().startswith("//"))
        return
    tree = ast.parse(source.read_text())
    documented = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else ast.literal_eval(part)
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in documented:
            yield node.value


def commands_of_hints() -> set[str]:
    """All commands that texts of the package and the engine name."""
    sources = [*ROOT.glob("python/txstore/**/*.py"), *ROOT.glob("rust/src/**/*.rs")]
    return {
        command.strip()
        for source in sources
        if "`txstore " in source.read_text()
        for text in texts(source)
        for command in re.findall(r"(?<!\w)`txstore ([a-z][^`\n]*)`", text)
    }


FOUND = commands_of_hints()


def test_commands_of_hints_are_known() -> None:
    assert len(FOUND) > 10
    assert set(NAMED) >= FOUND


@pytest.mark.parametrize("command", [line for name, line in NAMED.items() if name in FOUND])
def test_command_of_a_hint_runs(command: str, run: Run, path: Path, server: RemoteBroker, tmp_path: Path) -> None:
    closed = tmp_path / "closed.store"
    done(run, "store", "create", closed)
    Database(str(tmp_path / "orders.db")).create_table()
    discarded = begin(server)
    server.discard(discarded)
    names = {
        "{id}": begin(server),
        "{discarded}": discarded,
        "{address}": server.address,
        "{path}": str(path),
        "{closed}": str(closed),
        "{new}": str(tmp_path / "new.store"),
        "{database}": str(tmp_path / "orders.db"),
    }
    words = command.replace("{server}", f"--server {server.address}").split()
    code, out, err = run(*(names.get(word, word) for word in words))
    assert code == 0, (command, out, err)
