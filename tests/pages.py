"""Reads the pages of the web console as a browser without scripts does: links, forms, tables, cookies."""

from __future__ import annotations

import html.parser
import http.client
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urlsplit

__all__ = ["Browser", "Form", "Shown"]

_NO_END = ("meta", "link", "input", "br")


@dataclass
class Form:
    """A form: where it is sent, and its fields with the values that the page gave them."""

    method: str
    action: str
    fields: dict[str, str] = field(default_factory=dict)


class Shown(html.parser.HTMLParser):
    """The content of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.heading = ""
        self.links: dict[str, str] = {}
        self.rows: list[list[str]] = []
        """The cells of all tables' rows, without their heads."""
        self.tiles: dict[str, str] = {}
        """The overview's numbers by name."""
        self.levels: dict[str, str] = {}
        """How the overview marks each number: `ok`, `warning`, `bad`, or nothing."""
        self.tile_links: dict[str, str] = {}
        self.forms: list[Form] = []
        self.tags: Counter[str] = Counter()
        self._words: list[str] = []
        self._path: list[tuple[str, dict[str, str]]] = []
        self._tile = ""
        self.feed(text)
        self.close()

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self._words).split())

    def link(self, text: str) -> str:
        """Where the first link with this text leads."""
        return self.links[text]

    def form(self, action: str) -> Form:
        """The form that is sent there."""
        return next(form for form in self.forms if form.action == action)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        if tag not in _NO_END:
            self._path.append((tag, given))
        if tag == "form":
            self.forms.append(Form(given.get("method", "get"), given["action"]))
        elif tag in ("input", "select") and self.forms and "name" in given:
            self.forms[-1].fields[given["name"]] = given.get("value", "")
        elif tag == "tr" and not self._inside("thead"):
            self.rows.append([])
        elif tag in ("td", "th") and self.rows and not self._inside("thead"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._path and self._path.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self._path or self._path[-1][0] in ("style", "title"):
            return
        self._words.append(data)
        tag, given = self._path[-1]
        if self._inside("h1"):
            self.heading += data.strip()
        if (self._inside("td") or (self._inside("th") and not self._inside("thead"))) and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()
        if given.get("class") == "name":
            self._tile = data
            self.levels[data] = self._attribute("li", "class").removeprefix("tile").strip()
            self.tile_links[data] = self._attribute("a", "href")
        elif tag == "strong" and self._tile:
            self.tiles[self._tile] = data
        for name, attributes in self._path:
            if name == "a" and "href" in attributes and data.strip():
                self.links.setdefault(data.strip(), attributes["href"])

    def _attribute(self, tag: str, attribute: str) -> str:
        """The attribute of the enclosing tag; empty without one."""
        return next((given.get(attribute, "") for name, given in reversed(self._path) if name == tag), "")

    def _inside(self, tag: str) -> bool:
        return any(name == tag for name, _ in self._path)


class Browser:
    """Loads pages of one console, with cookies. Follows redirects."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        self.status = 0
        self.headers: dict[str, str] = {}
        """Of the last response, with names in lower case."""
        self._cookies: dict[str, str] = {}

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Shown:
        return self._ask("GET", path, None, headers or {}, follow=True)

    def post(self, path: str, fields: Mapping[str, str], *, follow: bool = True) -> Shown:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", path, urlencode(fields), headers, follow=follow)

    def submit(self, page: Shown, fields: Mapping[str, str], *, follow: bool = True) -> Shown:
        """Sends the page's last form that is posted (the first may be the logout), with some fields filled in."""
        form = [form for form in page.forms if form.method == "post"][-1]
        return self.post(form.action, {**form.fields, **fields}, follow=follow)

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str], *, follow: bool) -> Shown:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            cookies = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
            connection.request(method, path.partition("#")[0], body, {"Cookie": cookies, **headers})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        for name, morsel in SimpleCookie(self.headers.get("set-cookie", "")).items():
            self._cookies[name] = morsel.value
        if follow and self.status == 303:
            return self.get(self.headers["location"])
        return Shown(text)
