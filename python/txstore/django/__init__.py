"""Django 5: messages that are published if, and only if, a transaction of Django commits.

::

    INSTALLED_APPS = [..., "txstore.django"]
    TXSTORE = {"STORE": BASE_DIR / "orders.store"}     # or {"ADDRESS": "127.0.0.1:10911"}, of `txstore serve`

    with transaction.atomic():
        order.save()
        send(Message("orders", b"order 17 is paid"))   # a row of the same transaction

In:     messages, and the alias of the database whose transaction is open.
Out:    rows of the table txstore_outbox, which this process forwards after the commit; `manage.py txstore_forward`
        forwards those that other processes left.
Not here: how a connection of Django is used (`txstore.database.django`), forwarding (`txstore.database.outbox`).
"""

from txstore.django.sending import broker, close, database, producer, send, send_batch, use_broker

__all__ = ["broker", "close", "database", "producer", "send", "send_batch", "use_broker"]
