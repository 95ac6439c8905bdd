"""Guards the database examples and their page: the code runs as shown."""

import importlib.util
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import txstore
from tests.database.server import Postgres
from tests.ports import free_port
from tests.unit.pages import blocks
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def example(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", f"examples.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def payments(directory: Path) -> int:
    """How many payments there are by now; 0 before the table exists."""
    try:
        with closing(sqlite3.connect(f"{(directory / 'orders.db').as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM payments").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.kill
def test_orders_are_paid_and_packed_once_after_any_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.database_orders", str(tmp_path), "--orders", "300"]
    for moment in (20, 120):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as killed:
            eventually(lambda moment=moment: payments(tmp_path) >= moment, 60)  # type: ignore[misc]
            killed.kill()
    told = example("database_orders", tmp_path, "--orders", 300)
    match = re.fullmatch(r"(\d+) orders paid, (\d+) refused\n", told)
    assert match is not None
    paid, refused = map(int, match.groups())
    assert (paid + refused, refused > 0) == (300, True)
    assert example("inbox", tmp_path) == f"heard of {paid}, packed {paid}; {paid} parcels\n"
    assert example("inbox", tmp_path, "--again") == f"heard of {paid}, packed 0; {paid} parcels\n"


def test_page_runs_as_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "publish" / "database.md").read_text()
    first, migration, restored, _ = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", first + restored],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    compile(migration, "migration", "exec")


# Web services on PostgreSQL -------------------------------------------------------------------------------------------


@pytest.fixture
def shop(postgres: Postgres) -> Iterator[str]:
    """The URL of a database without tables of txstore."""
    url = postgres.url(postgres.new())
    yield url
    postgres.give_back(url)


def for_sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+asyncpg://")


def post(url: str) -> Any:
    """The answer to a POST; its status if it was refused."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


@contextmanager
def running(command: list[str], folder: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A service, which is interrupted at the end and must then close."""
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=-1, stderr=-1, text=True) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(30) in (0, -signal.SIGINT)
        finally:
            process.kill()


def published(store: Path) -> dict[str, list[bytes]]:
    """The bodies in a store that was closed, by topic."""
    with txstore.open(store, read_only=True) as broker:
        return {
            topic: [
                message.body
                for queue in broker.describe_topic(topic).queues
                for message in broker.read(topic, queue.queue_id, 0, 100)[0]
            ]
            for topic in broker.topics()
        }


def values(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(sql).fetchall()]


