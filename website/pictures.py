"""Makes the pictures of the documentation from the real program: pages of the console, `txstore top`, `make demo`, and
the page of the transaction report by Spark.

In:     Chromium, by Playwright; a pseudo-terminal; Java for Spark.
Out:    `console_overview.png`, `console_transaction.png`, `report.png`, `top.svg` and `demo.svg` in docs/assets.
Always: what is pictured runs as a user runs it. Times, ids and rates differ from run to run.

`python -m website.pictures [NAME …] [--to FOLDER]` makes all, or those that are named. `demo.svg` is a recording, which
plays again and again; a browser that is asked to reduce motion shows its end.
"""

from __future__ import annotations

import argparse
import dataclasses
import html
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
from playwright.sync_api import Page, sync_playwright
from pyte.screens import Char

import txstore
from tests.unit.terminal import Terminal
from txstore import LocalTransactionState, Message, ServerConfig, TransactionMessage

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
TXSTORE = [sys.executable, "-m", "txstore.cli.main"]
SOON = txstore.BrokerConfig(transaction_timeout=0.2, transaction_check_interval=1.0)
_WAIT_SECONDS = 60.0
_ORDERS = 240
_REPORTED = 20_000
_PROOF = "exactly the paid orders have a message"


class PaymentsAreDown:
    """The listener of a service whose database does not answer after its first check."""

    def __init__(self) -> None:
        self.checks = 0

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        self.checks += 1
        if self.checks > 1:
            raise ConnectionError("could not connect to the payments database")
        return LocalTransactionState.UNKNOWN


@contextmanager
def shop() -> Iterator[txstore.Server]:
    """A served store of a shop: orders, a group that lags, a dead letter, and a payment that stays pending."""
    with tempfile.TemporaryDirectory() as folder:
        config = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0", console_actions=True)
        with txstore.serve(Path(folder) / "shop.store", config=config, broker_config=SOON) as server:
            broker = server.broker
            for topic in ("orders", "payments"):
                broker.create_topic(topic, 4)
            producer = broker.producer("order-service")
            for number in range(_ORDERS):
                producer.send(Message("orders", b'{"order": %d}' % number, keys=[f"order-{number}"], tags="paid"))
            with broker.consumer("shipping", "orders", max_reconsume_times=0) as consumer:
                for message in consumer.poll(timeout=5, max_messages=150):
                    if message.keys == ("order-17",):
                        message.retry()
            with broker.transaction_producer("payment-service", PaymentsAreDown()) as payments:
                body = b'{"order": 1017, "customer": "c-4711", "amount": 49.9}'
                payments.send_in_transaction(Message("payments", body, keys=["order-1017", "c-4711"], tags="card"))
                until(lambda: checks_of(broker) >= 3)
                yield server


def checks_of(broker: txstore.EmbeddedBroker) -> int:
    """How often the oldest pending transaction was checked."""
    return int(broker.store.halves_waiting(-1, 1)[0].checks)


def until(holds: Callable[[], bool]) -> None:
    """Waits for a condition."""
    end = time.monotonic() + _WAIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            sys.exit("what is pictured did not happen")
        time.sleep(0.05)


@contextmanager
def tab_of(width: int, height: int) -> Iterator[Page]:
    """A tab of Chromium."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        sys.exit("there is no Chromium\nhint: apt-get install chromium")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        tab.set_default_timeout(_WAIT_SECONDS * 1000)
        yield tab
        browser.close()


def take_console(folder: Path) -> None:
    """Pictures the overview and the page of the pending transaction."""
    with shop() as server, tab_of(width=1100, height=640) as tab:
        name = server.broker.transactions()[0].transaction_id
        tab.goto(f"{server.console}/transaction?id={name}")
        tab.screenshot(path=folder / "console_transaction.png", full_page=True)
        until(lambda: tab.goto(f"{server.console}/") is not None and tab.locator("svg.past").count() > 2)
        tab.screenshot(path=folder / "console_overview.png", full_page=True)


def take_report(folder: Path) -> None:
    """Pictures the beginning of the page that the Spark job writes about 20,000 transactions."""
    with tempfile.TemporaryDirectory() as made, tab_of(width=1100, height=900) as tab:
        store, report, bin_folder = f"{made}/orders.store", f"{made}/report", Path(sys.executable).parent
        simulated = [sys.executable, "spark/simulate_transactions.py", store, "--transactions", str(_REPORTED)]
        subprocess.run(simulated, cwd=ROOT, check=True)
        settings = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "8"}
        submitted = [str(bin_folder / "spark-submit"), "--master", "local[*]"]
        submitted += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        submitted += ["spark/transaction_report.py", store, report, "--pending-after-minutes", "0"]
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": path}
        subprocess.run(submitted, cwd=ROOT, env=os.environ | variables, check=True)
        tab.goto((Path(report) / "report.html").as_uri())
        tab.screenshot(path=folder / "report.png")


def take_top(folder: Path) -> None:
    """Pictures `txstore top` while orders are sent and read."""
    with shop() as server:
        broker, ended = server.broker, threading.Event()

        def work() -> None:
            producer = broker.producer("order-service")
            with broker.consumer("billing", "orders") as consumer:
                for number in range(1_000_000):
                    if ended.wait(0.02 + 0.015 * (number % 50 < 25)):
                        return
                    producer.send_batch([Message("orders", b"x" * 300)] * 4)
                    consumer.poll(timeout=0.01, max_messages=4)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            with Terminal([*TXSTORE, "top", "--interval", "0.5", "--server", str(server.address)]) as terminal:
                views = time.monotonic() + 12
                terminal.wait_until(lambda screen: time.monotonic() > views and "pending longest" in screen)
                frame = Frame.of(terminal.screen, 0.0)
        finally:
            ended.set()
            worker.join()
    write(folder / "top.svg", f"txstore top --server {server.address}", [frame])


def take_demo(folder: Path) -> None:
    """Records the first half of `make demo`: the kills, and the proof."""
    frames: list[Frame] = []
    began = time.monotonic()
    with Terminal([sys.executable, "-m", "examples.demo", "--seed", "7"], columns=86) as terminal:

        def is_proved(screen: str) -> bool:
            frame = Frame.of(terminal.screen, time.monotonic() - began)
            is_over = _PROOF in screen
            if not frames or (frame.lines != frames[-1].lines and (is_over or frame.at - frames[-1].at > 0.4)):
                frames.append(frame.until(_PROOF))
            return is_over

        terminal.wait_until(is_proved, seconds=600)
        terminal.end()
    write(folder / "demo.svg", "make demo", frames)


# Screens as SVG

_CELL, _LINE = 8.4, 18.0
_COLOURS = {
    "default": "#d7dde5", "black": "#6b7683", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#f0f3f6",
}  # fmt: skip
_END_SECONDS = 8.0
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>{title}</title>
<style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}
@media (prefers-reduced-motion:reduce){{.frame{{display:none}}
.last{{display:inline;visibility:visible!important}}}}</style>
<rect width="{width}" height="{height}" rx="8" fill="#0f1620"/>
<text x="{middle}" y="20" text-anchor="middle" fill="#8b98a6">{title}</text>
"""


