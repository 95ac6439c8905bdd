"""Guards the report without Spark: its rows are the simulator's list, its numbers those of its rows, and its page shows
both.

A run that is killed or fails leaves the last report as it was.
"""

from __future__ import annotations

import html
import json
import os
import random
import re
import shlex
import shutil
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from spark.simulate_transactions import Simulated, simulate
from tests.copies import killed_copy
from tests.golden.expected import outcomes
from tests.golden.reader import records, transactions
from tests.golden.unpack import TRANSACTIONAL, Unpacked
from tests.report_page import Shown
from tests.unit.conftest import Run
from txstore.errors import InvalidOptionError, StoreCorruptError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make installs requirements-dev.lock")
pytest.importorskip("jinja2", reason="Jinja2 is not installed: make installs requirements-dev.lock")

import pyarrow.parquet as pq  # noqa: E402

from txstore.report.charts import Series, columns  # noqa: E402
from txstore.report.page import page  # noqa: E402
from txstore.report.summary import COLUMNS, Statistics, Summary  # noqa: E402
from txstore.report.writing import write_report  # noqa: E402

# `make torture` asks for a million.
SIMULATED = int(os.environ.get("TXSTORE_REPORT_TRANSACTIONS", "0")) or 3_000
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Simulated]]:
    """A store of transactions of every kind, and the list of them."""
    path = tmp_path_factory.mktemp("simulated") / "trial.store"
    listed: list[Simulated] = []
    for _, so_far in simulate(path, SIMULATED, seed=7):
        listed = so_far
    return path, listed


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return Unpacked(tmp_path_factory.mktemp("golden"))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(folder / "transactions").to_pylist())


def test_rows_equal_the_simulators_list(simulated: tuple[Path, list[Simulated]], tmp_path: Path) -> None:
    store, listed = simulated
    seen: list[int] = []
    summary = write_report(store, tmp_path / "report", now=NOW, progress=seen.append)
    found = sorted(
        (
            row["half_queue_offsets"][0], row["half_physical_offsets"][0], row["transaction_id"],
            row["producer_group"], row["real_topic"], row["real_queue_id"], row["state"],
            (row["final_physical_offsets"] or [None])[0],
        )
        for row in rows_of(tmp_path / "report")
    )  # fmt: skip
    expected = sorted(
        (
            one.half_queue_offset, one.half_physical_offset, one.transaction_id, one.producer_group, one.real_topic,
            one.real_queue_id, one.state, one.final_physical_offset,
        )
        for one in listed
    )  # fmt: skip
    assert found == expected
    assert seen[-1] == len(listed) == summary.all.transactions
    assert {state: count for state, count in summary.all.counts.items() if count} == Counter(
        one.state for one in listed
    )
    assert {one.name: one.transactions for one in summary.groups} == Counter(one.producer_group for one in listed)


@pytest.mark.golden
@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_transactions_of_a_broker_equal_the_manifests(golden: Unpacked, tmp_path: Path, name: str) -> None:
    store, manifest = golden[name].store, golden[name].manifest
    write_report(store, tmp_path / "report", now=NOW)
    found = rows_of(tmp_path / "report")
    expected = pa.table(txstore.scan(store, view="transactions")).to_pylist()
    assert sorted(found, key=str) == sorted(expected, key=str)
    seen = transactions(list(records(store)))
    named = {half.queue_offset for one in seen for half in one.halves if one.sent_op}
    assert {row["transaction_id"]: row["state"] for row in found} == outcomes(manifest, named)


