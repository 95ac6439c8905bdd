"""Beside others: all comparisons in one run, or some of them.

In: `python -m benches.peers [--quick] [--only engine,wire,…] [--out FOLDER]`. Out: each row as it is measured; then in
the folder `peers.md`, `peers.json` with every turn's figure and the machine's facts, and `peers.svg` and `.png` with
the ratios. Always: what is compared ran in turns; shows, never asserts. Not here: what is measured (the parts do that).
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from benches.peers.plot import plot_ratios
from benches.peers.table import Row, as_json, heading, machine, markdown, scale_of
from benches.python.measure import Scale

_ROOT = Path(__file__).resolve().parents[2]
PARTS = ("engine", "wire", "others")


def _parts(words: str) -> list[str]:
    chosen = words.split(",")
    if unknown := [word for word in chosen if word not in PARTS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(PARTS)}")
    return chosen


def _rows_of(part: str) -> Callable[[Scale], Iterator[Row]]:
    rows: Callable[[Scale], Iterator[Row]] = import_module(f"benches.peers.{part}").rows
    return rows


def _write(folder: Path, rows: list[Row], scale: Scale, seconds: float) -> None:
    facts = " · ".join(f"{name} {value}" for name, value in machine().items())
    how = f"{scale.name} sizes, medians of {scale.turns} turns (least..most), {seconds:.0f} s"
    (folder / "peers.md").write_text(f"{how}\n\n{facts}\n\n{markdown(rows)}")
    (folder / "peers.json").write_text(as_json(rows, scale=scale.name, turns=scale.turns, seconds=round(seconds)))
    plot_ratios(rows, folder / "peers")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, one turn: figures are rough")
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="PART,…", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=_ROOT / "target" / "bench-peers", metavar="FOLDER")
    arguments = parser.parse_args()
    scale, rows = scale_of(arguments.quick), []
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    print(f"{scale.name} sizes, medians of {scale.turns} turns; load before: {os.getloadavg()[0]:.1f}\n")
    print(heading(), flush=True)
    for part in arguments.only:
        for row in _rows_of(part)(scale):
            print(row.line(), flush=True)
            rows.append(row)
        _write(arguments.out, rows, scale, time.perf_counter() - start)
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
