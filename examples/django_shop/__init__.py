"""A small shop on Django 5: a request pays an order and sends its messages in one transaction; a command packs parcels.

::

    settings.py     TXSTORE names the store, next to DATABASES
    views.py        a request: `transaction.atomic()`, rows, messages
    ledger.py       the layer below it, which sends messages in its caller's transaction
    management/commands/pack.py    a consumer with an inbox
    tests.py        what a `TestCase` and a `TransactionTestCase` see

Run, with SHOP_DIRECTORY as the directory of the database and the store:

    export SHOP_DIRECTORY=shop
    python -m examples.django_shop.manage migrate
    python -m examples.django_shop.manage runserver --noreload
    curl -X POST localhost:8000/orders/17/payment/50
    python -m examples.django_shop.manage pack --once
"""
