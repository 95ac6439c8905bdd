"""Guards layout and language: a module imports only those before it, and all text uses the field's standard words.

Every rule is a function from a file's path and text to complaints. It is run over all files of the project, and over
an invented bad snippet, so that a rule that no longer finds anything fails here.
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

# The folders of rust/src in import order, each with its modules in import order. `mod` is all that is not listed: the
# folder's mod.rs and the files that only it uses.
RUST_FOLDERS = {
    folder: modules.split()
    for folder, modules in {
        "base": "mutant units error system clock panics sync options names java",
        "record": "mod message outbox",
        "filter": "mod",
        "storage": "mod segment config_file checkpoint settings epochs",
        "log": "commit_log published flush",
        "index": "consume_queue key_index offsets deliveries delay timed dispatch",
        "transaction": "mod",
        "recovery": "snapshot log_view mod",
        "store": "retention mod",
        "repair": "mod",
        "backup": "mod",
        "arrow": "mod",
        "remoting": "mod",
        "server": "mod",
        "python": "mod",
    }.items()
}
RUST_ORDER = [(folder, module) for folder, modules in RUST_FOLDERS.items() for module in modules]
PYTHON_MODULES = (
    "transaction_state errors coroutines forks signals serialization config message selector listener interface "
    "_native arrow lazy consumer producer transactions broker remoting client metrics otel console server shared aio "
    "testing database django faststream report spark inspection backup cli"
).split()
# Message, StoredMessage and Sql are the border's own classes, shown to users by the module that bears their name.
PYTHON_EXCEPTIONS = {("message", "_native"), ("selector", "_native")}
# Modules to the right of the client may also import the package itself, `import txstore`.
PUBLIC_API_FROM = "client"
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
    r"(?:go|goes|going|gone|went) on": "continues",
    r"said so": "is reported",
    r"no good": "invalid",
    r"Again: nothing": "Idempotent",
}
ANY_WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
# Given names: a field of the rows that the report has written to Parquet, and a class of matplotlib.
LITERALLY = {
    "python/txstore/spark/report/fold.py": ("place",),
    "benches/peers/plot.py": ("figure",),
    "rust/src/server/copy_log.rs": ("place",),
}
# The tables of this file that contain such words on purpose: the words, and the examples of what each rule finds.
THIS_FILE = "tests/unit/test_tidy.py"
TABLES = ("WORDS", "LITERALLY", "BROKEN", "ALLOWED")
UNSAFE_MODULES = ("rust/src/storage/disk.rs", "rust/src/storage/ahead.rs", "rust/src/storage/disk/lock.rs")
FILE_CALLS = ("rust/src/storage/process.rs", "rust/src/storage/disk.rs", "rust/src/storage/disk/")

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


def module_of(path: str) -> str:
    """The package or module just below `txstore`: `python/txstore/broker/lifetime.py` is in `broker`."""
    return path.removeprefix("python/txstore/").split("/")[0].removesuffix(".py")


def rust_path(path: str) -> list[str]:
    """`rust/src/storage/disk/lock.rs` is `["storage", "disk", "lock"]`, `rust/src/storage/mod.rs` is `["storage"]`."""
    return path.removeprefix("rust/src/").removesuffix(".rs").removesuffix("/mod").split("/")


def leaves(tree: str, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths that `a::{b, c::d}` names."""
    head, brace, rest = tree.strip().partition("{")
    here = (*prefix, *re.findall(r"\w+", head.split(" as ")[0]))
    if not brace:
        if head:
            yield here
        return
    depth, start, inner = 0, 0, rest.rpartition("}")[0]
    for at, letter in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield from leaves(inner[start:at], here)
            start = at + 1
    yield from leaves(inner[start:], here)


def rust_imports(path: str, code: str) -> Iterator[tuple[str, ...]]:
    """The paths below the crate that `crate::…` and `super::…` name, also in groups."""
    for match in re.finditer(r"\b(crate|super(?:::super)*)::", code):
        end, depth = match.end(), 0
        while end < len(code) and (depth > 0 or re.match(r"[\w:{]", code[end])):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        ups = match[1].count("super")
        here = rust_path(path)
        above = here[: len(here) - ups] if ups else []
        yield from (tuple(above) + leaf for leaf in leaves(code[match.end() : end]))


def rust_module(names: tuple[str, ...]) -> tuple[str, str]:
    """The folder and the module of a path."""
    folder, module = names[0], names[1] if len(names) > 1 else "mod"
    return folder, module if module in RUST_FOLDERS.get(folder, ()) else "mod"


