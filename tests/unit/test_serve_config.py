"""Guards the configuration of `txstore serve`: a flag wins over a variable, a variable over the file, the file over the
default; a wrong name or value is an error that names its source, before a store is made.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import txstore

pytest.importorskip("typer")

from txstore.cli.serve_config import Configuration, read_configuration
from txstore.errors import InvalidOptionError

_ENTRY = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())", "serve"]


def _file(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text)
    return path


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    file = _file(
        tmp_path, 'listen = "127.0.0.1:1"\nname_server = "127.0.0.1:2"\nmetrics = "127.0.0.1:3"\nreplica_timeout = 7\n'
    )
    variables = {"TXSTORE_SERVE_NAME_SERVER": "127.0.0.1:22", "TXSTORE_SERVE_METRICS": "127.0.0.1:33"}
    found = read_configuration(file, variables, {"metrics": "127.0.0.1:333"})
    assert found.server.metrics == "127.0.0.1:333"
    assert found.server.name_server == "127.0.0.1:22"
    assert found.server.listen == "127.0.0.1:1"
    assert found.server.replica_timeout == 7
    assert found.server.replica_ack == txstore.ServerConfig().replica_ack


def test_every_option_of_the_server_can_be_in_the_file_and_in_variables(tmp_path: Path) -> None:
    file = _file(tmp_path, "memory_max = 1048576\nauto_create_subscription_group = false\nidle_timeout = 30.5\n")
    found = read_configuration(file, {"TXSTORE_SERVE_CONNECTIONS_MAX": "17"}, {})
    assert (found.server.memory_max, found.server.auto_create_subscription_group) == (1048576, False)
    assert (found.server.idle_timeout, found.server.connections_max) == (30.5, 17)
    off = {"TXSTORE_SERVE_AUTO_CREATE_SUBSCRIPTION_GROUP": "no"}
    assert read_configuration(None, off, {}).server.auto_create_subscription_group is False


def test_settings_of_the_store_come_from_a_table_a_variable_and_flags(tmp_path: Path) -> None:
    file = _file(
        tmp_path, '[store]\nflush_disk_type = "SYNC_FLUSH"\ntransaction_timeout = 5\ntransaction_check_interval = 9\n'
    )
    variables = {"TXSTORE_SERVE_SET": "transaction_check_interval=8 transaction_timeout=6"}
    found = read_configuration(file, variables, {}, ["transaction_timeout=4"])
    assert found.store == {"flush_disk_type": "SYNC_FLUSH", "transaction_check_interval": 8, "transaction_timeout": 4}


def test_none_means_no_address() -> None:
    found = read_configuration(None, {"TXSTORE_SERVE_NAME_SERVER": "none"}, {"listen": "none", "unix": "s"})
    assert (found.server.listen, found.server.name_server, found.server.unix) == (None, None, "s")


def test_without_anything_there_are_the_defaults() -> None:
    assert read_configuration(None, {}, {}) == Configuration(txstore.ServerConfig(), {}, "text")


def test_the_file_on_the_page_is_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate" / "serve.md").read_text()
    (shown,) = (text for text in re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL) if "[store]" in text)
    found = read_configuration(_file(tmp_path, shown), {}, {})
    assert (found.server.memory_max, found.log) == (256 << 20, "json")
    assert found.store == {"flush_disk_type": "SYNC_FLUSH", "transaction_timeout": 10}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('lisen = "127.0.0.1:1"\n', ["'lisen'", "serve.toml", "listen"]),
        ("[store]\nflush_disk = 1\n", ["serve.toml", "flush_disk", "[store]", "did you mean flush_disk_type"]),
        ("[server]\nlisten = 1\n", ["'server'", "[store]"]),
        ("listen = 5\n", ["listen", "5", "text"]),
        ('memory_max = "much"\n', ["memory_max", "'much'", "number"]),
        ("memory_max = true\n", ["memory_max", "True", "number"]),
        ("auto_create_subscription_group = 1\n", ["auto_create_subscription_group", "1", "true or false"]),
        ("listen = \n", ["serve.toml", "line 1"]),
        ('log = "xml"\n', ["serve.toml", "log", "'xml'", "text or json"]),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, text: str, what: list[str]) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        read_configuration(_file(tmp_path, text), {}, {})
    for part in what:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({"TXSTORE_SERVE_LISTN": "127.0.0.1:1"}, ["TXSTORE_SERVE_LISTN", "TXSTORE_SERVE_LISTEN"]),
        ({"TXSTORE_SERVE_MEMORY_MAX": "1G"}, ["TXSTORE_SERVE_MEMORY_MAX", "'1G'", "number"]),
        (
            {"TXSTORE_SERVE_SET": "transaction_check_interval"},
            ["TXSTORE_SERVE_SET", "transaction_check_interval", "NAME=VALUE"],
        ),
        ({"TXSTORE_SERVE_AUTO_CREATE_SUBSCRIPTION_GROUP": "maybe"}, ["'maybe'", "true or false"]),
    ],
)
def test_a_wrong_variable_is_an_error_that_names_it(variables: dict[str, str], what: list[str]) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        read_configuration(None, variables, {})
    for part in what:
        assert part in str(raised.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"missing\.toml"):
        read_configuration(tmp_path / "missing.toml", {}, {})
