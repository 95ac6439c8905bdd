"""Pages: which files of the repository are pages of the site, and where their links lead there.

In:     the text of a page, where its file is, and its name in the site.
Out:    the text for the site. A link to a file of the repository without a page becomes the file's name.
Always: works on text alone, without mkdocs. A link whose target does not exist is left as it is, so a strict build
        refuses it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

# File of the repository → its page in the site.
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "operate/security.md",
    "ARCHITECTURE.md": "internals/architecture.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "benches/README.md": "reference/benches.md",
    "spark/README.md": "data/jobs.md",
    "tests/golden/stores/README.md": "internals/golden_stores.md",
}
LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^)\s]+)\)")
# A line that ends with `<!-- FILE: TITLE -->` refers to a section of that file; the site shows the section instead.
SECTION = re.compile(r"^.*<!-- (\S+\.md): (.+) -->$", flags=re.MULTILINE)
BLOCK = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)


def page_text(markdown: str, here: Path, uri: str) -> str:
    """The text of the file `here` as the page `uri`, with the sections that it shows of other files."""

    def shown(found: re.Match[str]) -> str:
        return with_site_links(section(ROOT / found[1], found[2]), ROOT / found[1], uri)

    return SECTION.sub(shown, with_site_links(markdown, here, uri))


def section(path: Path, title: str) -> str:
    """The section of that title of a page, with its heading."""
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"{path.relative_to(ROOT)} has no section {title!r}")
    return found[0]


def with_site_links(markdown: str, here: Path, uri: str) -> str:
    """The text of the file `here` as the page `uri`."""
    parts = BLOCK.split(markdown)  # Every second one is a block of code.
    return "".join(
        part if number % 2 else LINK.sub(lambda found: site_link(found, here, uri), part)
        for number, part in enumerate(parts)
    )


def site_link(found: re.Match[str], here: Path, uri: str) -> str:
    """The link as the site has it."""
    target, sign, anchor = found["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return found[0]
    path = Path(os.path.normpath(here.parent / target))
    if not path.exists() or not path.is_relative_to(ROOT):
        return found[0]
    name = path.relative_to(ROOT).as_posix()
    if path.is_relative_to(DOCS):
        there = path.relative_to(DOCS).as_posix()
    elif name in PAGES:
        there = PAGES[name]
    else:
        return found["text"][1:-1]
    return f"{found['text']}({os.path.relpath(there, Path(uri).parent)}{sign}{anchor})"
