"""Guards which producers a broker asks: those that live, each once, and the one that began the transaction first."""

from txstore import TransactionProducer
from txstore.producer.registry import Producers
from txstore.testing import FakeBroker


class Member(TransactionProducer):
    """A producer of another broker, with the id that a test gives it."""

    number = 0  # Replaces the property, which asks the producer's own broker.

    def __init__(self, group: str) -> None:
        super().__init__(FakeBroker(), group)


def joined(registry: Producers, group: str) -> Member:
    member = Member(group)
    member.number = registry.add(member)
    return member


def test_producer_is_registered_once_under_its_own_id() -> None:
    registry = Producers()
    first, second = joined(registry, "g"), joined(registry, "g")
    assert 0 < first.number != second.number > 0
    assert [registry.add(first), registry.add(second)] == [first.number, second.number]
    assert registry.all() == [first, second]
    assert registry.get(first.number) is first


def test_owner_comes_first_and_the_others_in_the_order_they_came() -> None:
    registry = Producers()
    first, second, third = (joined(registry, "g") for _ in range(3))
    joined(registry, "another")

    def asked(owner: int) -> list[int]:
        return [number for number, _ in registry.of_group("g", owner)]

    assert asked(0) == asked(999) == [first.number, second.number, third.number]
    assert asked(third.number) == [third.number, first.number, second.number]
    assert registry.of_group("nobody") == []


def test_producer_that_left_is_gone_and_the_others_stay() -> None:
    registry = Producers()
    first, second = joined(registry, "g"), joined(registry, "g")
    registry.remove(first)
    assert (registry.get(first.number), registry.get(second.number)) == (None, second)
    assert registry.of_group("g", first.number) == [(second.number, second)]
    registry.remove(second)
    assert (registry.all(), registry.of_group("g"), registry._by_group) == ([], [], {})


def test_producer_that_is_not_registered_is_ignored() -> None:
    registry = Producers()
    member, same_id, never = joined(registry, "g"), Member("g"), Member("other")
    same_id.number = member.number
    for stranger in (same_id, never):
        registry.remove(stranger)
    assert registry.all() == [member]
    registry.remove(member)
    registry.remove(member)
    assert registry.all() == []


def test_closed_producer_leaves_its_broker() -> None:
    fake = FakeBroker()
    with fake.transaction_producer("g") as producer:
        assert fake._producers.all() == [producer]
    producer.close()
    assert fake._producers.all() == []
