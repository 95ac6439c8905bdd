"""Rows of measurements in turns, as Markdown and as JSON, and the machine that they were measured on.

In:     values of ours and of another's.
Out:    lines, and plain values that json can write.
Always: a ratio above 1 says that ours is so many times as good, whether more or less of the unit is better; of a single
        turn there is no spread. Facts about the machine name no host, no path and no person.
"""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benches.python.measure import Measured, Scale
from benches.python.ratios import DEFAULT, QUICK

__all__ = ["Row", "against", "alone", "as_json", "heading", "machine", "markdown", "scale_of"]

_PACKAGES = ["sqlalchemy", "psycopg", "lmdb", "rocksdict", "matplotlib"]


@dataclass(frozen=True, slots=True)
class Row:
    """One thing done by two, in the same turns; `unit`: of both values."""

    section: str
    work: str
    ours: str
    ours_measured: Measured
    theirs: str
    theirs_measured: Measured
    unit: str = "/s"
    less_is_better: bool = False

    @property
    def ratio(self) -> Measured | None:
        """How many times as good ours is, turn by turn; None: one of both is zero."""
        if 0 in self.ours_measured.values + self.theirs_measured.values:
            return None
        if self.less_is_better:
            return self.theirs_measured.over(self.ours_measured)
        return self.ours_measured.over(self.theirs_measured)

    def line(self) -> str:
        ours, theirs = (f"{name}: {_number(measured.median)}{self._unit}" for name, measured in self._both)
        return f"| {self.work} | {ours} | {theirs} | {_spread(self.ratio)} |"

    @property
    def _unit(self) -> str:
        return self.unit if self.unit.startswith("/") else f" {self.unit}"

    @property
    def _both(self) -> tuple[tuple[str, Measured], tuple[str, Measured]]:
        return (self.ours, self.ours_measured), (self.theirs, self.theirs_measured)

    def plain(self) -> dict[str, Any]:
        """For json."""
        ratio = self.ratio
        return {
            "section": self.section,
            "work": self.work,
            "unit": self.unit,
            "less_is_better": self.less_is_better,
            "ours": {"name": self.ours, "values": self.ours_measured.values},
            "theirs": {"name": self.theirs, "values": self.theirs_measured.values},
            "ratio": None if ratio is None else {"median": ratio.median, "values": ratio.values},
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Row":
        """The row that `plain` described."""
        ours, theirs = plain["ours"], plain["theirs"]
        return cls(
            plain["section"],
            plain["work"],
            ours["name"],
            Measured(tuple(ours["values"])),
            theirs["name"],
            Measured(tuple(theirs["values"])),
            plain["unit"],
            plain["less_is_better"],
        )


def against(
    section: str, work: str, found: dict[str, Measured], ours: str, theirs: Iterable[str], **facts: Any
) -> Iterator[Row]:
    """A row for each of `theirs` that was measured together with `ours`."""
    for name in theirs:
        yield Row(section, work, ours, found[ours], name, found[name], **facts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:.3g}"


def _spread(ratio: Measured | None) -> str:
    if ratio is None:
        return "–"
    least, most = min(ratio.values), max(ratio.values)
    return f"{ratio.median:.2f}" + (f" ({least:.2f}..{most:.2f})" if len(ratio.values) > 1 else "")


def heading() -> str:
    return "| work | txstore | compared with | ratio |\n|---|---|---|---|"


def markdown(rows: Iterable[Row]) -> str:
    return "\n".join([heading(), *(row.line() for row in rows)]) + "\n"


def as_json(**found: Any) -> str:
    """A whole run: `machine`, and what it found."""
    return json.dumps({"machine": machine(), **found}, indent=1) + "\n"


def machine() -> dict[str, str]:
    """What the values depend on."""
    facts = {
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "rust": _told("rustc", "--version").removeprefix("rustc ").split(" ")[0],
        "java": _told("java", "--version").partition("\n")[0],
        "txstore": _told("git", "rev-parse", "--short", "HEAD").strip(),
    }
    for name in _PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {name: value for name, value in facts.items() if value}


def _told(*command: str) -> str:
    """The output of a program; empty if it is missing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def scale_of(quick: bool) -> Scale:
    """`quick`: a twentieth of the work, one turn."""
    return QUICK if quick else DEFAULT


def alone(name: str, about: str | None, rows: Callable[[Scale], Iterator[Row]], package: str = "peers") -> None:
    """One part as a program of its own."""
    parser = argparse.ArgumentParser(prog=f"python -m benches.{package}.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, one turn: values are rough")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the values of each turn there, too")
    arguments = parser.parse_args()
    found = []
    print(heading(), flush=True)
    for row in rows(scale_of(arguments.quick)):
        print(row.line(), flush=True)
        found.append(row)
    if arguments.json:
        arguments.json.write_text(as_json(rows=[row.plain() for row in found]))
