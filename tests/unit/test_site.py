"""Guards the documentation site: every page can be reached, every public name has an entry, no link is dead, and
nothing is loaded from another host.

The site is built in the tier `matrix`, and looked at in Chromium there: wide and narrow, light and dark.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from website.pages import PAGES, SECTION, section, with_site_links

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PUBLIC = [
    "txstore",
    "txstore.aio",
    "txstore.backup",
    "txstore.database",
    "txstore.django",
    "txstore.faststream",
    "txstore.faststream.fastapi",
    "txstore.metrics",
    "txstore.otel",
    "txstore.testing",
    "txstore.testing.aio",
]
PICTURES = {
    "console": {"console_overview.png", "console_transaction.png"},
    "report": {"report.png"},
    "top": {"top.svg"},
    "demo": {"demo.svg"},
}
"""What each name of `website.pictures` makes."""
# What a browser fetches by itself.
LOADED = {("img", "src"), ("link", "href"), ("script", "src"), ("iframe", "src"), ("source", "src")}


def exported(module: str) -> list[str]:
    """What `__all__` of a module lists, without importing what the module needs."""
    path = ROOT / "python" / module.replace(".", "/")
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [f"{module}.{name}" for name in ast.literal_eval(node.value)]
    raise AssertionError(f"{module} has no __all__")


def pages_in_navigation() -> list[str]:
    return re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1], flags=re.MULTILINE)


def test_every_public_name_has_one_entry_in_the_reference() -> None:
    entries = [
        name
        for page in sorted((DOCS / "reference/api").glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
    ]
    names = [name for module in PUBLIC for name in exported(module)]
    assert len(names) > 100
    assert sorted(entries) == sorted(names)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(pages_in_navigation()) == sorted([*pages, *PAGES.values()])


def test_every_picture_is_shown_and_is_made_by_a_script() -> None:
    diagrams = {f"{path.stem}.svg" for path in (ROOT / "website").glob("*.d2")}
    shown = {
        path
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for path in re.findall(r"!\[[^\]]+\]\((?:docs/|\.\./|)+assets/(\w+\.(?:svg|png))\)", page.read_text())
    }
    made = diagrams.union(*PICTURES.values())
    assert shown == made
    assets = (DOCS / "assets").iterdir()
    assert {path.name for path in assets if path.suffix in (".svg", ".png")} == made | {"logo.svg"}


def test_sections_that_pages_show_exist() -> None:
    found = [match for page in DOCS.rglob("*.md") for match in SECTION.finditer(page.read_text())]
    assert len(found) >= 4
    for match in found:
        assert section(ROOT / match[1], match[2]).startswith(f"## {match[2]}\n")


@pytest.mark.parametrize(
    ("text", "here", "uri", "expected"),
    [
        ("[a](docs/operate/serve.md#accounts)", "README.md", "index.md", "[a](operate/serve.md#accounts)"),
        ("[a](../../benches/README.md)", "docs/publish/outbox.md", "publish/outbox.md", "[a](../reference/benches.md)"),
        ("[a](outbox.md)", "docs/publish/django.md", "publish/django.md", "[a](outbox.md)"),
        ("![a](docs/assets/outbox.svg)", "README.md", "index.md", "![a](assets/outbox.svg)"),
        ("[`a`](../../Makefile)", "docs/publish/django.md", "publish/django.md", "`a`"),
        ("[a](https://example.org/x.md)", "README.md", "index.md", "[a](https://example.org/x.md)"),
        ("[a](#b)", "README.md", "index.md", "[a](#b)"),
        ("[a](missing.md)", "README.md", "index.md", "[a](missing.md)"),
        ("```\n[a](docs/operate/serve.md)\n```\n", "README.md", "index.md", "```\n[a](docs/operate/serve.md)\n```\n"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(text: str, here: str, uri: str, expected: str) -> None:
    assert with_site_links(text, ROOT / here, uri) == expected


class Page(HTMLParser):
    """The identifiers, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)
            if (tag, name) in LOADED and value:
                self.loaded.append(value)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="session")
def parsed(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


@pytest.mark.matrix
def test_no_link_is_dead(site: Path, parsed: dict[Path, Page]) -> None:
    dead = []
    assert len(parsed) > 50
    for path, page in parsed.items():
        for link in page.links if path.name != "404.html" else ():
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            known = parsed[there].anchors | {"", "__skip"} if there in parsed else None
            if not there.exists() or (parts.fragment and known is not None and unquote(parts.fragment) not in known):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


@pytest.mark.matrix
def test_nothing_is_loaded_from_another_host(site: Path, parsed: dict[Path, Page]) -> None:
    elsewhere = [
        f"{path.name}: {link}"
        for path, page in parsed.items()
        for link in page.loaded
        if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc
    ]
    for style in site.rglob("*.css"):
        elsewhere += re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*\)", style.read_text())
    assert elsewhere == []


@pytest.mark.matrix
def test_every_public_name_is_rendered_with_its_docstring(parsed: dict[Path, Page]) -> None:
    anchors = {anchor for path, page in parsed.items() if path.parent.name == "api" for anchor in page.anchors}
    assert [name for module in PUBLIC for name in exported(module) if name not in anchors] == []
    assert {"txstore.Message.keys", "txstore.Consumer.poll", "txstore.aio.Consumer.poll"} <= anchors


@pytest.mark.matrix
def test_diagrams_are_drawn_from_their_texts() -> None:
    pytest.importorskip("mkdocs", reason="D2 comes with the packages of the site: make docs")
    from website.diagrams import outdated

    assert outdated() == []


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "made"), PICTURES.items())
def test_pictures_are_made_from_the_program(tmp_path: Path, name: str, made: set[str]) -> None:
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("there is no Chromium: apt-get install chromium")
    if name == "report" and shutil.which("java") is None:
        pytest.skip("there is no Java, which Spark needs")
    command = [sys.executable, "-m", "website.pictures", name, "--to", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    assert {file.name for file in tmp_path.iterdir()} == made
    assert made <= {file.name for file in (DOCS / "assets").iterdir()}
    shown = {"top.svg": "pending longest", "demo.svg": "exactly the paid orders have a message"}
    for file in made & set(shown):
        assert shown[file] in (tmp_path / file).read_text()
        assert "http://" not in (tmp_path / file).read_text().replace("http://www.w3.org/2000/svg", "")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


LOOKED_AT = ["index", "publish/index", "publish/concepts", "rocketmq/grpc_clients", "data/index", "operate/index"]


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_in_a_browser(site: Path, chromium: Any, width: int, scheme: str) -> None:
    """Opened as files: no errors, no request to a host, nothing wider than the window, and the search finds a page."""
    wrong: list[str] = []
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(120_000)
    tab = context.new_page()
    tab.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    tab.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    tab.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    for name in [*LOOKED_AT, "reference/api/messages"]:
        tab.goto((site / f"{name}.html").as_uri())
        tab.wait_for_load_state("networkidle")
        shown = tab.evaluate("[document.documentElement.scrollWidth, document.body.dataset.mdColorScheme]")
        assert shown == [width, "slate" if scheme == "dark" else "default"], name
        broken = tab.evaluate("[...document.images].filter(one => !one.naturalWidth).map(one => one.src)")
        assert broken == [], name
    if width > 1000:
        tab.fill("input.md-search__input", "savepoint")
        tab.wait_for_selector("a.md-search-result__link[href*='outbox.html']", state="attached")
    context.close()
    assert wrong == []