def rust_imports_go_back(path: str, text: str) -> list[str]:
    """A folder imports only folders before it in the import order, and a module only modules before it."""
    if not is_rust_source(path) or path == "rust/src/lib.rs":
        return []
    here = rust_module(tuple(rust_path(path)))
    if here not in RUST_ORDER:
        if path == f"rust/src/{here[0]}/mod.rs" and here[0] in RUST_FOLDERS:
            return []  # It only lists the folder's modules.
        return [f"{path}: it has no position in the import order; add it to RUST_FOLDERS"]
    found = []
    for names in rust_imports(path, rust_code(text)):
        other = rust_module(names) if names else here
        if other in RUST_ORDER and RUST_ORDER.index(other) > RUST_ORDER.index(here):
            found.append(f"{path}: imports `{'::'.join(names)}`, which comes later in the import order")
    return found


def module_imports(files: dict[str, str]) -> dict[str, set[str]]:
    """The modules of a folder of `rust/src` that each of them imports, without its mod.rs. `files`: paths and texts."""
    imports: dict[str, set[str]] = {}
    modules = {"::".join(rust_path(path)[:2]) for path in files if len(rust_path(path)) > 1}
    for path, text in files.items():
        if len(rust_path(path)) < 2:
            continue
        module = "::".join(rust_path(path)[:2])
        named = {"::".join(names[:2]) for names in rust_imports(path, rust_code(text))}
        imports[module] = imports.get(module, set()) | (named & modules) - {module}
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
    """The modules of txstore that a module imports; `txstore` for the front door."""
    package = ["txstore", *path.removeprefix("python/txstore/").split("/")[:-1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (module_in(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "txstore")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            if full.split(".")[0] == "txstore":
                yield from (module_in(full, alias.name) for alias in node.names)


def module_in(module: str, name: str) -> str:
    parts = [*module.split("."), name]
    return parts[1] if parts[1] in PYTHON_MODULES else "txstore"


def python_imports_go_left(path: str, text: str) -> list[str]:
    module = module_of(path)
    if not is_package(path) or module == "__init__":
        return []
    if module not in PYTHON_MODULES:
        return [f"{path}: the module `{module}` has no position in the import order; add it to PYTHON_MODULES"]
    here, found = PYTHON_MODULES.index(module), []
    for other in python_imports(path, text):
        if other == module or (module, other) in PYTHON_EXCEPTIONS:
            continue
        if PYTHON_MODULES.index(PUBLIC_API_FROM if other == "txstore" else other) >= here:
            found.append(f"{path}: `{module}` imports `{other}`, which is to its right")
    return found


def begins_with_a_header(path: str, text: str) -> list[str]:
    if path.endswith(".rs") and not text.startswith("//! "):
        return [f"{path}: begin with `//! ` and one line that says what the module does"]
    if path.endswith((".py", ".pyi")) and not re.match(r'(#![^\n]*\n)?r?"""\S', text):
        return [f"{path}: begin with a docstring whose first line says what the module does"]
    return []


def unsafe_only_in_its_modules(path: str, text: str) -> list[str]:
    if not is_rust_source(path) or path in UNSAFE_MODULES or not re.search(r"\bunsafe\b", rust_code(text)):
        return []
    return [f"{path}: `unsafe` belongs to {', '.join(UNSAFE_MODULES)}"]


def files_only_in_storage(path: str, text: str) -> list[str]:
    if not is_rust_source(path) or path.startswith(FILE_CALLS):
        return []
    calls = re.findall(
        r"\bstd::fs\b|\brustix::fs\b|\bOpenOptions\b|\bFile::(?:open|create)\w*|\bmemmap2\b", rust_code(text)
    )
    return [f"{path}: `{call}`; ask the Storage trait" for call in calls]


def time_only_from_clock(path: str, text: str) -> list[str]:
    if not is_rust_source(path) or path == "rust/src/base/clock.rs":
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
    facts = r"(?:is_closed|is_read_only|is_replica|is_sync|path|open_report|appended_end|durable_end|get)\("
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
    """Topics, groups and prefixes that the system reserves are defined in rust/src/base/names.rs."""
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


def a_test_says_what_it_guards(path: str, text: str) -> list[str]:
    if not re.match(r"tests/.*/test_\w+\.py$", path):
        return []
    header = ast.get_docstring(ast.parse(text)) or ""
    return (
        []
        if len(header.split()) >= 8 and not header.startswith("The story")
        else [f"{path}: begin with a docstring that says which behaviour it guards"]
    )


def names_no_strangers(path: str, text: str) -> list[str]:
    """No path of somebody's machine, in any file."""
    found = re.findall(r"(?<![\w.$}/])/(?:home|root|work|tmp|Users|opt|mnt|srv|private)/[\w.-]+", text)
    return [f"{path}: `{name}` is a path of one machine" for name in found]


def words_of_names(line: str) -> str:
    """`is_WrongName` as `is Wrong Name`, so that the parts of a name are words."""
    return re.sub(r"([a-z])([A-Z])", r"\1 \2", line).replace("_", " ")


def lines_of_tables(text: str) -> frozenset[int]:
    """The lines of this file that assign TABLES."""
    lines: set[int] = set()
    for node in ast.parse(text).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id in TABLES:
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)


def uses_plain_words(path: str, text: str) -> list[str]:
    """Text, names and errors use the field's standard words."""
    if not path.endswith((".rs", ".py", ".pyi", ".md")):
        return []
    found, skipped = [], lines_of_tables(text) if path == THIS_FILE else frozenset[int]()
    for number, line in enumerate(text.splitlines(), 1):
        if number in skipped:
            continue
        if path.endswith(".md"):
            line = re.sub("`[^`]*`", "", line)  # Names of code, which are checked where they are defined.
        words = line if path.endswith(".md") else words_of_names(line)
        for word, instead in WORDS.items() if ANY_WORD.search(words) else ():
            for used in re.findall(rf"\b(?:{word})\b", words, flags=re.IGNORECASE):
                if used.lower() not in LITERALLY.get(path, ()):
                    found.append(f"{path}:{number}: `{used}`; write {instead}")
        negations = line if path.endswith(".rs") else words  # In Rust it is part of a method's name.
        for used in re.findall(r"(?<![Tt]here )\bis (?:no|none)\b(?! longer)", negations):
            found.append(f"{path}:{number}: `{used}`; say what is expected, and what was given")
    return found


@cache
def promises() -> frozenset[str]:
    """The codes that docs/reference/promises.md defines."""
    return frozenset(
        re.findall(r"^\| ([LTDRP]\d+) \|", (ROOT / "docs/reference/promises.md").read_text(), flags=re.MULTILINE)
    )


def promise_codes_are_defined(path: str, text: str) -> list[str]:
    """Comments, test names and pages use only codes that a reader can look up."""
    if not path.endswith((".rs", ".py", ".md")) or path.startswith(("examples/", "spark/")):
        return []
    tests = re.findall(r"\b(?:fn |def test_)([ltdpLTDP]\d{1,2})_", text)
    words = re.findall(r"\b([LTDP]\d{1,2})\b(?=[,:) ]|$)", text) if path.startswith("rust/") else []
    used = {code.upper() for code in [*tests, *words]}
    return [f"{path}: docs/reference/promises.md does not define {code}" for code in sorted(used - promises())]


def holds_no_merge_conflict(path: str, text: str) -> list[str]:
    """No file has the marks that git leaves where two changes of a line meet."""
    marks = re.finditer(r"^(?:<{7}|>{7}|[|]{7}) ", text, flags=re.MULTILINE)
    return [f"{path}:{text.count(chr(10), 0, mark.start()) + 1}: resolve this conflict of a merge" for mark in marks]


# Each rule with the path and text of something that breaks it. Paths of machines are put together here, so that this
# file itself names none.
BROKEN: dict[str, tuple[Rule, str, str]] = {
    "rust import": (rust_imports_go_back, "rust/src/record/decode.rs", "use crate::log::commit_log::CommitLog;"),
    "rust import, grouped": (
        rust_imports_go_back,
        "rust/src/storage/segment/file.rs",
        "use crate::{base::{error::{Error, Result}, units}, log::flush::Flusher};",
    ),
    "rust import, in the middle": (
        rust_imports_go_back,
        "rust/src/base/units.rs",
        "fn f() -> crate::base::error::Result<()> {}",
    ),
    "rust import within a folder": (
        rust_imports_go_back,
        "rust/src/index/key_index.rs",
        "use super::dispatch::Dispatch;",
    ),
    "rust import in a folder, grouped": (
        rust_imports_go_back,
        "rust/src/recovery/snapshot/file.rs",
        "use super::super::{log_view::KnownEnd, Known};",
    ),
    "rust import of a folder's own": (
        rust_imports_go_back,
        "rust/src/recovery/log_view/log.rs",
        "use crate::recovery::Run;",
    ),
    "rust folder unknown": (rust_imports_go_back, "rust/src/helpers/mod.rs", "//! Helpers."),
    "rust module unknown": (rust_imports_go_back, "rust/src/base/helpers.rs", "//! Helpers."),
    "rust module in no folder": (rust_imports_go_back, "rust/src/helpers.rs", "//! Helpers."),
    "python import": (python_imports_go_left, "python/txstore/message.py", "from txstore.broker import Broker"),
    "python import, relative": (python_imports_go_left, "python/txstore/listener.py", "from . import broker"),
    "python import, nested": (python_imports_go_left, "python/txstore/database/sqlite.py", "from ..cli import x"),
    "python import, module": (python_imports_go_left, "python/txstore/config.py", "import txstore.message as m"),
    "python import, front door": (
        python_imports_go_left,
        "python/txstore/producer/producer.py",
        "from txstore import Message",
    ),
    "python module unknown": (python_imports_go_left, "python/txstore/utils.py", '"""Utils."""'),
    "rust header": (begins_with_a_header, "rust/src/base/java.rs", "use std::fmt;\n"),
    "python header": (begins_with_a_header, "python/txstore/listener.py", "import os\n"),
    "unsafe": (unsafe_only_in_its_modules, "rust/src/index/key_index.rs", "fn f() { unsafe { g() } }"),
    "file call": (files_only_in_storage, "rust/src/storage/checkpoint.rs", "use std::fs;"),
    "file open": (files_only_in_storage, "rust/src/index/key_index.rs", "let f = File::open(path)?;"),
    "file options": (files_only_in_storage, "rust/src/index/key_index.rs", "let f = OpenOptions::new();"),
    "wall clock": (time_only_from_clock, "rust/src/transaction/scan.rs", "let now = SystemTime::now();"),
    "monotonic clock": (time_only_from_clock, "rust/src/log/flush.rs", "let now = std::time::Instant::now();"),
    "python's name": (python_names_only_at_the_border, "rust/src/store/mod.rs", "fn f(py: Python, m: PyMessage) {}"),
    "pyo3": (python_names_only_at_the_border, "rust/src/base/error.rs", "use pyo3::prelude::*;"),
    "python waits": (
        python_waits_only_in_call_rs,
        "rust/src/python/store.rs",
        "fn f(&self, py: Python<'_>) {\n    self.store.flush().or_raise(py)\n}",
    ),
    "rust print": (only_the_command_line_prints, "rust/src/log/flush.rs", 'fn f() { println!("x"); }'),
    "python print": (only_the_command_line_prints, "python/txstore/broker/broker.py", 'def f():\n    print("x")\n'),
    "reserved name": (reserved_names_come_from_the_engine, "python/txstore/x.py", 'PREFIX = "%' + 'RETRY%"'),
    "reserved name in a text": (reserved_names_come_from_the_engine, "python/txstore/x.py", 'f"%' + 'DLQ%{group}"'),
    "too long": (not_too_long, "python/txstore/broker/broker.py", "x = 1\n" * (LINES_MAX + 1)),
    "no header of a test": (a_test_says_what_it_guards, "tests/unit/test_x.py", '"""Tests."""\n'),
    "house word": (uses_plain_words, "python/txstore/broker/broker.py", "# What stands behind it.\n"),
    "house word in an error": (uses_plain_words, "python/txstore/config.py", 'raise E(f"{value!r} is no number")\n'),
    "house word in a page": (uses_plain_words, "README.md", "Whoever reads this.\n"),
    "house word in a name": (uses_plain_words, "spark/job.py", "place = 1\n"),
    "house word in Rust": (uses_plain_words, "rust/src/log/flush.rs", "// Stands behind.\n"),
    "house word in a part of a name": (uses_plain_words, "tests/crash/x.rs", "fn an_end_behind_an_op() {}\n"),
    "house word in a type's name": (uses_plain_words, "fuzz/src/x.rs", "struct WrongPlace;\n"),
    "house word in a test": (uses_plain_words, "tests/crash/test_x.py", '"""Guards whoever reads this."""\n'),
    "story of a test": (a_test_says_what_it_guards, "tests/unit/test_x.py", '"""The story: a b c d e f g h."""\n'),
    "house word in a test's name": (
        uses_plain_words,
        "tests/peer/test_x.py",
        "def test_what_is_in_hand() -> None: ...\n",
    ),
    "negation in a test's name": (
        uses_plain_words,
        "tests/unit/test_x.py",
        "def test_a_half_that_is_none() -> None: ...\n",
    ),
    "house word in a benchmark": (uses_plain_words, "benches/x.py", "# Beside a reader.\n"),
    "house word in this file": (uses_plain_words, THIS_FILE, "# Anew.\n"),
    "unknown promise in a comment": (promise_codes_are_defined, "rust/src/log/flush.rs", "/// T99: nothing."),
    "unknown promise in a test": (
        promise_codes_are_defined,
        "tests/unit/test_x.py",
        "def test_" + "L77_x() -> None: ...",
    ),
    "merge conflict": (holds_no_merge_conflict, "README.md", "a\n" + "<" * 7 + " HEAD\nb\n=======\nc\n"),
    "merge conflict, its end": (holds_no_merge_conflict, "README.md", "b\n=======\nc\n" + ">" * 7 + " 1234567\n"),
    "stranger": (names_no_strangers, "README.md", "see /" + "home/somebody/txstore"),
    "stranger in code": (names_no_strangers, "tests/unit/test_x.py", 'path = "/' + 'tmp/store"'),
}
ALLOWED: list[tuple[Rule, str, str]] = [
    (rust_imports_go_back, "rust/src/log/commit_log/mod.rs", "use crate::{record, storage::{Storage, segment}};"),
    (rust_imports_go_back, "rust/src/record/mod.rs", "// crate::store is not named\nuse crate::base::units::QueueId;"),
    (rust_imports_go_back, "rust/src/index/dispatch.rs", "use super::{delay::DelayProgress, key_index};"),
    (rust_imports_go_back, "rust/src/index/mod.rs", "pub mod dispatch;"),
    (python_imports_go_left, "python/txstore/cli/main.py", "import txstore\nfrom txstore.cli import store"),
    (python_imports_go_left, "python/txstore/message.py", "from txstore._native import Message"),
    (unsafe_only_in_its_modules, "rust/src/storage/disk.rs", "unsafe { map() }"),
    (unsafe_only_in_its_modules, "rust/src/index/key_index.rs", "// no unsafe here\n#![deny(unsafe_code)]"),
    (
        files_only_in_storage,
        "rust/src/index/key_index.rs",
        "use crate::x;\n#[cfg(test)]\nmod tests { use std::fs; }",
    ),
    (python_waits_only_in_call_rs, "rust/src/python/store.rs", "detached(py, || self.store.flush())"),
    (python_waits_only_in_call_rs, "rust/src/python/store.rs", "fn f(&self) -> bool {\n self.store.is_closed()\n}"),
    (only_the_command_line_prints, "python/txstore/cli/main.py", "print(1)"),
    (
        uses_plain_words,
        "python/txstore/broker/broker.py",
        "if found is None:  # There is no topic; it is no longer known.\n",
    ),
    (uses_plain_words, THIS_FILE, 'WORDS = {\n    r"behind": "after",\n}\n'),
    (uses_plain_words, "rust/src/log/flush.rs", "fn replace_standard(depends: u64) {}\n"),
    (reserved_names_come_from_the_engine, "python/txstore/x.py", '"""Reads %RETRY% topics."""'),
    (holds_no_merge_conflict, "README.md", "Heading\n=======\n" + ">" * 7 + "\n"),
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


@pytest.mark.parametrize("folder", RUST_FOLDERS)
def test_no_modules_of_a_folder_import_each_other_in_a_circle(folder: str) -> None:
    sources = [path for path in tracked() if path.startswith(f"rust/src/{folder}/") and is_rust_source(path)]
    assert sources != []
    imports = module_imports({path: (ROOT / path).read_text() for path in sources})
    assert circle_in(imports) == []


def test_imports_of_a_folders_modules_are_found() -> None:
    sources = [path for path in tracked() if path.startswith("rust/src/server/") and is_rust_source(path)]
    imports = module_imports({path: (ROOT / path).read_text() for path in sources})
    assert "server::send" in imports["server::router"]
    assert "server::durable" in imports["server::service"]


def test_a_circle_in_a_folder_is_seen() -> None:
    sources = {
        "rust/src/server/listener.rs": "use super::send;",
        "rust/src/server/send.rs": "use super::{fields::Refusal, service};",
        "rust/src/server/service.rs": "use crate::{record, server::listener::Server};",
        "rust/src/server/fields.rs": "",
    }
    circle = {"server::listener", "server::send", "server::service"}
    assert set(circle_in(module_imports(sources))) == circle
    assert circle_in(module_imports(sources | {"rust/src/server/service.rs": "// super::listener\n"})) == []
    deeper = sources | {
        "rust/src/server/service.rs": "",
        "rust/src/server/service/tables.rs": "use super::super::listener::Server;",
    }
    assert set(circle_in(module_imports(deeper))) == circle


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
