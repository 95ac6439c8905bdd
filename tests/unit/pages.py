"""Runs the code blocks of a documentation page and compares their output, as a reader would.

In:     a page, an empty folder, the interpreter that runs what the page says.
Out:    what the page's program printed, or an assertion that shows the block.
Always: a block of `python` that begins with `# name.py` is that file; the other blocks form one program, in order. In a
        block of `console` each line after `$ ` is a command, and its output follows; `…` matches any text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each block."""
    return [(found[1], found[2]) for found in BLOCK.finditer(page.read_text())]


def follow(page: Path, folder: Path, python: Path = Path(sys.executable)) -> str:
    """Does what the page says, in order, and returns what its program printed."""
    program: list[str] = []
    for language, text in blocks(page):
        name = FILE.match(text)
        if language == "python" and name is not None:
            (folder / name[1]).write_text(text)
        elif language == "python":
            program.append(text)
        elif language == "console":
            for command, expected in commands(text):
                shown = shell(command, folder, python)
                assert matches(expected, shown), f"{page.name}: $ {command}\nexpected:\n{expected}\nshown:\n{shown}"
    if not program:
        return ""
    done = subprocess.run(
        [python, "-c", "\n".join(program)], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{page.name}:\n{done.stderr}"
    return done.stdout


def commands(text: str) -> list[tuple[str, str]]:
    """(command, expected output) for each command of a block."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def shell(command: str, folder: Path, python: Path = Path(sys.executable)) -> str:
    """Runs a command and returns its output. The interpreter and its scripts come first on the path."""
    scripts = [sysconfig.get_path("scripts")] if python == Path(sys.executable) else []
    path = os.pathsep.join([*scripts, str(python.parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def matches(expected: str, shown: str) -> bool:
    pattern = re.escape(expected).replace(re.escape("…"), ".*?")
    return re.fullmatch(pattern, shown, flags=re.DOTALL) is not None
