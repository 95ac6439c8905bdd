"""Guards the public API: what a user may import is a sorted, fixed list; the rest may change."""

import ast
import inspect
import logging
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
import txstore.aio
import txstore.backup
import txstore.database
import txstore.testing
import txstore.testing.aio
from txstore import EmbeddedBroker, Message
from txstore.interface import BrokerInterface
from txstore.testing import FakeBroker


def test_exported_names_are_sorted_and_complete() -> None:
    assert txstore.__all__ == sorted(txstore.__all__)
    assert len(set(txstore.__all__)) == len(txstore.__all__)
    for name in txstore.__all__:
        assert hasattr(txstore, name)


def test_a_scan_loads_neither_brokers_nor_clients() -> None:
    """Spark plans each query in a process of its own, which waits for this import."""
    program = (
        "import sys, txstore\n"
        "assert set(txstore.__all__) <= set(dir(txstore))\n"
        "txstore.scan\n"
        "print(*sorted(name for name in sys.modules if name.startswith('txstore.')), 'asyncio' in sys.modules)\n"
        "assert txstore.Message is txstore.Message is sys.modules['txstore.message'].Message"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    modules = ["txstore._native", "txstore.arrow", "txstore.errors", "txstore.transaction_state"]
    assert found.split() == [*modules, "False"]
    with pytest.raises(AttributeError, match="'txstore' has no attribute 'Massage'"):
        _ = txstore.Massage


def test_every_public_class_and_function_has_a_docstring() -> None:
    for name in txstore.__all__:
        value = getattr(txstore, name)
        if inspect.isclass(value) or callable(value):
            assert value.__doc__, name


def members(kind: type) -> Iterator[tuple[str, object]]:
    """The public members that a class defines, without those of exceptions and the fields of dataclasses."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        is_ours = name not in dir(OSError) and not isinstance(member, types.MemberDescriptorType)
        if is_ours and not name.startswith("_") and (inspect.isroutine(member) or inspect.isdatadescriptor(member)):
            yield name, getattr(kind, name)


@pytest.mark.parametrize(
    "module", [txstore, txstore.backup, txstore.database, txstore.aio, txstore.testing, txstore.testing.aio]
)
def test_every_public_method_and_property_has_a_docstring(module: Any) -> None:
    kinds = [getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))]
    silent = [f"{kind.__name__}.{name}" for kind in kinds for name, member in members(kind) if not member.__doc__]
    assert silent == []


def test_runtime_docstrings_of_the_engine_equal_its_stub() -> None:
    """An editor reads the stub; `help()` and generated pages read the extension."""
    stub = ast.parse((Path(txstore.__file__).parent / "_native.pyi").read_text())
    kinds = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    native = [kind for name in txstore.__all__ if (kind := getattr(txstore, name)).__class__ is type]
    for kind in (kind for kind in native if kind.__module__ == "txstore._native"):
        body = kinds[kind.__name__].body
        written = {one.name: ast.get_docstring(one) or "" for one in body if isinstance(one, ast.FunctionDef)}
        for name, member in members(kind):
            said = (inspect.getdoc(member) or "").replace("`", "")
            assert said.split() == written[name].replace("`", "").split(), f"{kind.__name__}.{name}"


def test_every_error_is_exported() -> None:
    from txstore import errors

    assert set(errors.__all__) <= set(txstore.__all__)


def test_brokers_implement_the_interface() -> None:
    def takes(broker: BrokerInterface) -> object:
        return broker

    assert takes(FakeBroker())


def test_bodies_are_never_logged(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "txstore")
    producer = broker.transaction_producer("g")
    producer.send(Message("t", b"hush-hush"))
    with pytest.raises(KeyError), producer.transaction(Message("t", b"hush-hush")):
        raise KeyError("x")
    with broker.consumer("c", "t") as consumer:
        consumer.poll(1)
    assert "hush" not in "".join(str(record.__dict__) for record in caplog.records)
