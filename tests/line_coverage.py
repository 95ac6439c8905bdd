"""Which lines of the engine its Rust tests run, folder by folder.

In:  what `cargo llvm-cov` collected, as JSON on the standard input.
Out: a table; exit code 1 if a promise is broken: the engine as a whole 90 %, recovery and the ends of transactions
     95 %. The border and the Python package are run by pytest and not counted.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

ENGINE_MIN, CAREFUL_MIN = 90.0, 95.0
CAREFUL = (
    "recovery/",
    "transaction/",
    "store/end_transaction.rs",
    "store/decide_end.rs",
    "store/write_ends.rs",
)
BORDERS = ("python/", "arrow/", "remoting/", "server/")


def percent(lines: tuple[int, int]) -> float:
    """Covered of all."""
    return 100.0 * lines[0] / lines[1] if lines[1] else 100.0


def add(lines: tuple[int, int], more: tuple[int, int]) -> tuple[int, int]:
    return lines[0] + more[0], lines[1] + more[1]


def main() -> None:
    """Prints the table."""
    folders: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    engine, careful = (0, 0), (0, 0)
    for file in json.load(sys.stdin)["data"][0]["files"]:
        path = file["filename"].split("rust/src/")[-1]
        summary = file["summary"]["lines"]
        lines = summary["covered"], summary["count"]
        if path.startswith(BORDERS) or "rust/src/" not in file["filename"]:
            continue
        folder = path.split("/")[0].removesuffix(".rs")
        folders[folder] = add(folders[folder], lines)
        engine = add(engine, lines)
        if path.startswith(CAREFUL):
            careful = add(careful, lines)
            folders[f"  {path}"] = lines
    for folder, lines in sorted(folders.items()):
        print(f"{folder:28}{lines[0]:>7} of {lines[1]:<7}{percent(lines):>6.1f} %")
    for name, lines, least in (("the engine", engine, ENGINE_MIN), ("recovery and ends", careful, CAREFUL_MIN)):
        print(f"{name:28}{lines[0]:>7} of {lines[1]:<7}{percent(lines):>6.1f} % (at least {least:.0f})")
    sys.exit(percent(engine) < ENGINE_MIN or percent(careful) < CAREFUL_MIN)


if __name__ == "__main__":
    main()
