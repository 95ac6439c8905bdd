"""Guards the web console in a real Chromium: every page in light and dark, wide and on a phone; actions by the
keyboard; login; and that neither stored data nor another site runs a script or changes anything.

axe-core looks for what people with a screen reader or a keyboard cannot use.
"""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import OpenStore, Scripted, bodies
from tests.unit.test_console import ACCOUNTS, Reopening, reopening  # noqa: F401
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message, Server, ServerConfig
from txstore.transaction_state import TransactionState

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")

pytestmark = pytest.mark.matrix
HOSTILE = "<script>document.title='hacked';alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>\u202e"
_PATIENT_MS = 120_000  # A machine may be busy; what is wrong is seen at once.
ANY = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0", console_actions=True)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # Sandboxes of the browser need rights that containers do not give; the pages are our own.
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def filled(open_store: OpenStore, scripted: type[Scripted]) -> EmbeddedBroker:
    """A store with something on every page, in parts hostile."""
    broker = open_store(transaction_check_interval=3600, transaction_timeout=3600)
    for topic, queues in (("orders", 4), ("invoices", 1)):
        broker.create_topic(topic, queues)
    producer = broker.producer("shop")
    for number in range(60):
        producer.send(Message("orders", b'{"order": %d}' % number, keys=[f"o-{number}"], tags="paid"))
    producer.send(Message("orders", HOSTILE.encode(), keys=["<b>key</b>"], properties={"<i>name</i>": HOSTILE}))
    producer.send(Message("orders", bytes(range(256)), keys=["binary"]))
    producer.send(Message("invoices", b"later", delay_level=18))
    with broker.consumer("shipping", "orders", max_reconsume_times=0) as consumer:
        for message in consumer.poll(timeout=5, max_messages=2):
            message.retry()
    broker.create_group("billing")
    with broker.transaction_producer("payments", scripted()) as payments:
        for number in range(4):
            body = HOSTILE.encode() if number == 3 else b"%d" % number
            payments.send_in_transaction(Message("invoices", body, keys=[f"c-{number}"]))
    for state, end in zip(broker.transactions(), (LocalTransactionState.COMMIT, None), strict=False):
        name = str(state.transaction_id)
        broker.discard(name) if end is None else broker.end_transaction(name, end)
    return broker


@pytest.fixture
def served(filled: EmbeddedBroker) -> Iterator[Server]:
    with Server(filled, ANY) as server:
        yield server


class Watched:
    """A tab that keeps what went wrong in it: dialogs, errors, refused scripts, requests to elsewhere."""

    def __init__(self, browser: Any, origin: str, **options: Any) -> None:
        self.origin = origin
        self.wrong: list[str] = []
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(_PATIENT_MS)
        self.tab = self.context.new_page()
        self.tab.on("dialog", self._dialog)
        self.tab.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.tab.on("console", self._said)
        self.tab.on("request", self._request)

    def go(self, path: str) -> Any:
        return self.tab.goto(self.origin + path)

    def _said(self, message: Any) -> None:
        if message.type == "error" and "status of 404" not in message.text:
            self.wrong.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.origin + "/"):
            self.wrong.append(f"request: {request.url}")


