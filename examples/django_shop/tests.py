"""The shop's own tests: `python -m examples.django_shop.manage test examples.django_shop`."""

from django.db import connection
from django.test import TestCase, TransactionTestCase

from examples.django_shop.models import Payment
from txstore.django import close, database, producer, use_broker
from txstore.testing import FakeBroker


def tearDownModule() -> None:
    """Closes the store, because a database to which the forwarder is connected cannot be dropped."""
    close()


class PaymentTest(TestCase):  # type: ignore[misc]
    """Within a transaction that rolls back, so nothing is published."""

    @classmethod
    def setUpClass(cls) -> None:
        """Opens the store before a test's transaction locks SQLite."""
        super().setUpClass()
        producer()

    def test_payment_sends_three_messages(self) -> None:
        answer = self.client.post("/orders/17/payment/50")
        assert answer.status_code == 201
        messages = database().pending(connection)
        assert [message.topic for message in messages] == ["orders", "ledger", "receipts"]
        assert messages[0].value(int) == 17

    def test_refused_payment_sends_nothing(self) -> None:
        assert self.client.post("/orders/17/payment/0").status_code == 422
        assert database().pending(connection) == []
        assert not Payment.objects.exists()


class PublishedTest(TransactionTestCase):  # type: ignore[misc]
    """With real commits, to a broker in memory."""

    def test_payment_is_published_once(self) -> None:
        with FakeBroker() as broker, use_broker(broker):
            self.client.post("/orders/18/payment/50")
            assert self.client.post("/orders/18/payment/50").status_code == 409
            with broker.consumer("test", "orders") as consumer:
                assert [message.value(int) for message in consumer.poll(timeout=10)] == [18]
