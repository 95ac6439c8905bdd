"""The story: a caller catches one class, reads facts as attributes, and sends the exception through a process pool."""

import inspect
import pickle

import pytest

from txstore import errors
from txstore.errors import AlreadyEndedError, DiskFullError, OffsetTooOldError, StoreLockedError, TxStoreError

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, TxStoreError)]
FACTS: dict[str, dict[str, object]] = {
    "AlreadyEndedError": {"outcome": "committed"},
    "StoreLockedError": {"pid": 12},
    "StoreCorruptError": {"file": "commitlog/0", "offset": 7},
    "OffsetTooOldError": {"minimum": 40},
    "DiskFullError": {"errno": 28, "filename": "commitlog/0"},
    "StoreIOError": {"errno": 5, "filename": "checkpoint"},
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_is_its_text_and_its_facts_also_behind_a_pickle(cls: type[TxStoreError]) -> None:
    facts = FACTS.get(cls.__name__, {})
    for error in (cls("what\nhint: how", **facts), pickle.loads(pickle.dumps(cls("what\nhint: how", **facts)))):
        assert type(error) is cls
        assert str(error) == "what\nhint: how"
        assert {name: getattr(error, name) for name in facts} == facts


def test_facts_have_defaults() -> None:
    assert AlreadyEndedError("x").outcome == "finished_unknown"
    assert OffsetTooOldError("x").minimum == 0
    assert StoreLockedError("x", pid=None).pid is None
    assert DiskFullError("x").errno is None


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("InvalidMessageError", ValueError),
        ("InvalidNameError", ValueError),
        ("InvalidOptionError", ValueError),
        ("MessageNotFoundError", LookupError),
        ("TransactionNotFoundError", LookupError),
        ("OffsetTooOldError", LookupError),
        ("StoreLockedError", OSError),
        ("DiskFullError", OSError),
        ("TooManyFilesError", OSError),
        ("StorePoisonedError", OSError),
        ("StoreIOError", OSError),
    ],
)
def test_an_error_is_what_python_calls_it_too(name: str, base: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), base)


def test_the_tree_in_the_docstring_names_every_class() -> None:
    assert errors.__doc__ is not None
    for cls in CLASSES:
        assert cls.__name__ in errors.__doc__
    assert sorted(errors.__all__) == sorted(cls.__name__ for cls in CLASSES)
