"""Guards values as bodies: what `Message.of` writes, `message.value` reads as the same type, and errors are precise.

The body is JSON from the standard library by default, and a Pydantic model is recognized. A body that does not decode
names its message, the type, the position and what was found, but not the value, which logs must not show.
"""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import pydantic
import pytest

from txstore import (
    DecodeError,
    EmbeddedBroker,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    JsonSerializer,
    LocalTransactionState,
    Message,
)
from txstore.testing import FakeBroker

CustomerId = NewType("CustomerId", int)


class Status(enum.Enum):
    OPEN = "open"
    PAID = "paid"


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Address(TypedDict):
    city: str


class Parcel(TypedDict, total=False):
    grams: int


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: int
    items: list[Item]
    customer: CustomerId = CustomerId(0)
    status: Status = Status.OPEN
    kind: Literal["web", "shop", 3] = "web"
    note: str | None = None
    discount: float = 0.0
    placed: datetime | None = None
    day: date | None = None
    hour: time | None = None
    token: UUID | None = None
    where: tuple[float, float] = (0.0, 0.0)
    tags: frozenset[str] = frozenset()
    sizes: tuple[int, ...] = ()
    by_number: dict[int, Item] = field(default_factory=dict)
    point: Point | None = None
    address: Address | None = None
    parcel: Parcel | None = None
    extra: Any = None
    weight: Annotated[int, "grams"] = 0


ORDER = Order(
    17,
    [Item("tea", Decimal("4.50"), 2), Item("Ä", Decimal(1))],
    customer=CustomerId(7),
    status=Status.PAID,
    kind=3,
    note="leave it at the door",
    discount=0.1,
    placed=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    day=date(2026, 1, 2),
    hour=time(3, 4),
    token=UUID(int=17),
    where=(1.0, 2.0),
    tags=frozenset({"a"}),
    sizes=(1, 2, 3),
    by_number={5: Item("pen", Decimal(2))},
    point=Point(1.0, 2.0),
    address={"city": "Oslo"},
    parcel={"grams": 3},
    extra={"any": [1, None, True]},
    weight=5,
)


class Payment(pydantic.BaseModel):
    order: int
    paid: datetime
    amount: Decimal = pydantic.Field(gt=0)


@pydantic.dataclasses.dataclass
class Refund:
    order: int


@dataclass
class Receipt:
    """A plain dataclass with a model in it."""

    payment: Payment
    copies: int


PAYMENT = Payment(order=17, paid=datetime(2026, 1, 2, tzinfo=UTC), amount=Decimal("4.50"))


@pytest.fixture(params=["fake", "store"])
def any_broker(request: pytest.FixtureRequest) -> Any:
    """The same rules hold on the embedded broker and on the fake one."""
    if request.param == "fake":
        return FakeBroker()
    return request.getfixturevalue("broker")


def test_a_value_arrives_as_what_it_was(any_broker: Any) -> None:
    producer = any_broker.producer("p")
    producer.send(Message.of("orders", ORDER, tags="paid", keys=["o-17"]))
    producer.send(Message.of("orders", PAYMENT))
    with any_broker.consumer("c", "orders") as consumer:
        by_tag = {message.tags: message for _ in range(2) for message in consumer.poll(1)}
    assert by_tag["paid"].value(Order) == ORDER
    assert by_tag["paid"].keys == ("o-17",)
    assert by_tag[None].value(Payment) == PAYMENT


def test_a_listener_and_a_check_see_the_value(any_broker: Any) -> None:
    seen: list[tuple[str, Item]] = []
    item = Item("tea", Decimal("4.50"))

    class Listener:
        def execute_local_transaction(self, message: Any, arg: object) -> LocalTransactionState:
            seen.append(("local", message.value(Item)))
            return LocalTransactionState.UNKNOWN

        def check_local_transaction(self, message: Any) -> LocalTransactionState:
            seen.append(("check", message.value(Item)))
            return LocalTransactionState.COMMIT

    any_broker.transaction_producer("g", Listener()).send_in_transaction(Message.of("orders", item))
    if isinstance(any_broker, EmbeddedBroker):
        (pending,) = any_broker.transactions()
        any_broker.discard(str(pending.transaction_id))
    else:
        any_broker.clock.advance(60)
        any_broker.run_checks()
        assert seen[1:] == [("check", item)]
    assert seen[0] == ("local", item)


