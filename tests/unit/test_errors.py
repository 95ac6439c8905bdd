"""Guards errors: a caller catches one class, reads facts as attributes, and sends an exception to another process."""

import inspect
import json
import pickle

import pytest

from txstore import TransactionState, errors
from txstore._native import allow_end_again
from txstore.errors import AlreadyEndedError, DiskFullError, OffsetTooOldError, StoreLockedError, TxStoreError

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, TxStoreError)]
FACTS: dict[str, dict[str, object]] = {
    "AlreadyEndedError": {"outcome": TransactionState.COMMITTED},
    "StoreLockedError": {"pid": 12},
    "StoreCorruptError": {"file": "commitlog/0", "offset": 7},
    "OffsetTooOldError": {"minimum": 40},
    "DiskFullError": {"errno": 28, "filename": "commitlog/0"},
    "StoreIOError": {"errno": 5, "filename": "checkpoint"},
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_error_keeps_its_text_and_facts_also_when_pickled(cls: type[TxStoreError]) -> None:
    facts = FACTS.get(cls.__name__, {})
    for error in (cls("what\nhint: how", **facts), pickle.loads(pickle.dumps(cls("what\nhint: how", **facts)))):
        assert type(error) is cls
        assert str(error) == "what\nhint: how"
        assert {name: getattr(error, name) for name in facts} == facts


def test_facts_have_defaults() -> None:
    assert AlreadyEndedError("x").outcome is TransactionState.FINISHED_UNKNOWN
    assert OffsetTooOldError("x").minimum == 0
    assert StoreLockedError("x", pid=None).pid is None
    assert DiskFullError("x").errno is None


@pytest.mark.parametrize("outcome", [state for state in TransactionState if state is not TransactionState.PENDING])
def test_engine_names_each_outcome_by_a_member_that_is_also_a_string(outcome: TransactionState) -> None:
    other = TransactionState.COMMITTED if outcome is not TransactionState.COMMITTED else TransactionState.DISCARDED
    with pytest.raises(AlreadyEndedError) as caught:
        allow_end_again("17", outcome, other)
    assert caught.value.outcome is outcome
    assert pickle.loads(pickle.dumps(caught.value)).outcome is outcome
    assert (json.dumps(outcome), f"{outcome}", outcome == outcome.value) == (f'"{outcome.value}"', outcome.value, True)


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
def test_error_is_also_the_builtin_exception_of_its_kind(name: str, base: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), base)


def test_tree_in_the_docstring_names_every_class() -> None:
    assert errors.__doc__ is not None
    for cls in CLASSES:
        assert cls.__name__ in errors.__doc__
    assert sorted(errors.__all__) == sorted(cls.__name__ for cls in CLASSES)