@dataclasses.dataclass(frozen=True)
class Frame:
    """A screen, and the seconds after the beginning at which it was seen."""

    at: float
    lines: tuple[tuple[tuple[str, str, bool], ...], ...]
    """The runs of each line: text, colour, whether it is bold."""

    @classmethod
    def of(cls, screen: pyte.Screen, at: float) -> Frame:
        """Returns what a terminal shows now."""
        lines = [
            tuple(_runs([screen.buffer[row][column] for column in range(screen.columns)]))
            for row in range(screen.lines)
        ]
        while lines and not lines[-1]:
            lines.pop()
        return cls(at, tuple(lines))

    def until(self, text: str) -> Frame:
        """Returns the frame without the lines after the one that contains a text."""
        lines = ["".join(run for run, _, _ in line) for line in self.lines]
        ends = [number + 1 for number, line in enumerate(lines) if text in line]
        return Frame(self.at, self.lines[: min(ends, default=len(lines))])


def _runs(cells: list[Char]) -> Iterator[tuple[str, str, bool]]:
    """Yields the runs of cells of one style, up to the last visible one."""
    while cells and cells[-1].data == " ":
        cells.pop()
    text, style = "", ("default", False)
    for cell in cells:
        of_cell = (cell.fg, cell.bold)
        if of_cell != style and text:
            yield text, *style
            text = ""
        style = of_cell
        text += cell.data
    if text:
        yield text, *style


def write(picture: Path, title: str, frames: list[Frame]) -> None:
    """Writes a picture of one frame, or a recording of several."""
    columns = max(sum(len(text) for text, _, _ in line) for frame in frames for line in frame.lines)
    rows = max(len(frame.lines) for frame in frames)
    width, height = round(columns * _CELL + 40), round(rows * _LINE + 52)
    parts = [_HEAD.format(width=width, height=height, middle=width / 2, title=html.escape(title))]
    ends = [*(frame.at for frame in frames[1:]), frames[-1].at + _END_SECONDS]
    for frame, end in zip(frames, ends, strict=True):
        parts.append(_drawn(frame, end, ends[-1], is_last=frame is frames[-1]))
    picture.write_text("".join(parts) + "</svg>\n", encoding="utf-8")


def _drawn(frame: Frame, end: float, whole: float, *, is_last: bool) -> str:
    lines = []
    for row, line in enumerate(frame.lines):
        runs, column = [], 0
        for text, colour, is_bold in line:
            fill = _COLOURS.get(colour, _COLOURS["default"])
            weight = ' font-weight="700"' if is_bold else ""
            if text.strip():
                length = f'textLength="{len(text) * _CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
                runs.append(
                    f'<tspan x="{20 + column * _CELL:.1f}" fill="{fill}"{weight} {length}>{html.escape(text)}</tspan>'
                )
            column += len(text)
        if runs:
            lines.append(f'<text y="{50 + row * _LINE:.0f}">{"".join(runs)}</text>')
    if whole == end and frame.at == 0:
        return f"<g>{''.join(lines)}</g>\n"
    times = f"0;{frame.at / whole:.4f};{end / whole:.4f}" if frame.at else f"0;0;{end / whole:.4f}"
    shown = (
        f'<animate attributeName="visibility" values="hidden;visible;hidden" keyTimes="{times}" dur="{whole:.1f}s" '
        'calcMode="discrete" repeatCount="indefinite"/>'
    )
    return f'<g class="frame{" last" if is_last else ""}" visibility="hidden">{shown}{"".join(lines)}</g>\n'


PICTURES: dict[str, Callable[[Path], None]] = {
    "console": take_console,
    "report": take_report,
    "top": take_top,
    "demo": take_demo,
}


def main() -> None:
    """Makes the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PICTURES)}; without: all")
    parser.add_argument("--to", type=Path, default=ASSETS, metavar="FOLDER", help="docs/assets by default")
    chosen = parser.parse_args()
    for name in chosen.names or PICTURES:
        if name not in PICTURES:
            parser.error(f"unknown picture {name!r}, expected one of {', '.join(PICTURES)}")
        PICTURES[name](chosen.to)


if __name__ == "__main__":
    main()
