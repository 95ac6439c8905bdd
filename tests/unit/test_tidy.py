"""The story: the layout is a promise, too. Each file is a room, and a room knows only those to its left.

Every rule is a function from a file's path and text to complaints. It is run over all files of the project, and over a
made-up bad snippet, so that a rule which has gone blind fails here.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from txstore import _native

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 700

RUST_ROOMS = (
    "mutant units error clock panics sync options names java record message storage segment commit_log consume_queue "
    "index checkpoint published config_file offsets settings delay dispatch flush half snapshot log_view recovery "
    "retention store repair arrow remoting python"
).split()
PYTHON_ROOMS = (
    "errors config message listener interface _native arrow consumer producer transactions broker remoting client "
    "server aio testing database spark inspection cli"
).split()
# What half and op messages are is needed wherever records are looked at; those parts of `half` hold no state.
RUST_SEEN_FROM_RECORD_ON = {"storage", "half"}
# Message and StoredMessage are the border's own classes, shown to users by the room that bears their name.
PYTHON_EXCEPTIONS = {("message", "_native")}
# Rooms to the right of the client may also import the package itself, `import txstore`.
FRONT_DOOR = "client"
# Folders and pages whose words are plain already, and all Rust. Others join when they are rewritten.
PLAIN = (
    "README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md examples/ spark/ python/pyspark_txstore/ python/txstore/ "
    "docs/ fuzz/corpus.py fuzz/run.py"
).split()
# What we do not write, and what to write instead. Only words that have a standard word in every sense are listed.
WORDS = {
    r"behind": "after, beyond",
    r"in front of": "before",
    r"stands?|stood": "is",
    r"places?": "physical_offset, queue_offset, queue, address, path",
    r"anew": "again",
    r"in hand": "unacknowledged, in flight",
    r"whoever": "the name of the subject",
    r"be had": "available",
    r"so long as": "while",
    r"pends?": "is pending",
    r"(?:gives?|gave|given) up": "discards, stops",
    r"puts? off": "postpones",
    r"figures?": "metrics, statistics",
    r"judge[sd]?": "decides",
    r"backlog": "lag, consumer progress",
    r"beside": "next to, in addition to, while",
    r"go(?:es)? on": "continues",
    r"Again: nothing": "Idempotent",
}
# `place` is a field of the rows that the report has written to Parquet.
LITERALLY = {"python/txstore/spark/report/fold.py": ("place",)}
UNSAFE_ROOMS = ("rust/src/storage/disk.rs", "rust/src/storage/ahead.rs", "rust/src/storage/disk/lock.rs")

Rule = Callable[[str, str], list[str]]


@cache
def tracked() -> tuple[str, ...]:
    """The project's files, also new ones that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        listed = [
            str(path.relative_to(ROOT)) for top in ("rust", "python", "tests") for path in (ROOT / top).rglob("*")
        ]
    return tuple(name for name in sorted(listed) if (ROOT / name).is_file())


def rust_code(text: str) -> str:
    """Rust without comments, text literals and the tests at its end."""
    pattern = r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\\\'])\''
    bare = re.sub(pattern, lambda found: '""' if found[0].endswith('"') else "", text, flags=re.DOTALL)
    return re.split(r"#\[cfg\(test\)\]\s*(?:pub )?mod \w+ \{", bare)[0]


def is_rust_source(path: str) -> bool:
    return path.startswith("rust/src/") and path.endswith(".rs") and not is_rust_test(path)


def is_rust_test(path: str) -> bool:
    return path.endswith("/tests.rs") or "/tests/" in path


def is_package(path: str) -> bool:
    return path.startswith("python/txstore/") and path.endswith(".py")


def room_of(path: str, top: str) -> str:
    """`rust/src/half/scan.rs` is in the room `half`."""
    return path.removeprefix(top).split("/")[0].removesuffix(".rs").removesuffix(".py")


