"""Guards the documentation: the code in its pages runs as shown and prints what they say.

Pages are followed in an empty folder, the README twice: the second time it finds its database and its store.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import txstore
from tests.unit.pages import blocks, follow, matches

ROOT = Path(__file__).resolve().parents[2]


def test_example_runs_as_shown(tmp_path: Path) -> None:
    for _ in range(2):
        assert follow(ROOT / "README.md", tmp_path) == "b'order 17 is paid'\n"


def test_page_on_consumers_runs_as_shown(tmp_path: Path) -> None:
    said = follow(ROOT / "docs/publish/consumers.md", tmp_path)
    # A message that is handled again comes after ten seconds, which a slow disk may have taken by then.
    assert re.search(r"%RETRY%shipping 0 [01]\norders 0 0\n", said)
    assert re.search(r"\nb'0' [\d-]+ [\d:.]+\+00:00 0 4 0\n\Z", said)


# Pages whose programs print nothing.
FOLLOWED = [
    "operate/failures",
    "operate/retention",
    "publish/asyncio",
    "publish/concepts",
    "publish/outbox",
    "publish/shared",
    "publish/tutorial",
    "rocketmq/remote",
]
# Page → the test that runs its code.
RUN_BY = {
    "data/spark": "tests/spark/test_batch.py",
    "operate/backup": "tests/unit/test_readme.py",
    "operate/observability": "tests/unit/test_readme.py",
    "publish/consumers": "tests/unit/test_readme.py",
    "publish/database": "tests/database/test_examples.py",
    "publish/faststream": "tests/unit/test_faststream.py",
    "publish/from_outbox": "tests/unit/test_readme.py",
    "publish/testing_your_service": "tests/unit/test_readme.py",
}


def test_every_page_with_code_is_run_by_a_test() -> None:
    with_code = {
        page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for page in (ROOT / "docs").rglob("*.md")
        if {language for language, _ in blocks(page)} & {"python", "console"}
    }
    assert with_code == {*FOLLOWED, *RUN_BY}
    for page, test in RUN_BY.items():
        assert f"{page.split('/')[1]}.md" in (ROOT / test).read_text(), test


@pytest.mark.parametrize("name", FOLLOWED)
def test_page_can_be_followed_word_by_word(name: str, tmp_path: Path) -> None:
    assert follow(ROOT / "docs" / f"{name}.md", tmp_path) == ""


def test_page_on_traces_runs_as_shown(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="requirements-dev.lock is not installed")
    assert follow(ROOT / "docs/operate/observability.md", tmp_path) == "b'order 17 is paid'\n"


def test_page_on_backups_runs_as_shown(tmp_path: Path) -> None:
    assert follow(ROOT / "docs/operate/backup.md", tmp_path) == "2 0\n"


def test_page_on_testing_runs_as_shown(tmp_path: Path) -> None:
    assert follow(ROOT / "docs/publish/testing_your_service.md", tmp_path) == "[b'17']\n" * 2


def test_migration_from_an_outbox_announces_each_row_once(tmp_path: Path) -> None:
    page = ROOT / "docs/publish/from_outbox.md"
    (said,) = (text for language, text in blocks(page) if language == "")
    assert follow(page, tmp_path) == said


def test_page_with_wrong_output_is_detected(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```python\n# one.py\nprint(1)\n```\n\n```console\n$ python one.py\n2\n```\n")
    with pytest.raises(AssertionError, match=r"\$ python one.py"):
        follow(tmp_path / "page.md", tmp_path)
    assert matches("a … c\n", "a b c\n")
    assert not matches("a … c\n", "a b\n")


def test_every_error_is_listed_under_failures() -> None:
    page = (ROOT / "docs/operate/failures.md").read_text()
    classes = [name for name in txstore.__all__ if name.endswith("Error")]
    assert len(classes) > 20
    assert [name for name in classes if f"`{name}`" not in page] == []


def test_every_tested_fault_is_listed_under_failures() -> None:
    """docs/internals/testing.md has a row for each fault. One section here may cover several rows."""
    table = (ROOT / "docs/internals/testing.md").read_text().split("## What happens on each fault")[1].split("\n## ")[0]
    faults = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    parts = re.findall(r"^## (.*)$", (ROOT / "docs/operate/failures.md").read_text(), flags=re.MULTILINE)
    assert set(faults) == set(PART_OF)
    assert set(PART_OF.values()) - {None} <= set(parts)


# Fault, as docs/internals/testing.md calls it → its section in docs/operate/failures.md; None: there is no server yet.
PART_OF = {
    "crash, lost power": "The process is killed, or the power goes",
    "torn tail": "The log ends in the middle of a record",
    "bad record below the durable end": "A record in the middle of the log is damaged",
    "a sync fails": "A sync fails",
    "disk full": "The disk is full",
    "read-only file system": "The file system is read-only",
    "no file handles or maps": "No file handles or maps are left",
    "checkpoint, index or queue missing or damaged": "The checkpoint, the index or a queue is missing or damaged",
    "snapshot missing or damaged": "The snapshot is missing or damaged",
    "topics or offsets damaged": "Topics or offsets are damaged",
    "second writer": "A second process opens the store for writing",
    "use after fork": "The store is used after a fork",
    "an end that cannot be": "An end that is not possible",
    "producer gone": "The producer is gone",
    "too many pending": "Too many transactions are pending",
    "clock jumps": "The clock jumps",
    "log file removed by hand": "A file of the log was removed by hand",
    "message too large, bad name": "A message is too large, or a name is not allowed",
    "store or database restored from a backup": "A store or a database is lost, and a backup is restored",
    "the user's database fails": "Your database fails",
    "malformed frame, slow peer": None,
    "a listener raises or hangs": "A listener raises or hangs",
    "panic in the engine": "The engine has a bug",
}


def test_links_resolve() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/README.md")]:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/reference/versions.md"])
def test_tests_that_a_page_names_exist(page: str) -> None:
    """Each supported version, and each defence, has a test that shows it."""
    text = (ROOT / page).read_text()
    rows = re.findall(r"^\|.*(?:`make |`tests/|`fuzz/).*\|$", text, flags=re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\|", text, flags=re.MULTILINE)) - 2
    paths = re.findall(r"`((?:tests|fuzz)/[\w./]*)`", text)
    assert len(paths) >= 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


def test_spark_of_the_matrix_are_those_that_are_supported() -> None:
    (sparks,) = re.findall(r"^SPARKS \?= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    (row,) = re.findall(
        r"^\| Apache Spark \| ([\d., ]+):", (ROOT / "docs/reference/versions.md").read_text(), re.MULTILINE
    )
    assert row.split(", ") == sparks.split()


def test_make_help_lists_the_targets() -> None:
    run = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    told = set(re.findall(r"^  make (\w+)", run.stdout, flags=re.MULTILINE))
    assert told >= {"demo", "test", "bench", "lint", "build", "clean"}
