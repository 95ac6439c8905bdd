"""Draws the diagrams of the documentation: each `*.d2` of this folder becomes an SVG in docs/assets.

`python -m website.diagrams` writes them, `--check` tells which are older than their text. D2 asks no other host.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ASSETS = HERE.parent / "docs" / "assets"
D2 = Path(sysconfig.get_path("scripts")) / "d2"
# Light and dark, as the reader's system prefers.
OPTIONS = ["--theme", "1", "--dark-theme", "200", "--pad", "20", "--scale", "1"]


def sources() -> list[Path]:
    """The texts of the diagrams."""
    return sorted(HERE.glob("*.d2"))


def picture_of(source: Path) -> Path:
    """Where the picture of a text is."""
    return ASSETS / f"{source.stem}.svg"


def draw(source: Path, picture: Path) -> None:
    """Draws one text."""
    subprocess.run([D2, *OPTIONS, source, picture], check=True, capture_output=True, timeout=120)
    picture.chmod(0o644)  # D2 gives a new file to its owner alone.


def outdated() -> list[str]:
    """The pictures that differ from what their texts draw."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for source in sources():
            drawn = Path(folder) / picture_of(source).name
            draw(source, drawn)
            if not picture_of(source).exists() or drawn.read_bytes() != picture_of(source).read_bytes():
                found.append(picture_of(source).name)
        return found


def main() -> None:
    """Writes the pictures, or compares them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="Only compare; exit with 1 if a picture is out of date.")
    if not parser.parse_args().check:
        for source in sources():
            draw(source, picture_of(source))
    elif names := outdated():
        sys.exit(f"out of date: {', '.join(names)}\nhint: python -m website.diagrams")


if __name__ == "__main__":
    main()