def rust_imports(code: str) -> Iterator[str]:
    """The rooms that `crate::room` and `crate::{room, …}` name."""
    for match in re.finditer(r"\bcrate::(\w+|\{)", code):
        if match[1] != "{":
            yield match[1]
            continue
        depth, start = 1, match.end()
        for place in range(start, len(code)):
            depth += {"{": 1, "}": -1}.get(code[place], 0)
            if depth == 0 or (depth == 1 and code[place] == ","):
                name = re.match(r"\s*(\w+)", code[start:place])
                if name:
                    yield name[1]
                start = place + 1
            if depth == 0:
                break


def rust_imports_go_left(path: str, text: str) -> list[str]:
    room = room_of(path, "rust/src/")
    if not is_rust_source(path) or room == "lib":
        return []
    if room not in RUST_ROOMS:
        return [f"{path}: the room `{room}` has no position in the import order; add it to RUST_ROOMS"]
    here, found = RUST_ROOMS.index(room), []
    for other in rust_imports(rust_code(text)):
        if other not in RUST_ROOMS or other == room:
            continue
        place = "storage" if other in RUST_SEEN_FROM_RECORD_ON else other
        if RUST_ROOMS.index(place) > here:
            found.append(f"{path}: `{room}` imports `{other}`, which is to its right")
    return found


def remoting_imports(files: dict[str, str]) -> dict[str, set[str]]:
    """The modules of `rust/src/remoting` that each of them imports. `files`: paths and texts."""
    code: dict[str, str] = {}
    for path, text in files.items():
        module = room_of(path, "rust/src/remoting/")
        code[module] = code.get(module, "") + rust_code(text)
    imports: dict[str, set[str]] = {}
    for module, text in code.items():
        found = re.findall(r"\b(?:super|crate::remoting)::(\w+)", text)
        grouped = re.findall(r"\b(?:super|crate::remoting)::\{([^;]*)\}", text)
        named = {*found, *re.findall(r"\w+", " ".join(grouped))}
        imports[module] = (named & code.keys()) - {module, "mod"}
    return imports