def test_web_service_publishes_three_messages_or_none(shop: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.fastapi_outbox", for_sqlalchemy(shop), str(tmp_path), "--port", "0"]
    with running(command, ROOT) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        paid = post(f"{url}/orders/1/payment?amount=50")
        assert values(shop, "SELECT order_id FROM bookings") == [1], "committed before the response"
        assert post(f"{url}/orders/1/payment?amount=50") == 409, "all three were sent, then the commit was refused"
        assert post(f"{url}/orders/2/payment?amount=0") == 422, "one was sent, then the layer below raised"
        assert len(post(f"{url}/orders/3/payment?amount=7")["message_id"]) == 32
        with urllib.request.urlopen(f"{url}/orders", timeout=30) as response:
            assert json.load(response) == [1, 3]
    assert process.stderr is not None
    found = published(tmp_path / "orders.store")
    assert {topic: sorted(bodies) for topic, bodies in found.items()} == {
        "orders": [b"1", b"3"],
        "ledger": [b'{"order":1,"amount":50}', b'{"order":3,"amount":7}'],
        "receipts": [b"1", b"3"],
    }
    with txstore.open(tmp_path / "orders.store", read_only=True) as broker:
        (message,) = broker.query("orders", "order-1")
    assert (message.message_id, message.tags) == (paid["message_id"], "paid")
    assert values(shop, "SELECT id FROM txstore_outbox") == []


def test_first_example_of_the_readme_publishes_three_messages_or_none(shop: str, tmp_path: Path) -> None:
    (service,) = (text for _, text in blocks(ROOT / "README.md") if text.startswith("# app.py\n"))
    (tmp_path / "app.py").write_text(service)
    with psycopg.connect(shop) as connection:  # The COMMIT fails, after all three messages were sent.
        connection.execute("CREATE TABLE payments (order_id BIGINT PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--no-access-log"]
    with running(command, tmp_path, DATABASE_URL=for_sqlalchemy(shop)) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        url = next(found[0] for line in lines if (found := re.search(r"http://[\d.]+:\d+", line)))
        assert post(f"{url}/orders/17/payment") is None
        assert post(f"{url}/orders/17/payment") == 500, "the commit comes before the response"
        assert post(f"{url}/orders/18/payment") is None
    found_in_log = published(tmp_path / "orders.store")
    assert {topic: sorted(bodies) for topic, bodies in found_in_log.items()} == {
        "orders": [b"order 17 is paid", b"order 18 is paid"],
        "ledger": [b"17", b"18"],
        "receipts": [b"17", b"18"],
    }


def test_plain_psycopg_publishes_what_is_committed(shop: str, tmp_path: Path) -> None:
    told = example("psycopg_orders", shop, tmp_path, "--orders", 60)
    paid, refused = map(int, re.findall(r"\d+", told))
    assert (paid + refused, refused > 0, paid > 10) == (60, True, True)
    found = published(tmp_path / "orders.store")
    orders = sorted(json.loads(body)["order"] for body in found["orders"])
    assert orders == sorted(values(shop, "SELECT order_id FROM payments"))
    assert 0 < len(found["gifts"]) < paid, "a savepoint that rolled back took its message with it"


def publishes_two_messages_or_none(module: str, url: str, folder: Path) -> None:
    """An example that is a web service pays two orders and refuses to pay one again; each payment has its messages."""
    command = [sys.executable, "-m", f"examples.{module}", url, str(folder), "--port", "0"]
    with running(command, ROOT) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert len(post(f"{address}/orders/1/payment")["message_id"]) == 32
        assert post(f"{address}/orders/1/payment") == 409
        assert len(post(f"{address}/orders/2/payment")["message_id"]) == 32
        with urllib.request.urlopen(f"{address}/orders", timeout=30) as response:
            assert json.load(response) == [1, 2]
    found = published(folder / "orders.store")
    assert {topic: sorted(bodies) for topic, bodies in found.items()} == {
        "orders": [b"1", b"2"],
        "receipts": [b"1", b"2"],
    }


@pytest.mark.skipif(importlib.util.find_spec("flask") is None, reason="requirements-dev.lock is not installed")
@pytest.mark.parametrize("server", ["sqlite", "postgres"])
def test_flask_app_publishes_with_the_commit(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if server == "postgres":
        url = request.getfixturevalue("shop").replace("postgresql://", "postgresql+psycopg://")
    publishes_two_messages_or_none("flask_orders", url, tmp_path)


@pytest.mark.matrix
@pytest.mark.skipif(importlib.util.find_spec("litestar") is None, reason="requirements-matrix.lock is not installed")
def test_litestar_service_publishes_with_the_commit(tmp_path: Path) -> None:
    publishes_two_messages_or_none("litestar_orders", f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}", tmp_path)


@pytest.mark.matrix
@pytest.mark.skipif(importlib.util.find_spec("celery") is None, reason="requirements-matrix.lock is not installed")
def test_celery_packs_the_orders_that_were_committed(tmp_path: Path) -> None:
    environment = os.environ | {"SHOP_DIRECTORY": str(tmp_path)}

    def parcels() -> list[int]:
        return rows(tmp_path / "shop.db", "SELECT order_id FROM parcels ORDER BY order_id")

    for command, told in (("orders", "25 orders taken, 15 refused\n"), ("relay", "25 tasks started\n")):
        arguments = [sys.executable, "-m", "examples.celery_parcels", command]
        arguments += ["--count", "40"] if command == "orders" else []
        done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == told
    worker = [sys.executable, "-m", "celery", "--app", "examples.celery_parcels", "worker", "--pool", "solo"]
    with subprocess.Popen(
        worker, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as it:
        try:
            eventually(lambda: len(parcels()) == 25)
        finally:
            it.terminate()
    assert parcels() == rows(tmp_path / "shop.db", "SELECT id FROM orders ORDER BY id")


def rows(path: Path, statement: str) -> list[int]:
    """The first column that a statement finds in a SQLite database."""
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        return [row[0] for row in connection.execute(statement)]


# Django ---------------------------------------------------------------------------------------------------------------


needs_django = pytest.mark.skipif(
    importlib.util.find_spec("django") is None, reason="requirements-dev.lock is not installed"
)


def manage(directory: Path, *arguments: str) -> str:
    """What a command of the shop prints."""
    command = [sys.executable, "-W", "error", "-m", "examples.django_shop.manage", *arguments]
    environment = {**os.environ, "SHOP_DIRECTORY": str(directory)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@needs_django
def test_shop_on_django_pays_and_packs_once(tmp_path: Path) -> None:
    manage(tmp_path, "migrate")
    port = free_port()
    command = [sys.executable, "-m", "examples.django_shop.manage", "runserver", "--noreload", f"127.0.0.1:{port}"]
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(urllib.error.URLError), urllib.request.urlopen(f"{address}/orders", timeout=30):
            return True
        return False

    with running(command, ROOT, SHOP_DIRECTORY=str(tmp_path)):
        eventually(answers)
        assert len(post(f"{address}/orders/1/payment/50")["message_id"]) == 32
        assert post(f"{address}/orders/1/payment/50") == 409, "a message was sent, then the row was refused"
        assert post(f"{address}/orders/2/payment/0") == 422, "one was sent, then the layer below raised"
        assert len(post(f"{address}/orders/3/payment/7")["message_id"]) == 32
        assert manage(tmp_path, "pack", "--once") == "packed 2\n"
        with urllib.request.urlopen(f"{address}/orders", timeout=30) as response:
            assert json.load(response) == {"paid": [1, 3], "packed": [1, 3]}
    assert manage(tmp_path, "pack", "--once") == "packed 0\n"
    found = published(tmp_path / "shop.store")
    assert {topic: sorted(bodies) for topic, bodies in found.items() if topic[0] != "%"} == {
        "orders": [b"1", b"3"],
        "ledger": [b'{"order":1,"amount":50}', b'{"order":3,"amount":7}'],
        "receipts": [b"1", b"3"],
    }


@needs_django
def test_shop_on_django_passes_its_tests(tmp_path: Path) -> None:
    assert "Ran 3 tests" in manage(tmp_path, "test", "examples.django_shop", "--noinput")


PROJECT = """
import sys
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent
{settings}
INSTALLED_APPS = [name for name in INSTALLED_APPS if name is not ...] + ["page"]
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "shop.sqlite3",
        "TEST": {{"NAME": BASE_DIR / "test.sqlite3"}},
    }}
}}
ROOT_URLCONF = "page.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "of a test"
"""
MODELS = """
from django.db import models

class Payment(models.Model):
    order_id = models.BigIntegerField(primary_key=True)
"""
URLS = """
from django.urls import path
from page.views import pay

urlpatterns = [path("orders/<int:number>/payment", pay)]
"""
IMPORTS = """
from django.db import connection
from django.test import TestCase
from txstore.django import close, database, producer

def tearDownModule():
    close()

class Base(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        producer()

"""


@needs_django
def test_page_on_django_is_a_project_that_passes_its_tests(tmp_path: Path) -> None:
    """The settings, the view and the test are those of the page."""
    code = [text for language, text in blocks(ROOT / "docs" / "publish" / "django.md") if language == ""]
    [settings] = [text for text in code if text.startswith("# settings.py\n")]
    [view] = [text for text in code if "def pay(request, number):" in text]
    [test] = [text for text in code if text.startswith("class PaymentTest(TestCase):")]
    page = tmp_path / "page"
    page.mkdir()
    (page / "__init__.py").write_text("")
    (tmp_path / "settings.py").write_text(PROJECT.format(settings=settings))
    (page / "models.py").write_text(MODELS)
    (page / "urls.py").write_text(URLS)
    imports = "from django.http import HttpResponse\nfrom page.models import Payment\n"
    (page / "views.py").write_text(imports + view)
    (page / "tests.py").write_text(IMPORTS + test.replace("(TestCase)", "(Base)"))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    for command in (["makemigrations", "page"], ["migrate"], ["test", "page", "--noinput"]):
        done = subprocess.run(
            [sys.executable, "-m", "django", *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr
