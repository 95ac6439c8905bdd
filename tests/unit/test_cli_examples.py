"""Guards the examples of `--help`: every command ends with some, and accepts each of them as it is printed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.main import get_command

from tests.unit.conftest import Run
from txstore.cli.commands import app
from txstore.cli.examples import EXAMPLES


def commands_by_name() -> dict[str, Any]:
    """Each command that does something, by what a user types: `tx list`."""
    root: Any = get_command(app)
    nouns = {name: root.get_command(None, name) for name in root.list_commands(None)}
    return {
        f"{noun} {verb}".strip(): one
        for noun, command in nouns.items()
        for verb, one in (getattr(command, "commands", None) or {"": command}).items()
        if not one.hidden
    }


COMMANDS = commands_by_name()


def test_each_command_has_examples() -> None:
    assert sorted(EXAMPLES) == sorted(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_ends_with_examples_that_the_command_accepts(name: str, run: Run) -> None:
    code, out, _ = run(*name.split(), "--help")
    assert code == 0
    lines = [line.strip() for line in out.split("\n  Examples:\n")[1].splitlines()]
    assert lines == [f"txstore {name} {line}" for line in EXAMPLES[name]]
    for line in lines:
        program, *arguments = shlex.split(line.partition("<")[0])
        assert program == "txstore"
        # It parses and checks the arguments; an unknown option, a missing one or a wrong value raises.
        COMMANDS[name].make_context(name, arguments[len(name.split()) :])


def test_wrong_example_is_detected() -> None:
    with pytest.raises(Exception, match="topic"):
        COMMANDS["topic create"].make_context("topic create", ["orders.store"])
    with pytest.raises(Exception, match="--deeper"):
        COMMANDS["store check"].make_context("store check", ["orders.store", "--deeper"])