def package_imports(files: dict[str, str]) -> dict[str, set[str]]:
    """The modules of the package that each of them imports, also for types only. `files`: paths and texts."""
    names = {path: path.removeprefix("python/").removesuffix(".py").replace("/", ".") for path in files}
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()} | {"txstore._native": ""}
    imports: dict[str, set[str]] = {}
    for path, name in names.items():
        package = name.split(".")[:-1]
        found: set[str] = set()
        for node in ast.walk(ast.parse(files[path])):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                full = ".".join([*base, *([node.module] if node.module else [])])
                inside = {f"{full}.{alias.name}" for alias in node.names}
                found |= inside & modules.keys() if inside <= modules.keys() else {full, *inside}
        module = name.removesuffix(".__init__")
        imports[module] = (found & modules.keys()) - {module}
    return imports


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Files that import each other in a circle; empty if there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def python_imports(path: str, text: str) -> Iterator[str]:
    """The rooms of txstore that a module imports; `txstore` for the front door."""
    package = ["txstore", *path.removeprefix("python/txstore/").split("/")[:-1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (rooms_in(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "txstore")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            if full.split(".")[0] == "txstore":
                yield from (rooms_in(full, alias.name) for alias in node.names)


def rooms_in(module: str, name: str) -> str:
    parts = [*module.split("."), name]
    return parts[1] if parts[1] in PYTHON_ROOMS else "txstore"


def python_imports_go_left(path: str, text: str) -> list[str]:
    room = room_of(path, "python/txstore/")
    if not is_package(path) or room == "__init__":
        return []
    if room not in PYTHON_ROOMS:
        return [f"{path}: the room `{room}` has no position in the import order; add it to PYTHON_ROOMS"]
    here, found = PYTHON_ROOMS.index(room), []
    for other in python_imports(path, text):
        if other == room or (room, other) in PYTHON_EXCEPTIONS:
            continue
        if PYTHON_ROOMS.index(FRONT_DOOR if other == "txstore" else other) >= here:
            found.append(f"{path}: `{room}` imports `{other}`, which is to its right")
    return found


def begins_with_a_header(path: str, text: str) -> list[str]:
    if path.endswith(".rs") and not text.startswith("//! "):
        return [f"{path}: begin with `//! ` and one line that says what the module does"]
    if path.endswith((".py", ".pyi")) and not re.match(r'(#![^\n]*\n)?r?"""\S', text):
        return [f"{path}: begin with a docstring whose first line says what the module does"]
    return []


def unsafe_only_in_its_rooms(path: str, text: str) -> list[str]:
    if not is_rust_source(path) or path in UNSAFE_ROOMS or not re.search(r"\bunsafe\b", rust_code(text)):
        return []
    return [f"{path}: `unsafe` belongs to {', '.join(UNSAFE_ROOMS)}"]


def files_only_in_storage(path: str, text: str) -> list[str]:
    if not is_rust_source(path) or path.startswith("rust/src/storage/"):
        return []
    calls = re.findall(
        r"\bstd::fs\b|\brustix::fs\b|\bOpenOptions\b|\bFile::(?:open|create)\w*|\bmemmap2\b", rust_code(text)
    )
    return [f"{path}: `{call}`; ask the Storage trait" for call in calls]


def time_only_from_clock(path: str, text: str) -> list[str]:
    if not is_rust_source(path) or path == "rust/src/clock.rs":
        return []
    calls = re.findall(r"\bSystemTime\b|\bInstant\b|\bclock_gettime\b", rust_code(text))
    return [f"{path}: `{call}`; ask a Clock" for call in calls]


def python_names_only_at_the_border(path: str, text: str) -> list[str]:
    if not is_rust_source(path) or path.startswith("rust/src/python/"):
        return []
    return [
        f"{path}: `{name}` belongs to rust/src/python" for name in re.findall(r"\bPy[A-Z]\w*|\bpyo3\b", rust_code(text))
    ]


def python_waits_only_in_call_rs(path: str, text: str) -> list[str]:
    """What may wait or panic is a closure that `call.rs` runs; the rest of the border asks only for facts."""
    if not path.startswith("rust/src/python/") or path == "rust/src/python/call.rs":
        return []
    facts = r"(?:is_closed|is_read_only|is_sync|path|open_report|get)\("
    complaints, before = [], ""
    for line in rust_code(text).splitlines():
        if re.search(rf"\bstore\.(?!store\b)(?!{facts})\w+\(", line) and not re.search(r"\|\w*\|", line + before):
            complaints.append(f"{path}: `{line.strip()}`; hand a closure to call.rs")
        complaints += [f"{path}: `{name}` belongs to call.rs" for name in re.findall(r"\bcatch_unwind\b", line)]
        before = line
    return complaints


def only_the_command_line_prints(path: str, text: str) -> list[str]:
    if is_rust_source(path):
        return [f"{path}: `{name}`" for name in re.findall(r"\b(?:e?print(?:ln)?|dbg)!", rust_code(text))]
    if not is_package(path) or path.startswith("python/txstore/cli/"):
        return []
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    printing = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print")
    return [f"{path}:{call.lineno}: only the command line prints" for call in printing]


def reserved_names_come_from_the_engine(path: str, text: str) -> list[str]:
    """Topics, groups and prefixes that the system reserves are defined in rust/src/names.rs."""
    if not is_package(path):
        return []
    reserved = {getattr(_native, name) for name in dir(_native) if name.endswith(("_TOPIC", "_PREFIX", "_GROUP"))}
    texts = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [
        f"{path}:{node.lineno}: import {node.value!r} from txstore._native" for node in texts if node.value in reserved
    ]


def not_too_long(path: str, text: str) -> list[str]:
    lines = text.count("\n")
    return (
        [f"{path}: {lines} lines; two nouns want two files"]
        if path.endswith((".rs", ".py")) and lines > LINES_MAX
        else []
    )


def a_test_opens_with_a_story(path: str, text: str) -> list[str]:
    if not re.match(r"tests/.*/test_\w+\.py$", path):
        return []
    story = ast.get_docstring(ast.parse(text)) or ""
    return [] if len(story.split()) >= 8 else [f"{path}: open with the story that it guards"]


def names_no_strangers(path: str, text: str) -> list[str]:
    """No path of somebody's machine, in any file."""
    found = re.findall(r"(?<![\w.$}/])/(?:home|root|work|tmp|Users|opt|mnt|srv|private)/[\w.-]+", text)
    return [f"{path}: `{name}` is a path of one machine" for name in found]


def is_plain(path: str) -> bool:
    return path.startswith(tuple(PLAIN)) or path.endswith(".rs")


def words_of_names(line: str) -> str:
    """`is_WrongPlace` as `is Wrong Place`, so that the parts of a name are words."""
    return re.sub(r"([a-z])([A-Z])", r"\1 \2", line).replace("_", " ")


def uses_plain_words(path: str, text: str) -> list[str]:
    """Text, names and errors use the field's standard words."""
    if not is_plain(path):
        return []
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if path.endswith(".md"):
            line = re.sub("`[^`]*`", "", line)  # Names of code, which are checked where they are defined.
        words = words_of_names(line) if path.endswith(".rs") else line
        for word, instead in WORDS.items():
            for used in re.findall(rf"\b(?:{word})\b", words, flags=re.IGNORECASE):
                if used.lower() not in LITERALLY.get(path, ()):
                    found.append(f"{path}:{number}: `{used}`; write {instead}")
        if re.search(r"(?<![Tt]here )\bis (?:no|none)\b(?! longer)", line):
            found.append(f"{path}:{number}: `is no`; say what is expected, and what was given")
    return found


@cache
def promises() -> frozenset[str]:
    """The codes that docs/promises.md defines."""
    return frozenset(re.findall(r"^\| ([LTDP]\d+) \|", (ROOT / "docs/promises.md").read_text(), flags=re.MULTILINE))


def promise_codes_are_defined(path: str, text: str) -> list[str]:
    """Comments, test names and pages use only codes that a reader can look up."""
    if not path.endswith((".rs", ".py", ".md")) or path.startswith(("examples/", "spark/")):
        return []
    tests = re.findall(r"\b(?:fn |def test_)([ltdpLTDP]\d{1,2})_", text)
    words = re.findall(r"\b([LTDP]\d{1,2})\b(?=[,:) ]|$)", text) if path.startswith("rust/") else []
    used = {code.upper() for code in [*tests, *words]}
    return [f"{path}: docs/promises.md does not define {code}" for code in sorted(used - promises())]


# Each rule with the path and text of something that breaks it. Paths of machines are put together here, so that this
# file itself names none.
BROKEN: dict[str, tuple[Rule, str, str]] = {
    "rust import": (rust_imports_go_left, "rust/src/record/decode.rs", "use crate::commit_log::CommitLog;"),
    "rust import, grouped": (
        rust_imports_go_left,
        "rust/src/segment/file.rs",
        "use crate::{error::{Error, Result}, flush::Flusher, units};",
    ),
    "rust import, in the middle": (rust_imports_go_left, "rust/src/units.rs", "fn f() -> crate::error::Result<()> {}"),
    "rust import of half from its left": (rust_imports_go_left, "rust/src/record/mod.rs", "use crate::half::op;"),
    "rust room unknown": (rust_imports_go_left, "rust/src/helpers.rs", "//! Helpers."),
    "python import": (python_imports_go_left, "python/txstore/message.py", "from txstore.broker import Broker"),
    "python import, relative": (python_imports_go_left, "python/txstore/listener.py", "from . import broker"),
    "python import, nested": (python_imports_go_left, "python/txstore/database/sqlite.py", "from ..cli import x"),
    "python import, module": (python_imports_go_left, "python/txstore/config.py", "import txstore.message as m"),
    "python import, front door": (
        python_imports_go_left,
        "python/txstore/producer/producer.py",
        "from txstore import Message",
    ),
    "python room unknown": (python_imports_go_left, "python/txstore/utils.py", '"""Utils."""'),
    "rust header": (begins_with_a_header, "rust/src/java.rs", "use std::fmt;\n"),
    "python header": (begins_with_a_header, "python/txstore/listener.py", "import os\n"),
    "unsafe": (unsafe_only_in_its_rooms, "rust/src/index.rs", "fn f() { unsafe { g() } }"),
    "file call": (files_only_in_storage, "rust/src/checkpoint.rs", "use std::fs;"),
    "file open": (files_only_in_storage, "rust/src/index.rs", "let f = File::open(path)?;"),
    "file options": (files_only_in_storage, "rust/src/index.rs", "let f = OpenOptions::new();"),
    "wall clock": (time_only_from_clock, "rust/src/half/scan.rs", "let now = SystemTime::now();"),
    "monotonic clock": (time_only_from_clock, "rust/src/flush.rs", "let now = std::time::Instant::now();"),
    "python's name": (python_names_only_at_the_border, "rust/src/store/mod.rs", "fn f(py: Python, m: PyMessage) {}"),
    "pyo3": (python_names_only_at_the_border, "rust/src/error.rs", "use pyo3::prelude::*;"),
    "python waits": (
        python_waits_only_in_call_rs,
        "rust/src/python/store.rs",
        "fn f(&self, py: Python<'_>) {\n    self.store.flush().or_raise(py)\n}",
    ),
    "rust print": (only_the_command_line_prints, "rust/src/flush.rs", 'fn f() { println!("x"); }'),
    "python print": (only_the_command_line_prints, "python/txstore/broker/broker.py", 'def f():\n    print("x")\n'),
    "reserved name": (reserved_names_come_from_the_engine, "python/txstore/x.py", 'PREFIX = "%' + 'RETRY%"'),
    "reserved name in a text": (reserved_names_come_from_the_engine, "python/txstore/x.py", 'f"%' + 'DLQ%{group}"'),
    "too long": (not_too_long, "python/txstore/broker/broker.py", "x = 1\n" * (LINES_MAX + 1)),
    "no story": (a_test_opens_with_a_story, "tests/unit/test_x.py", '"""Tests."""\n'),
    "house word": (uses_plain_words, "python/txstore/broker/broker.py", "# What stands behind it.\n"),
    "house word in an error": (uses_plain_words, "python/txstore/config.py", 'raise E(f"{value!r} is no number")\n'),
    "house word in a page": (uses_plain_words, "README.md", "Whoever reads this.\n"),
    "house word in a name": (uses_plain_words, "spark/job.py", "place = 1\n"),
    "house word in Rust": (uses_plain_words, "rust/src/flush.rs", "// Stands behind.\n"),
    "house word in a part of a name": (uses_plain_words, "tests/crash/x.rs", "fn an_end_behind_an_op() {}\n"),
    "house word in a type's name": (uses_plain_words, "fuzz/src/x.rs", "struct WrongPlace;\n"),
    "unknown promise in a comment": (promise_codes_are_defined, "rust/src/flush.rs", "/// T99: nothing."),
    "unknown promise in a test": (
        promise_codes_are_defined,
        "tests/unit/test_x.py",
        "def test_" + "L77_x() -> None: ...",
    ),
    "stranger": (names_no_strangers, "README.md", "see /" + "home/somebody/txstore"),
    "stranger in code": (names_no_strangers, "tests/unit/test_x.py", 'path = "/' + 'tmp/store"'),
}
ALLOWED: list[tuple[Rule, str, str]] = [
    (rust_imports_go_left, "rust/src/commit_log/mod.rs", "use crate::{record, half::op, storage::Storage};"),
    (rust_imports_go_left, "rust/src/record/mod.rs", "// crate::store is not named here\nuse crate::units::QueueId;"),
    (python_imports_go_left, "python/txstore/cli/main.py", "import txstore\nfrom txstore.cli import store"),
    (python_imports_go_left, "python/txstore/message.py", "from txstore._native import Message"),
    (unsafe_only_in_its_rooms, "rust/src/storage/disk.rs", "unsafe { map() }"),
    (unsafe_only_in_its_rooms, "rust/src/index.rs", "// no unsafe here\n#![deny(unsafe_code)]"),
    (files_only_in_storage, "rust/src/index.rs", "use crate::storage::File;\n#[cfg(test)]\nmod tests { use std::fs; }"),
    (python_waits_only_in_call_rs, "rust/src/python/store.rs", "detached(py, || self.store.flush())"),
    (python_waits_only_in_call_rs, "rust/src/python/store.rs", "fn f(&self) -> bool {\n self.store.is_closed()\n}"),
    (only_the_command_line_prints, "python/txstore/cli/main.py", "print(1)"),
    (
        uses_plain_words,
        "python/txstore/broker/broker.py",
        "if found is None:  # There is no topic; it is no longer known.\n",
    ),
    (uses_plain_words, "rust/src/flush.rs", "fn replace_standard(depends: u64) {}\n"),
    (reserved_names_come_from_the_engine, "python/txstore/x.py", '"""Reads %RETRY% topics."""'),
    (names_no_strangers, "README.md", "#!/usr/bin/env bash\nhttps://example.org/home/page rust/src/store/tmp/x"),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in BROKEN.values()))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps(rule: Rule) -> None:
    complaints: list[str] = []
    for path in tracked():
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        complaints += rule(path, text)
    assert complaints == []


@pytest.mark.parametrize("name", BROKEN)
def test_the_rule_sees(name: str) -> None:
    rule, path, text = BROKEN[name]
    assert rule(path, text) != []


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED)
def test_the_rule_lets_pass(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text) == []


def test_no_files_of_remoting_import_each_other_in_a_circle() -> None:
    sources = [path for path in tracked() if path.startswith("rust/src/remoting/") and is_rust_source(path)]
    imports = remoting_imports({path: (ROOT / path).read_text() for path in sources})
    assert {"send", "stream"} <= imports["router"] | imports["service"]
    assert circle_in(imports) == []


def test_a_circle_in_remoting_is_seen() -> None:
    sources = {
        "rust/src/remoting/server.rs": "use super::send;",
        "rust/src/remoting/send.rs": "use super::{fields::Refusal, service};",
        "rust/src/remoting/service.rs": "use super::server::Server;",
        "rust/src/remoting/fields.rs": "",
    }
    assert set(circle_in(remoting_imports(sources))) == {"server", "send", "service"}
    assert circle_in(remoting_imports(sources | {"rust/src/remoting/service.rs": "// super::server\n"})) == []


def test_no_modules_of_the_package_import_each_other_in_a_circle() -> None:
    imports = package_imports({path: (ROOT / path).read_text() for path in tracked() if is_package(path)})
    assert "txstore.interface" in imports["txstore.producer.producer"]
    assert circle_in(imports) == []


@pytest.mark.parametrize(
    "text",
    [
        "import txstore.spark.stream",
        "from txstore.spark import stream",
        "from txstore.spark.stream import Reader",
        "from .stream import Reader",
        "def f():\n    from txstore.spark.stream import Reader",
        "if TYPE_CHECKING:\n    from txstore.spark.stream import Reader",
    ],
)
def test_a_circle_in_the_package_is_seen(text: str) -> None:
    sources = {
        "python/txstore/spark/__init__.py": "",
        "python/txstore/spark/stream.py": "from txstore.spark.source import plan",
        "python/txstore/spark/source.py": text,
    }
    assert set(circle_in(package_imports(sources))) == {"txstore.spark.source", "txstore.spark.stream"}
    sources["python/txstore/spark/stream.py"] = "from txstore import _native"
    assert circle_in(package_imports(sources)) == []


def test_there_is_something_to_hold() -> None:
    """A rule over no files holds nothing."""
    assert sum(map(is_rust_source, tracked())) > 3
    assert any(path.startswith("tests/golden/") for path in tracked())
