"""Changes the engine, one change at a time, and runs the tests that reach the changed function.

Run as `python -m tests.rust_mutants rust/src/transaction/table.rs …`, without files for all that decide. Needs
cargo-mutants, which names the changes, and tree-sitter-rust.
In:  the files of `DECIDE`.
Out: each change that no test notices and that tests/rust_mutants.toml does not explain; exit code 1 if there is one, or
     if an explanation is about no change.
Always: no file of the checkout is changed. One build in target/changed has all changes: each function has a body for
     each of its changes, and an environment variable chooses one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

ROOT = Path(__file__).resolve().parents[1]
EXPLAINED = Path(__file__).with_suffix(".toml")
COPY = ROOT / "target" / "changed"
SOURCES = "rust/src"
DECIDE = ("rust/src/transaction/*.rs", "rust/src/recovery/*.rs", "rust/src/recovery/log_view/*.rs")
CRASHES = "3000"
SIMULATION = "campaign::simulation_keeps_every_promise"
TIME_LIMIT_FACTOR, TIME_LIMIT_MORE_S = 10.0, 20.0
FIRST_TESTS = 8
SWITCH = """
/// Returns the change that runs, and notes that `function` was reached.
#[allow(clippy::all, missing_docs)]
pub(crate) fn changed(function: usize) -> u32 {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};
    static REACHED: [AtomicBool; 10_000] = [const { AtomicBool::new(false) }; 10_000];
    static ACTIVE: std::sync::OnceLock<(u32, Option<String>)> = std::sync::OnceLock::new();
    let (active, reached) = ACTIVE.get_or_init(|| {
        let active = std::env::var("TXSTORE_CHANGE").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        (active, std::env::var("TXSTORE_REACHED").ok())
    });
    if let Some(reached) = reached
        && !REACHED[function].swap(true, Ordering::Relaxed)
    {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(reached).unwrap();
        writeln!(file, "{function}").unwrap();
    }
    *active
}
"""


@dataclass
class Change:
    """One change: its number, its name in the list of explanations, its bytes in the file, and what replaces them."""

    number: int
    name: str
    file: str
    start: int
    end: int
    replacement: str
    function: int = 0


@dataclass
class Function:
    """A function with changes: the bytes of its body between the braces."""

    number: int
    start: int
    end: int
    changes: list[Change] = field(default_factory=list)


def listed(files: Sequence[str]) -> list[Change]:
    """All changes that cargo-mutants names in these files."""
    command = ["cargo", "mutants", "--list", "--json"]
    for file in files:
        command += ["--file", file]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    result = []
    for number, one in enumerate(found, start=1):
        lines = (ROOT / one["file"]).read_text().splitlines(keepends=True)
        start, end = (offset(lines, one["span"][edge]) for edge in ("start", "end"))
        what = one["name"].split(": ", 1)[1]
        line = lines[one["span"]["start"]["line"] - 1].strip()
        result.append(Change(number, f"{what}: {line}", one["file"], start, end, one["replacement"]))
    return result


def offset(lines: list[str], at: dict[str, int]) -> int:
    """The byte of a line and a column, both counted from 1."""
    before = "".join(lines[: at["line"] - 1]) + lines[at["line"] - 1][: at["column"] - 1]
    return len(before.encode())


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def functions_of(text: bytes, changes: list[Change], first: int) -> tuple[list[Function], list[Change]]:
    """The functions that the changes are in, and the changes that are in none that may run a switch."""
    parser = Parser(Language(tree_sitter_rust.language()))
    found: dict[tuple[int, int], Function] = {}
    outside = []
    bodies = []
    for node in nodes(parser.parse(text).root_node):
        body = node.child_by_field_name("body")
        if node.type == "function_item" and body is not None:
            head = text[node.start_byte : body.start_byte].split(b"fn ")[0]
            bodies.append((body.start_byte + 1, body.end_byte - 1, b"const" in head.split()))
    for change in changes:
        around = [one for one in bodies if one[0] <= change.start and change.end <= one[1]]
        if not around or (innermost := min(around, key=lambda one: one[1] - one[0]))[2]:
            outside.append(change)
            continue
        start, end, _ = innermost
        function = found.setdefault((start, end), Function(first + len(found), start, end))
        function.changes.append(change)
        change.function = function.number
    return list(found.values()), outside


def rewritten(text: bytes, functions: list[Function], left_out: set[int], start: int, end: int) -> bytes:
    """These bytes of a file with all changes of the functions in them."""
    result, at = b"", start
    for function in sorted(functions, key=lambda one: one.start):
        if at <= function.start and function.end <= end:
            inner = [one for one in functions if function.start < one.start and one.end < function.end]
            original = rewritten(text, inner, left_out, function.start, function.end)
            result += text[at : function.start] + switch(text, function, left_out, original)
            at = function.end
    return result + text[at:end]


def lines_of(text: str, what: str = "change") -> list[tuple[int, int, int]]:
    """The lines of each change in a rewritten file: first, last, number.

    With "original", those of the right body of each function that also has changes of its whole body.
    """
    found = []
    began: dict[str, int] = {}
    for line_number, line in enumerate(text.splitlines(), start=1):
        mark = re.fullmatch(rf"/\*(end_)?{what} (\d+) \*/", line)
        if mark and mark[1]:
            found.append((began[mark[2]], line_number, int(mark[2])))
        elif mark:
            began[mark[2]] = line_number
    return found


def switch(text: bytes, function: Function, left_out: set[int], original: bytes) -> bytes:
    kept = [change for change in function.changes if change.number not in left_out]
    if not kept:
        return original
    arms = []
    for change in kept:
        body = text[function.start : change.start] + change.replacement.encode() + text[change.end : function.end]
        number = str(change.number).encode()
        arms.append(b"\n%s => {\n/*change %s */\n%s\n/*end_change %s */\n}" % (number, number, body, number))
        if is_of_whole_body(text, function, change):
            original = b"\n/*original %s */\n%s\n/*end_original %s */\n" % (number, original, number)
    return b" match crate::base::mutant::changed(%d) {%s\n_ => {%s}} " % (function.number, b"".join(arms), original)


def is_of_whole_body(text: bytes, function: Function, change: Change) -> bool:
    return not text[function.start : change.start].strip() and not text[change.end : function.end].strip()


def build(changes: list[Change]) -> tuple[str, str, set[int]]:
    """The unit tests and the simulation with all changes that compile, and the numbers of those that do not."""
    by_file: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        by_file[change.file].append(change)
    functions: dict[str, list[Function]] = {}
    left_out: set[int] = set()
    for file, some in by_file.items():
        first = 1 + sum(len(one) for one in functions.values())
        functions[file], outside = functions_of((ROOT / file).read_bytes(), some, first)
        left_out |= {change.number for change in outside}
    for name in ("Cargo.toml", "Cargo.lock", "rust", "tests/crash", "benches", "README.md"):
        into = COPY / name
        if (ROOT / name).is_dir():
            shutil.rmtree(into, ignore_errors=True)
            shutil.copytree(ROOT / name, into)
        else:
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into)
    with (COPY / SOURCES / "base/mutant.rs").open("a") as file_of_switch:
        file_of_switch.write(SWITCH)
    while True:
        rewritten_files = {}
        for file, some_functions in functions.items():
            text = (ROOT / file).read_bytes()
            rewritten_files[file] = rewritten(text, some_functions, left_out, 0, len(text)).decode()
            (COPY / file).write_text(rewritten_files[file])
        kept = len(changes) - len(left_out)
        print(f"builds {kept} changes of {len(changes)}", flush=True)
        built, wrong = compiled(rewritten_files)
        if not wrong:
            return built["txstore"], built["crash"], left_out
        left_out |= wrong


def compiled(files: dict[str, str]) -> tuple[dict[str, str], set[int]]:
    """The executables, or the changes that do not compile."""
    command = [
        "cargo",
        "test",
        "--locked",
        "--release",
        "--features",
        "testing,arrow",
        "--lib",
        "--test",
        "crash",
        "--no-run",
    ]
    profile = {"LTO": "off", "CODEGEN_UNITS": "16", "OPT_LEVEL": "1", "INCREMENTAL": "true", "DEBUG": "0"}
    environment = {f"CARGO_PROFILE_RELEASE_{name}": value for name, value in profile.items()}
    environment |= {"RUSTFLAGS": "--cap-lints allow", "CARGO_TARGET_DIR": str(COPY / "target")}
    done = subprocess.run(
        [*command, "--message-format", "json"],
        cwd=COPY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0:
        return {one["target"]["name"]: one["executable"] for one in messages if one.get("executable")}, set()
    errors = [one["message"] for one in messages if one.get("message", {}).get("level") == "error"]
    spans = [(span["file_name"], span["line_start"]) for error in errors for span in error["spans"]]
    # A function that returns `impl Trait` has the type of its first body. Then the error is in the right one.
    wrong = at_lines(files, spans, "change") or at_lines(files, spans, "original")
    if not wrong:
        sys.exit(f"the changed engine does not compile:\n{done.stderr[-4000:]}")
    return {}, wrong


def at_lines(files: dict[str, str], spans: list[tuple[str, int]], what: str) -> set[int]:
    """The changes at these lines of the rewritten files."""
    lines = {file: lines_of(text, what) for file, text in files.items()}
    return {number for file, line in spans for first, last, number in lines.get(file, ()) if first <= line <= last}


@dataclass(frozen=True)
class Test:
    """A unit test: its name, its seconds, the functions that it reaches."""

    name: str
    seconds: float
    functions: frozenset[int]


def run(command: list[str], environment: dict[str, str], limit: float) -> bool:
    """Whether the tests pass in time."""
    try:
        done = subprocess.run(
            command,
            cwd=COPY,
            env=os.environ | {"RUST_BACKTRACE": "0", "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"} | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def measured(executable: str, name: str) -> Test:
    reached = COPY / "reached" / name.replace("::", ".")
    reached.parent.mkdir(exist_ok=True)
    reached.unlink(missing_ok=True)
    began = time.monotonic()
    passed = run([executable, "--exact", name], {"TXSTORE_REACHED": str(reached)}, 600)
    if not passed:
        sys.exit(f"{name} fails in the right engine")
    lines = reached.read_text().split() if reached.exists() else []
    return Test(name, time.monotonic() - began, frozenset(map(int, lines)))


def is_noticed(change: Change, tests: list[Test], unit: str, crash: str) -> bool:
    guards = sorted((test for test in tests if change.function in test.functions), key=lambda test: test.seconds)
    environment = {"TXSTORE_CHANGE": str(change.number)}
    for some in (guards[:FIRST_TESTS], guards[FIRST_TESTS:]):
        limit = TIME_LIMIT_MORE_S + TIME_LIMIT_FACTOR * sum(test.seconds for test in some)
        names = [test.name for test in some]
        if some and not run([unit, "--test-threads", "1", "--exact", *names], environment, limit):
            return True
    simulation = {**environment, "TXSTORE_CRASHES": CRASHES, "TXSTORE_THREADS": "1"}
    return not run([crash, "--exact", SIMULATION], simulation, 300)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=DECIDE, help="files below rust/src, or patterns")
    parser.add_argument("--jobs", type=int, default=2, help="changes at a time (default: 2)")
    arguments = parser.parse_args()
    changes = listed(arguments.files)
    unit, crash, left_out = build(changes)
    listing = subprocess.run([unit, "--list", "--format", "terse"], check=True, capture_output=True, text=True).stdout
    names = [line.removesuffix(": test") for line in listing.splitlines() if line.endswith(": test")]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        tests = list(pool.map(lambda name: measured(unit, name), names))
        kept = [change for change in changes if change.number not in left_out]
        unnoticed = []
        noticed = pool.map(lambda change: is_noticed(change, tests, unit, crash), kept)
        for count, (change, is_seen) in enumerate(zip(kept, noticed, strict=True), start=1):
            if not is_seen:
                unnoticed.append(change)
            if not is_seen or count % 50 == 0:
                print(f"{count} of {len(kept)}{'' if is_seen else f', lives: {change.name}'}", flush=True)
    return report(unnoticed, changes, kept)


def report(unnoticed: list[Change], changes: list[Change], kept: list[Change]) -> int:
    explained = tomllib.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {}
    files = {change.file for change in changes}
    unexplained = [one for one in unnoticed if one.name not in explained.get(short(one.file), {})]
    for one in unexplained:
        print(f"{short(one.file)}: {one.name}")
    known = {(short(one.file), one.name) for one in unnoticed}
    stale = [
        f"{file}: {name}"
        for file, some in explained.items()
        for name in some
        if f"{SOURCES}/{file}" in files and (file, name) not in known
    ]
    for name in stale:
        print(f"explained, but noticed or no change: {name}")
    print(
        f"{len(changes)} changes, {len(changes) - len(kept)} do not compile or are in constants, "
        f"{len(kept) - len(unnoticed)} noticed, {len(unnoticed) - len(unexplained)} explained, {len(unexplained)} not"
    )
    return 1 if unexplained or stale else 0


def short(file: str) -> str:
    return file.removeprefix(f"{SOURCES}/")


if __name__ == "__main__":
    sys.exit(main())
