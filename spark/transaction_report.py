"""Reports a store's transactions: a Parquet row for each one, and an HTML page.

    spark-submit spark/transaction_report.py orders.store report

In:     the directory of a store, of txstore or of a RocketMQ broker, open or closed.
Out:    in the folder, `transactions/` (Parquet, see docs/data/report.md), `ledger.json`, `report.json` and
        `report.html`. A later run with the same folder reads only the new part of the log and the open transactions;
        `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from txstore.errors import TxStoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; returns 0 on success, 2 for a wrong argument."""
    options = _parser().parse_args(arguments)
    try:
        run(options)
    except TxStoreError as error:
        print(f"transaction_report: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> Path:
    """Writes the report and returns the path of its page."""
    from pyspark.sql import SparkSession

    from txstore.report.last_run import LEDGER
    from txstore.report.summary import Statistics
    from txstore.report.writing import write_page
    from txstore.spark.report.ledger import Ledger

    folder = Path(options.output)
    spark = SparkSession.builder.appName("transaction report").getOrCreate()
    if options.fresh and (folder / "ledger.json").exists():
        (folder / "ledger.json").unlink()
        shutil.rmtree(folder / "transactions", ignore_errors=True)
        for name in ("report.html", "report.json"):
            (folder / name).unlink(missing_ok=True)
    ledger = Ledger(spark, options.store, folder)
    begin = time.monotonic()
    _say(f"{options.store}: commit log {ledger.first:,} to {ledger.visible:,}, read up to {ledger.physical_offset:,}")
    until = None if options.until is None else round(options.until.timestamp() * 1_000)
    done = ledger.advance(until, round(options.lookback_minutes * 60_000))
    _say(f"{time.monotonic() - begin:6.1f} s  transactions folded from {done:,} bytes of the log")
    now = options.now or datetime.now().astimezone()
    statistics = Statistics(
        ledger.log_first,
        now_ms=round(now.timestamp() * 1_000),
        pending_after_ms=round(options.pending_after_minutes * 60_000),
    )
    for batch in ledger.batches():
        statistics.add(batch)
    summary = statistics.summary(str(Path(options.store).resolve()), (ledger.log_first, ledger.physical_offset))
    _say(f"{time.monotonic() - begin:6.1f} s  statistics of {summary.all.transactions:,} transactions")
    for one in summary.suspicions:
        if one.count:
            _say(f"          {one.count:,} {one.name.lower()}")
    found = write_page(summary, folder, LEDGER, ledger.last_run)
    _say(f"rows: {folder / 'transactions'}\npage: {found.resolve().as_uri()}")
    return found


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="transaction_report.py", description=about)
    parser.add_argument("store", help="the store's directory, as the driver and the executors see it")
    parser.add_argument("output", help="a folder for the report alone, as the driver and the executors see it")
    parser.add_argument("--fresh", action="store_true", help="start over, and delete the folder's report")
    parser.add_argument(
        "--until", type=datetime.fromisoformat, metavar="TIME",
        help="read only what was stored before, such as 2026-05-01T12:00:00+00:00; without a zone: local time",
    )  # fmt: skip
    parser.add_argument(
        "--lookback-minutes", type=float, default=60, metavar="N",
        help="pass on to the next run what ended so many minutes ago or less, in case something comes late (60)",
    )  # fmt: skip
    parser.add_argument(
        "--pending-after-minutes", type=float, default=10, metavar="N",
        help="age from which a pending transaction is suspicious (10)",
    )  # fmt: skip
    parser.add_argument("--now", type=datetime.fromisoformat, metavar="TIME", help="the time that ages refer to (now)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
