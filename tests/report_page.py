"""What a reader of the report's page sees."""

from __future__ import annotations

import html.parser
from collections import Counter

__all__ = ["Shown"]


class Shown(html.parser.HTMLParser):
    """The content of a page: its tiles, headings, and how many rows and bars there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tiles: dict[str, str] = {}
        self.words: list[str] = []
        self.tags: Counter[str] = Counter()
        self._tile = ""
        self._path: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._path.append(tag)
        self._tile = dict(attrs).get("data-name") or self._tile

    def handle_endtag(self, tag: str) -> None:
        while self._path and self._path.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._path and self._path[-1] == "strong":
            self.tiles[self._tile] = data
        elif data.strip() and self._path and self._path[-1] != "style":
            self.words.append(data.strip())