def pages_of(broker: EmbeddedBroker) -> dict[str, str]:
    """A path of each page, by a name."""
    letter = broker.dead_letters("shipping")[0]
    hostile = broker.query("orders", "<b>key</b>")[0]
    pending = broker.transactions()[-1].transaction_id
    (discarded,) = broker.transactions("discarded")
    return {
        "overview": "/",
        "transactions": "/transactions",
        "by key": "/transactions?key=c-0",
        "discarded": "/transactions?state=discarded",
        "pending one": f"/transaction?id={pending}",
        "discarded one": f"/transaction?id={discarded.transaction_id}",
        "confirmation": f"/transaction/commit?id={pending}",
        "topics": "/topics",
        "topic": "/topic?topic=orders",
        "messages": "/messages?topic=orders",
        "queue": "/messages?topic=orders&queue=0&start=0",
        "message": f"/message?id={hostile.offset_message_id}",
        "binary": f"/message?id={broker.query('orders', 'binary')[0].offset_message_id}",
        "groups": "/groups",
        "group": "/group?group=shipping",
        "reset": "/group/reset?group=shipping&topic=orders&to=last",
        "dead letters": "/dead-letters",
        "of a group": "/dead-letters?group=shipping",
        "resend": f"/dead-letters/resend?group=shipping&queue_offset={letter.queue_offset}",
        "delayed": "/delayed",
        "outbox": "/outbox",
        "settings": "/settings",
        "error": "/topic?topic=none",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_can_be_read(chromium: Any, served: Server, scheme: str, width: int) -> None:
    origin = str(served.console)
    watched = Watched(chromium, origin, color_scheme=scheme, viewport={"width": width, "height": 900})
    found = []
    for name, path in pages_of(served.broker).items():
        response = watched.go(path)
        assert response.status == (404 if name == "error" else 200), name
        assert watched.tab.locator("h1").count() == 1, name
        assert watched.tab.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
        faults = axe.Axe().run(watched.tab).response["violations"]
        found += [
            f"{name}: {fault['id']}: {fault['help']}: {fault['nodes'][0]['html']}"
            for fault in faults
            if fault["impact"] in ("serious", "critical", "moderate")
        ]
        assert watched.tab.locator("script").count() == 0, name
        assert "hacked" not in watched.tab.title(), name
    assert found == []
    assert watched.wrong == []


def test_page_of_a_store_that_is_opened_again_loads_itself(chromium: Any, request: pytest.FixtureRequest) -> None:
    store: Reopening = request.getfixturevalue("reopening")
    watched = Watched(chromium, str(store.server.console), viewport={"width": 390, "height": 900})
    assert watched.go("/").status == 503
    tab = watched.tab
    assert tab.locator("h1").inner_text() == "Not available for a moment"
    faults = axe.Axe().run(tab).response["violations"]
    assert [fault["id"] for fault in faults if fault["impact"] != "minor"] == []
    store.finish()
    tab.locator("h1", has_text="Overview").wait_for()


def test_axe_sees_what_cannot_be_used(chromium: Any) -> None:
    tab = chromium.new_page()
    tab.set_content("<html lang=en><title>t</title><main><h1>h</h1><input><p style='color:#ccc'>pale</p></main>")
    faults = {fault["id"] for fault in axe.Axe().run(tab).response["violations"]}
    assert {"label", "color-contrast"} <= faults


def test_a_stuck_transaction_is_committed_by_the_keyboard_alone(chromium: Any, served: Server) -> None:
    watched = Watched(chromium, str(served.console))
    tab = watched.tab
    watched.go("/transactions")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    tab.keyboard.type("c-2")
    with tab.expect_navigation():
        tab.keyboard.press("Enter")
    for text, heading in (("7F", "7F"), ("Commit", "Commit?"), ("Commit", "7F")):
        for _ in range(60):
            tab.keyboard.press("Tab")
            if tab.evaluate("document.activeElement.textContent.trim()").startswith(text) and tab.evaluate(
                "document.activeElement.closest('main') !== null"
            ):
                break
        with tab.expect_navigation():
            tab.keyboard.press("Enter")
        tab.wait_for_function("start => document.querySelector('h1').textContent.startsWith(start)", arg=heading)
    tab.wait_for_selector("[role=status]")
    assert "committed" in tab.locator("[role=status]").inner_text()
    assert bodies(served.broker, "invoices") == [b"0", b"2"]
    assert watched.wrong == []


def test_each_action_has_its_effect(chromium: Any, served: Server) -> None:
    broker, watched = served.broker, Watched(chromium, str(served.console))
    tab = watched.tab

    def press(button: str) -> None:
        tab.get_by_role("link", name=button, exact=True).first.click()
        tab.get_by_role("button", name=button, exact=True).click()
        tab.wait_for_selector("[role=status]")

    (discarded,) = broker.transactions("discarded")
    watched.go(f"/transaction?id={discarded.transaction_id}")
    for button, state in (
        ("Resume", "pending"),
        ("Discard", "discarded"),
        ("Resume", "pending"),
        ("Ask now", "pending"),
    ):
        press(button)
        assert broker.transaction(str(discarded.transaction_id)).state == state
    press("Roll back")
    assert broker.transaction(str(discarded.transaction_id)).state is TransactionState.ROLLED_BACK
    watched.go("/dead-letters?group=shipping")
    press("Resend")
    eventually(lambda: any(row.topic.startswith("%RETRY%") and row.lag == 1 for row in broker.lag("shipping")))
    watched.go("/group?group=shipping")
    tab.locator("select[name=to]").select_option("last")
    tab.get_by_role("button", name="Reset offsets…").click()
    tab.get_by_role("button", name="Reset offsets", exact=True).click()
    tab.wait_for_selector("[role=status]")
    assert sum(row.lag for row in broker.lag("shipping") if row.topic == "orders") == 0
    assert watched.wrong == []


def test_login_and_what_an_account_may_not(chromium: Any, filled: EmbeddedBroker, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    config = ServerConfig(
        "127.0.0.1:0", name_server=None, console="127.0.0.1:0", console_actions=True, accounts=accounts
    )
    with Server(filled, config) as server:
        watched = Watched(chromium, str(server.console))
        tab = watched.tab

        def log_in(account: str, secret: str) -> None:
            tab.get_by_label("Account").fill(account)
            tab.get_by_label("Secret").fill(secret)
            tab.get_by_role("button", name="Log in").click()

        watched.go("/groups")
        log_in("reader-app", "wrong")
        assert "no account" in tab.get_by_role("alert").inner_text()
        log_in("reader-app", "secret-of-reader")
        assert tab.locator("h1").inner_text() == "Consumer groups"
        assert [one.inner_text() for one in tab.locator("nav[aria-label=Pages] a").all()] == [
            "Overview", "Topics", "Messages", "Consumer groups", "Dead letters",
        ]  # fmt: skip
        pending = filled.transactions()[-1].transaction_id
        for path in ("/transactions", f"/transaction/commit?id={pending}"):
            assert watched.go(path).status == 403
        cookie = watched.context.cookies()[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        tab.get_by_role("button", name="Log out").click()
        watched.go("/transactions")
        log_in("operator", "secret-of-operator")
        assert tab.locator("h1").inner_text() == "Transactions"


@pytest.fixture
def other_site() -> Iterator[Callable[[str], str]]:
    """Serves a page at another port of this machine, for which a browser sends the console's cookies."""
    page = ""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def serve(text: str) -> str:
        nonlocal page
        page = text
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield serve
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_site_can_neither_act_nor_frame_the_console(
    chromium: Any, served: Server, other_site: Callable[[str], str]
) -> None:
    name = str(served.broker.transactions()[-1].transaction_id)
    console = str(served.console)
    context = chromium.new_context()
    tab = context.new_page()
    tab.goto(f"{console}/transaction?id={name}")
    tab.goto(
        other_site(f"""<form method=post action="{console}/transaction/commit"><input name=id value="{name}">
        <input name=token value=""></form><script>document.forms[0].submit()</script>""")
    )
    tab.wait_for_url(f"{console}/transaction/commit")
    assert tab.locator("h1").inner_text() == "Not allowed"
    assert served.broker.transaction(name).state is TransactionState.PENDING
    tab.goto(other_site(f'<iframe src="{console}/transaction/commit?id={name}" width=600 height=400></iframe>'))
    tab.wait_for_load_state("networkidle")
    frames = [frame for frame in tab.frames if frame != tab.main_frame]
    assert all("txstore" not in frame.content() for frame in frames)
    tab.goto(
        other_site(f"""<pre></pre><script>fetch("{console}/transactions", {{credentials: "include"}}).then(
        answer => answer.text(), error => "refused").then(text => document.querySelector("pre").textContent = text)
        </script>""")
    )
    tab.wait_for_function("document.querySelector('pre').textContent !== ''")
    assert tab.locator("pre").inner_text() == "refused"