def test_a_dead_letter_has_its_value(any_broker: Any) -> None:
    any_broker.producer("p").send(Message.of("orders", Item("tea", Decimal(3))))
    with any_broker.consumer("c", "orders") as consumer:
        for message in consumer.poll(1):
            message.retry(-1)
    (letter,) = any_broker.dead_letters("c")
    assert letter.value(Item) == Item("tea", Decimal(3))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (ORDER, Order),
        (PAYMENT, Payment),
        (Refund(3), Refund),
        (Receipt(PAYMENT, 2), Receipt),
        ([PAYMENT], list[Payment]),
        ({"a": PAYMENT}, dict[str, Payment]),
        ([Item("a", Decimal(1))], list[Item]),
        ({"a": [1, 2.5, None, True, "x"]}, dict),
        ({3: "x"}, dict[int, str]),
        ([[1], []], list[list[int]]),
        ("text", str),
        (17, int),
        (17, float),
        (None, type(None)),
        ((1, "a"), tuple[int, str]),
        ({"city": "Oslo"}, Address),
        (Point(1.0), Point),
        (Status.PAID, Status),
        ({1, 2}, set[int]),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime),
    ],
    ids=lambda value: str(value)[:30],
)
def test_each_type_is_read_as_it_was_written(value: Any, kind: Any) -> None:
    read = Message.of("t", value).value(kind)
    assert read == value
    assert type(read) is type(value) or kind is float


def test_the_body_is_compact_json_in_utf8() -> None:
    assert Message.of("t", Item("Ä", Decimal("1.0"))).body == '{"name":"Ä","price":"1.0","count":1}'.encode()
    assert json.loads(Message.of("t", PAYMENT).body) == json.loads(PAYMENT.model_dump_json())
    assert Message.of("t", {"a": 1}, flag=3, properties={"p": "q"}).flag == 3


def test_fields_that_the_type_does_not_have_are_ignored_and_defaults_are_used() -> None:
    message = Message("t", b'{"name": "tea", "price": 4, "new": 1}')
    assert message.value(Item) == Item("tea", Decimal(4))


NAME = '{"name": '


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        ("secret", Item, "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff\xfe", Item, "byte 0 is not UTF-8, as JSON must be"),
        ("NaN", float, "NaN is not a number of JSON"),
        ("[" * 200_000, Item, "its JSON is nested too deeply"),
        ("[1]", Item, "$: expected an object with the fields of Item, found an array of 1"),
        ('{"name": "secret"}', Item, "$.price: missing, and Item has no default for it"),
        (NAME + '17, "price": "1"}', Item, "$.name: expected a string, found an integer"),
        (NAME + '"a", "price": "secret"}', Item, "$.price: expected a decimal number, found another string"),
        (NAME + '"a", "price": []}', Item, "$.price: expected a decimal number, as a string, found an array of 0"),
        (NAME + '"a", "price": "1", "count": true}', Item, "$.count: expected an integer, found true"),
        (NAME + '"a", "price": "1", "count": 1.0}', Item, "$.count: expected an integer, found a number"),
        ('{"id": 1, "items": [{}]}', Order, "$.items[0].name: missing, and Item has no default for it"),
        ('{"id": 1, "items": {}}', Order, "$.items: expected an array, found an object of 0 fields"),
        ('{"id": 1, "items": [], "kind": "x"}', Order, "$.kind: expected one of 'web', 'shop', 3, found a string of 1"),
        ('{"id": 1, "items": [], "status": 1}', Order, "$.status: expected one of 'open', 'paid', found an integer"),
        ('{"id": 1, "items": [], "note": 5}', Order, "$.note: expected a string, found an integer"),
        ('{"id": 1, "items": [], "where": [1]}', Order, "$.where: expected an array of 2, found an array of 1"),
        ('{"id": 1, "items": [], "by_number": {"x": {}}}', Order, "expected integers as the names of fields"),
        ('{"id": 1, "items": [], "placed": "secret"}', Order, "$.placed: expected a datetime in ISO 8601, found"),
        ('{"id": 1, "items": [], "address": {}}', Order, "$.address.city: missing, and Address requires it"),
        ('{"id": 1, "items": [], "point": []}', Order, "$.point: expected an array of 2 for Point, found an"),
        ('"secret"', int, "$: expected an integer, found a string of 6 characters"),
        ('"secret"', int | float, "$: expected int | float, found a string of 6 characters"),
        ("[[1]]", set[Any], "$: unhashable type: 'list'"),
        ('{"order": 1, "paid": "2026-01-02", "amount": -4}', Payment, "$.amount: Input should be greater than 0"),
        ('{"order": "secret"}', Payment, "$.order: Input should be a valid integer"),
        ('{"order": "secret"}', Payment, "$.paid: Field required"),
        ('[{"order": 1}]', list[Payment], "$[0].paid: Field required"),
        ("secret", Payment, "$: Invalid JSON"),
    ],
)  # fmt: skip
def test_a_body_that_does_not_decode_says_where_and_shows_no_value(body: Any, kind: Any, why: str) -> None:
    with pytest.raises(DecodeError) as caught:
        Message("t", body.encode() if isinstance(body, str) else body).value(kind)
    text = str(caught.value)
    assert why in text
    assert "secret" not in text
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True), "a traceback shows the body"


