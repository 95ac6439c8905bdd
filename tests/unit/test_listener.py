"""Guards listeners: every callback shape that RocketMQ users know is asked the same two questions."""

from typing import Any

import pytest

from txstore.errors import InvalidOptionError
from txstore.listener import Checkers, TransactionListener, as_checker, as_executer, parse_answer
from txstore.message import LocalTransactionState, Message, TransactionMessage
from txstore.selector import parse_tags

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN


class Today(TransactionListener):
    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        return COMMIT

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        return COMMIT


class OldExecuter:
    def executeLocalTransactionBranch(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        return COMMIT


class OldChecker:
    def check_local_transaction_state(self, message: TransactionMessage) -> LocalTransactionState:
        return COMMIT


def test_every_callback_shape_is_accepted() -> None:
    message = Message("orders", b"x")
    for shape in (Today(), OldExecuter()):
        execute = as_executer(shape)
        assert execute is not None
        assert execute(message, None) is COMMIT
    for listener in (Today(), OldChecker()):
        check = as_checker(listener)
        assert check is not None
        assert check(message) is COMMIT
    assert as_checker(OldExecuter()) is None
    assert as_executer(OldChecker()) is None
    assert as_executer(None) is None


def test_rocketmqs_spelling_is_an_alias() -> None:
    assert LocalTransactionState.UNKNOW is UNKNOWN
    assert LocalTransactionState.COMMIT_MESSAGE is COMMIT
    assert LocalTransactionState["ROLLBACK_MESSAGE"] is LocalTransactionState.ROLLBACK


@pytest.mark.parametrize("answer", [None, True, "COMMIT", 1, object()])
def test_answer_that_is_not_a_state_is_unknown_with_the_reason(answer: object) -> None:
    state, reason = parse_answer(answer, "the check")
    assert state is UNKNOWN
    assert reason is not None
    assert type(answer).__name__ in reason
    assert parse_answer(COMMIT, "the check") == (COMMIT, None)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        (None, None),
        ("", None),
        ("*", None),
        ("a || *", None),
        ("a", ("a",)),
        ("a||b", ("a", "b")),
        (" a || b || a ", ("a", "b")),
    ],
)
def test_tag_expression(text: str | None, tags: tuple[str, ...] | None) -> None:
    assert parse_tags(text) == tags


def test_tag_expression_without_a_tag_is_refused() -> None:
    with pytest.raises(InvalidOptionError):
        parse_tags("||")


def test_the_most_specific_checker_wins() -> None:
    checkers = Checkers(default=lambda message: "all")
    checkers.add(lambda message: "tag", tags="paid || open")
    checkers.add(lambda message: "topic", topic="orders")
    checkers.add(lambda message: "both", topic="orders", tags="paid")
    message = Message("orders", b"x")

    def answer(topic: str, tag: str | None) -> object:
        checker = checkers.find(topic, tag)
        return checker and checker(message)

    assert answer("orders", "paid") == "both"
    assert answer("orders", "open") == "topic"
    assert answer("other", "open") == "tag"
    assert answer("other", None) == "all"
    checkers.add(lambda message: "new", topic="orders")
    assert answer("orders", None) == "new"


def test_unbound_topic_has_no_checker() -> None:
    checkers = Checkers()
    checkers.add(OldChecker(), topic="orders")
    assert checkers.find("orders", "x") is not None
    assert checkers.find("other", "x") is None
    with pytest.raises(InvalidOptionError):
        checkers.add(object())


def test_class_instead_of_an_instance_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"the class Today.*\n.*Today\(\)"):
        as_executer(Today)
    with pytest.raises(InvalidOptionError, match="got the class OldChecker"):
        as_checker(OldChecker)


def test_class_of_static_methods_is_accepted() -> None:
    class Fixed:
        @staticmethod
        def check_local_transaction(message: TransactionMessage) -> LocalTransactionState:
            return COMMIT

    assert as_checker(Fixed) is not None


def test_tags_must_be_text() -> None:
    with pytest.raises(InvalidOptionError, match="tags must be a str"):
        parse_tags(["paid"])  # type: ignore[arg-type]