def invented(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows with latencies and times of every size."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        state = chance.choice(("committed", "rolled_back", "pending", "discarded", "half_missing"))
        prepared = 1_700_000_000_000 + int(10 ** chance.uniform(0, 11))
        ended = None if state == "pending" else prepared + int(10 ** chance.uniform(0, 8)) - 1
        missing = state == "half_missing"
        finals = [number] * (state == "committed") * chance.choice((1, 1, 2))
        rows.append(
            {
                "transaction_id": None if missing else f"id-{number}",
                "producer_group": None if missing else chance.choice(("shop", "bank", None)),
                "real_topic": None if missing else chance.choice(("orders", "payments")),
                "state": state,
                "prepared_timestamp": None if missing else prepared,
                "ended_timestamp": ended,
                "check_times": chance.choice((0, 0, 1, 40)),
                "half_queue_offsets": [number],
                "half_physical_offsets": [] if missing else [number],
                "final_physical_offsets": finals,
                "discarded_physical_offsets": [number] * (state == "discarded"),
                "op_physical_offsets": [],
            }
        )
    return rows


def batches(rows: list[dict[str, Any]], each: int) -> list[Any]:
    schema = pa.schema(
        [
            pa.field(name, kind)
            for name, kind in zip(
                COLUMNS,
                [pa.string()] * 4 + [pa.timestamp("us", "UTC")] * 2 + [pa.int32()] + [pa.list_(pa.int64())] * 5,
                strict=True,
            )
        ]
    )
    shown = [
        {**row, **{name: row[name] and row[name] * 1_000 for name in ("prepared_timestamp", "ended_timestamp")}}
        for row in rows
    ]
    return list(pa.Table.from_pylist(shown, schema=schema).to_batches(max_chunksize=each))


def summarized(rows: list[dict[str, Any]], each: int) -> Summary:
    statistics = Statistics(0, now_ms=round(NOW.timestamp() * 1_000), pending_after_ms=600_000)
    for batch in batches(rows, each):
        statistics.add(batch)
    return statistics.summary("orders.store", (0, 1))


@pytest.mark.parametrize("each", [7, 1_000])
def test_statistics_are_those_of_the_rows(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # So few that sums are joined, and times made coarser, several times.
    monkeypatch.setattr("txstore.report.tally._UNJOINED_MAX", 50)
    monkeypatch.setattr("txstore.report.summary._FINE_BUCKETS_MAX", 200)
    rows = invented(2_000, seed=3)
    summary = summarized(rows, each)
    known = [row for row in rows if row["state"] != "half_missing"]
    assert {state: count for state, count in summary.all.counts.items() if count} == Counter(
        row["state"] for row in known
    )
    for one in summary.topics:
        its = [row for row in known if row["real_topic"] == one.name]
        latencies = sorted(row["ended_timestamp"] - row["prepared_timestamp"] for row in its if row["ended_timestamp"])
        assert one.transactions == len(its)
        assert one.twice == sum(len(row["final_physical_offsets"]) > 1 for row in its)
        assert one.latencies_ms[-1] == latencies[-1]
        for share, value in zip((0.5, 0.9, 0.95, 0.99, 0.999), one.latencies_ms, strict=False):
            exact = latencies[max(0, -int(-share * len(latencies) // 1) - 1)]
            assert value is not None
            assert exact * 0.998 <= value <= exact
        assert one.oldest_pending_ms == min(row["prepared_timestamp"] for row in its if row["state"] == "pending")
    assert {one.name: one.transactions for one in summary.groups} == Counter(
        row["producer_group"] or "(none)" for row in known
    )
    width = summary.bucket_ms
    assert summary.over_time == Counter((row["prepared_timestamp"] // width * width, row["state"]) for row in known)
    assert len({bucket for bucket, _ in summary.over_time}) <= 73
    assert sum(summary.latencies.values()) == sum(row["ended_timestamp"] is not None for row in known)
    assert sum(summary.checks.values()) == sum(row["check_times"] > 0 for row in known)
    counts = {one.name: one.count for one in summary.suspicions}
    assert counts["Committed twice"] == sum(len(row["final_physical_offsets"]) > 1 for row in rows)
    assert counts["Op without half"] == sum(row["state"] == "half_missing" for row in rows)
    late = next(one for one in summary.suspicions if one.name == "Pending too long")
    oldest = sorted(row["prepared_timestamp"] for row in rows if row["state"] == "pending")[:50]
    assert [row["prepared_ms"] for row in late.rows] == oldest


def test_empty_store_has_a_report(tmp_path: Path) -> None:
    txstore.open(tmp_path / "orders.store").close()
    summary = write_report(tmp_path / "orders.store", tmp_path / "report")
    assert summary.all.transactions == 0
    assert rows_of(tmp_path / "report") == []
    assert Shown((tmp_path / "report" / "report.html").read_text()).tiles["Transactions"] == "0"


def test_page_shows_the_numbers_and_loads_nothing(golden: Unpacked, tmp_path: Path) -> None:
    store = golden["tx-crash"].store
    write_report(store, tmp_path / "report", now=NOW)
    text = (tmp_path / "report" / "report.html").read_text()
    assert not any(word in text for word in ("http:", "https:", "<link", "src=", "@import", "url("))
    shown = Shown(text)
    assert shown.tiles["Transactions"] == "108"
    assert shown.tiles["Pending too long"] == "13"
    assert (shown.tiles["Discarded"], shown.tiles["Committed twice"]) == ("1", "2")
    assert "99.9 %" in shown.words
    assert "as before" not in text


def test_each_suspicious_transaction_has_the_command_that_explains_it(
    golden: Unpacked, tmp_path: Path, run: Run
) -> None:
    store = golden["tx-crash"].store
    write_report(store, tmp_path / "report", now=NOW)
    shown = Shown((tmp_path / "report" / "report.html").read_text())
    commands = [words for words in shown.words if words.startswith("txstore tx explain ")]
    assert len(commands) == 13 + 1 + 2
    for command in commands:
        code, out, _ = run(*shlex.split(command)[1:])
        assert code == 0, out


def test_names_in_a_page_are_text(tmp_path: Path) -> None:
    rows = invented(20, seed=1)
    for row in rows:
        row["producer_group"], row["transaction_id"] = "<script>alert(1)</script>", "a'b<i>\"&"
    text = page(summarized(rows, 100))
    assert text.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<i>" not in text


def test_page_says_what_has_changed_since_the_last_run(tmp_path: Path) -> None:
    path, folder = tmp_path / "orders.store", tmp_path / "report"
    with txstore.open(path) as broker:
        broker.create_topic("orders", 1)
        sent = [broker.store.prepare(txstore.Message("orders", b"1"), 0, "shop") for _ in range(5)]
        first = write_report(path, folder, now=NOW)
        assert first.all.counts["pending"] == 5
        for one in sent[:3]:
            broker.store.end_transaction(one.queue_offset, one.physical_offset, commit=True)
        broker.store.prepare(txstore.Message("orders", b"1"), 0, "shop")
        write_report(path, folder, now=NOW + timedelta(hours=1))
    text = (folder / "report.html").read_text()
    tiles = dict(re.findall(r'data-name="([^"]+)">(?:(?!data-name).)*?<em>([^<]*)</em>', text, re.DOTALL))
    assert (tiles["Transactions"], tiles["Pending"], tiles["Discarded"]) == ("+1", "-2", "as before")
    assert tiles["Committed"] == "was 0.0 %"
    assert "changes since 2030-01-01 00:00:00.000 UTC" in text
    assert len(rows_of(folder)) == 6


def test_run_that_fails_leaves_the_last_report(simulated: tuple[Path, list[Simulated]], tmp_path: Path) -> None:
    store = killed_copy(simulated[0], tmp_path / "trial.store")
    write_report(store, tmp_path / "report", now=NOW)
    before = (rows_of(tmp_path / "report"), (tmp_path / "report" / "report.html").read_text())
    with next(iter(sorted((store / "commitlog").iterdir()))).open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xff" * 1_000)
    with pytest.raises(StoreCorruptError):
        write_report(store, tmp_path / "report", now=NOW)
    assert (rows_of(tmp_path / "report"), (tmp_path / "report" / "report.html").read_text()) == before


def test_folder_of_others_is_refused(simulated: tuple[Path, list[Simulated]], tmp_path: Path) -> None:
    store, _ = simulated
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"mine")
    with pytest.raises(InvalidOptionError, match="contains other files\nhint: name an empty or a new folder"):
        write_report(store, tmp_path / "photos")
    with pytest.raises(InvalidOptionError, match="is a file"):
        write_report(store, tmp_path / "photos" / "one.jpg")
    txstore.open(tmp_path / "other.store").close()
    write_report(tmp_path / "other.store", tmp_path / "report")
    with pytest.raises(InvalidOptionError, match=r"reports on .*other\.store, not on"):
        write_report(store, tmp_path / "report")


def test_command_writes_a_report(simulated: tuple[Path, list[Simulated]], tmp_path: Path, run: Run) -> None:
    store, listed = simulated
    code, out, err = run("tx", "report", store, tmp_path / "report", "--now", "2030-01-01T00:00", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["transactions"] == len(listed)
    assert found["to_look_at"]["pending too long"] == found["pending"]
    assert Path(found["page"]).read_text().startswith("<!doctype html>")
    assert pq.read_table(found["rows"]).num_rows == len(listed)
    code, out, _ = run("tx", "report", store, tmp_path / "report", "--pending-after-minutes", 1e9)
    assert (code, "pending too long" in out) == (0, False)
    code, _, err = run("tx", "report", store, store)
    assert (code, "contains other files" in err) == (2, True)


@pytest.mark.parametrize("is_logarithmic", [False, True])
@pytest.mark.parametrize("highest", [0, 1, 9, 10, 987_654, 1_200_000, 16_000_000, 1_000_000_000])
def test_numbers_of_an_axis_are_within_the_picture(highest: int, is_logarithmic: bool) -> None:
    chart = columns(
        [Series("a", "a", [highest])], ["now"], title="t", x_axis="x", y_axis="y", shown_labels=lambda _: False,
        is_logarithmic=is_logarithmic,
    )  # fmt: skip
    ticks = re.findall(r'class="tick" x="([0-9.]+)" y="([0-9.]+)" text-anchor="end">([0-9,]+)<', chart)
    assert len(ticks) > 1
    for right, y, number in ticks:
        assert float(right) - 7.5 * len(number) >= 0, "twelve pixels high, a digit is about seven wide"
        assert 20 < float(y) < 300
    tops = [float(y) for y in re.findall(r'<rect [^>]* y="([0-9.]+)"', chart)]
    assert all(top >= 27 for top in tops), "no column is higher than the axis"


def test_one_slow_transaction_among_a_million_has_a_visible_column() -> None:
    chart = columns(
        [Series("a", "a", [1_000_000, 0, 1])], ["1", "2", "3"], title="t", x_axis="x", y_axis="y",
        shown_labels=lambda _: False, is_logarithmic=True,
    )  # fmt: skip
    heights = [float(height) for height in re.findall(r'<rect [^>]* height="([0-9.]+)"', chart)]
    assert len(heights) == 2
    assert heights[1] > 20


# What a reader does, told to the page around it.
PROBE = """
<script>addEventListener("load", () => {
  const topics = () => [...document.querySelectorAll("#by-topic tbody th")].map((cell) => cell.textContent);
  const head = document.querySelector("#by-topic thead th:nth-child(3)");
  head.click();
  const falling = topics();
  head.click();
  document.querySelector(".command button").click();
  parent.postMessage(JSON.stringify({
    falling, rising: topics(), copied: getSelection().toString(),
    width: document.documentElement.scrollWidth, view: innerWidth,
    wide: getComputedStyle(document.querySelector(".on-wide")).display,
    charts: document.querySelectorAll("svg.chart").length,
  }), "*");
});</script></body>"""
FRAME = """<!doctype html><iframe src="page.html" width="{}" height="900"></iframe><pre id="told"></pre>
<script>onmessage = (event) => {{ document.getElementById("told").textContent = event.data; }};</script>"""


@pytest.mark.matrix
@pytest.mark.parametrize("width", [420, 1_300])
def test_browser_shows_and_sorts_the_page(simulated: tuple[Path, list[Simulated]], tmp_path: Path, width: int) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    summary = write_report(simulated[0], tmp_path / "report", now=NOW)
    page_text = (tmp_path / "report" / "report.html").read_text()
    (tmp_path / "page.html").write_text(page_text.replace("</body>", PROBE))
    (tmp_path / "frame.html").write_text(FRAME.format(width))
    # Sandboxes of the browser need rights that containers do not give; the page is our own file.
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--hide-scrollbars", "--window-size=1400,1800", "--virtual-time-budget=10000"]
    address = (tmp_path / "frame.html").as_uri()
    dom = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=True)
    told = json.loads(html.unescape(re.findall(r'<pre id="told">(.*?)</pre>', dom.stdout, re.DOTALL)[0]))
    largest = [one.name for one in summary.topics]
    assert (told["falling"], told["rising"]) == (largest, largest[::-1])
    assert told["copied"].startswith("txstore tx explain ")
    assert told["width"] <= told["view"] == width, "nothing but tables scrolls sideways"
    assert told["wide"] == ("none" if width == 420 else "block")
    picture = tmp_path / "page.png"
    subprocess.run([*command, f"--screenshot={picture}", address], capture_output=True, timeout=120, check=True)
    # A blank page of that size packs into a few kilobytes.
    assert picture.stat().st_size > 30_000