def test_the_error_names_message_topic_and_type(any_broker: Any) -> None:
    any_broker.producer("p").send(Message("orders", b"17"))
    with any_broker.consumer("c", "orders") as consumer:
        (message,) = consumer.poll(1)
        with pytest.raises(DecodeError) as caught:
            message.value(Item)
    assert str(caught.value) == (
        f"message {message.message_id} of topic orders: its body is not an Item: "
        "$: expected an object with the fields of Item, found an integer\n"
        "hint: message.nack(-1) moves a consumer's message to the dead letters"
    )
    assert (caught.value.topic, caught.value.message_id) == ("orders", message.message_id)
    with pytest.raises(DecodeError, match="the message of topic orders: its body is not a str") as unsent:
        Message("orders", b"17").value(str)
    assert unsent.value.message_id is None
    with pytest.raises(DecodeError, match=r"its body is not a list\[int\]"):
        Message("orders", b"17").value(list[int])


def test_a_constructor_that_refuses_its_fields_is_reported() -> None:
    @dataclass
    class Positive:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("number must not be negative")

    globals()["Positive"] = Positive
    assert Message("t", b'[{"number": 1}]').value(list[Positive])[0].number == 1
    with pytest.raises(DecodeError, match=r"\$\[0\]: Positive refused it: number must not be negative"):
        Message("t", b'[{"number": -1}]').value(list[Positive])


@dataclass
class Unresolved:
    other: NotThere  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Cat:
    name: str


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (bytes, "JSON cannot be converted to <class 'bytes'>\nhint: use a dataclass, a Pydantic model"),
        (list[bytes], r"JSON cannot be converted to <class 'bytes'> at $[0]"),
        (17, "JSON cannot be converted to 17"),
        (Unresolved, "an annotation of Unresolved cannot be resolved: name 'NotThere' is not defined"),
        (Item | Cat, "has several types that are objects of JSON, so it is not clear which one is meant at $"),
    ],
)
def test_a_type_that_json_cannot_be_is_refused(kind: Any, why: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Message("t", b'[{"name": "x"}]' if kind != (Item | Cat) else b'{"name": "x"}').value(kind)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"x", "the value, a bytes, cannot be encoded: JSON cannot have a bytes; it can have dataclasses, Pydantic"),
        ({"a": {1: object()}}, "JSON cannot have a object"),
        (float("nan"), "Out of range float values are not JSON compliant"),
        ({(1, 2): 3}, "keys must be str, int, float, bool or None, not tuple"),
        (Item, "JSON cannot have a type"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_refused(value: object, why: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        Message.of("t", value)
    assert why in str(caught.value)


def test_the_other_rules_of_messages_hold() -> None:
    with pytest.raises(InvalidNameError):
        Message.of("a b", 1)
    with pytest.raises(InvalidMessageError, match="not a tag"):
        Message.of("t", "x", tags="")


class Reversed:
    """A serializer of a user, which knows only text."""

    def encode(self, value: object) -> bytes:
        return str(value)[::-1].encode()

    def decode(self, body: bytes, kind: type[Any]) -> Any:
        return kind(body.decode()[::-1])


def test_another_serializer_is_used(any_broker: Any) -> None:
    any_broker.producer("p").send(Message.of("t", "abc", serializer=Reversed()))
    with any_broker.consumer("c", "t") as consumer:
        (message,) = consumer.poll(1)
    assert (message.body, message.value(str, serializer=Reversed())) == (b"cba", "abc")
    with pytest.raises(DecodeError, match="its body is not an int: invalid literal") as caught:
        message.value(int, serializer=Reversed())
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_wrong_serializer_is_refused() -> None:
    class Text:
        def encode(self, value: object) -> Any:
            return "text"

        def decode(self, body: bytes, kind: type[Any]) -> Any:
            raise KeyError("x")

    with pytest.raises(InvalidMessageError, match=r"Text\.encode must return bytes, and returned a str for an int"):
        Message.of("t", 1, serializer=Text())
    with pytest.raises(DecodeError, match="KeyError: 'x'"):
        Message("t", b"1").value(int, serializer=Text())
    for wrong in (json, JsonSerializer, 17):
        with pytest.raises(InvalidOptionError, match="serializer must have the methods encode and decode"):
            Message.of("t", 1, serializer=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidOptionError, match="serializer must have the methods encode and decode"):
            Message("t", b"1").value(int, serializer=wrong)  # type: ignore[arg-type]


def test_pydantic_is_neither_needed_nor_loaded() -> None:
    program = """
import sys

from dataclasses import dataclass
from txstore import Message
@dataclass
class Order:
    id: int
assert Message.of("t", Order(17)).value(Order) == Order(17)
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
