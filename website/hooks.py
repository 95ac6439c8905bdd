"""Hooks of mkdocs: the site has pages that lie outside docs, and the links of the repository work in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# mkdocs loads this file by its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from website.pages import PAGES, ROOT, page_text


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages that lie outside docs."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files become links to their pages."""
    return page_text(markdown, Path(page.file.abs_src_path or ""), page.file.src_uri)
