"""Runs all comparisons in one run, or some of them.

In:     `python -m benches.peers [--quick] [--only engine,wire,…] [--out FOLDER]`.
Out:    each row as it is measured; then in the folder `peers.md`, `peers.json` with every turn's values and the
        machine's facts, and `peers.svg` and `.png` with the ratios; of growth likewise `growth.md`, `.json`, `.svg` and
        `.png`.
Always: what is compared ran in turns; shows, never asserts.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benches.peers import growth
from benches.peers.plot import plot_growth, plot_ratios
from benches.peers.table import Row, as_json, heading, machine, markdown, scale_of
from benches.python.measure import Scale

_ROOT = Path(__file__).resolve().parents[2]
_COMPARED = ("engine", "durable", "wire", "others", "outbox")
PARTS = (*_COMPARED, "growth")


def _parts(words: str) -> list[str]:
    chosen = words.split(",")
    if unknown := [word for word in chosen if word not in PARTS]:
        raise argparse.ArgumentTypeError(f"unknown part {', '.join(unknown)}, expected some of {', '.join(PARTS)}")
    return chosen


def _rows_of(part: str) -> Callable[[Scale], Iterator[Row]]:
    rows: Callable[[Scale], Iterator[Row]] = import_module(f"benches.peers.{part}").rows
    return rows


def _compare(parts: Sequence[str], scale: Scale, folder: Path) -> list[str]:
    """Measures those parts, written after each; returns the parts that failed, whose rows up to there are kept."""
    rows: list[Row] = []
    failed: list[str] = []
    start = time.perf_counter()
    if parts:
        print(heading(), flush=True)
    for part in parts:
        try:
            for row in _rows_of(part)(scale):
                print(row.line(), flush=True)
                rows.append(row)
        except Exception:  # An hour of the other parts is not lost for it.
            traceback.print_exc()
            failed.append(part)
        _write(folder, rows, failed, scale, time.perf_counter() - start)
    return failed


def _write(folder: Path, rows: Sequence[Row], failed: Sequence[str], scale: Scale, seconds: float) -> None:
    how = f"{scale.name} sizes, medians of {scale.turns} turns (least..most), {seconds:.0f} s"
    how += f"; failed: {', '.join(failed)}" if failed else ""
    (folder / "peers.md").write_text(f"{how}\n\n{_facts()}\n\n{markdown(rows)}")
    plain = [row.plain() for row in rows]
    (folder / "peers.json").write_text(as_json(rows=plain, failed=failed, scale=scale.name, turns=scale.turns))
    plot_ratios(rows, folder / "peers")


def _grow(sizes: growth.Sizes, folder: Path) -> None:
    points: list[growth.Point] = []
    for point in growth.points(sizes):
        print(point.line(), flush=True)
        points.append(point)
    (folder / "growth.md").write_text(f"{_facts()}\n\n{growth.markdown(points)}")
    (folder / "growth.json").write_text(as_json(points=[asdict(point) for point in points]))
    plot_growth(points, folder / "growth")


def _facts() -> str:
    return " · ".join(f"{name} {value}" for name, value in machine().items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, one turn: values are rough")
    parser.add_argument("--large", action="store_true", help="of growth: 100,000,000 messages …; needs 40 GiB")
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="PART,…", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=_ROOT / "target" / "bench-peers", metavar="FOLDER")
    arguments = parser.parse_args()
    scale: Scale = scale_of(arguments.quick)
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    print(f"{scale.name} sizes, medians of {scale.turns} turns; load before: {os.getloadavg()[0]:.1f}\n")
    failed = _compare([part for part in arguments.only if part in _COMPARED], scale, folder)
    if "growth" in arguments.only:
        _grow(growth.sizes_of(arguments.quick, arguments.large), folder)
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}")
    if failed:
        sys.exit(f"not all was measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
