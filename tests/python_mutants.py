"""Changes a module of the Python package, one change at a time, and runs the tests that guard it.

Run as `python -m tests.python_mutants [MODULE …]`, for example with `producer.producer`. In:  the modules of `GUARDS`.
Out: each change that no test notices and that tests/python_mutants.toml does not explain; exit code 1 if there is one,
     or if an explanation is about no change.
Always: no file is changed. A forked child compiles the changed module instead of the file, and runs the tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import os
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[1]
EXPLAINED = Path(__file__).with_suffix(".toml")
# Databases in files: a server would have to start for each change.
IN_FILES = ("-k", "not postgres and not psycopg and not asyncpg and not maria and not mysql")
OUTBOX = ("database/test_outbox.py", "database/test_outbox_borders.py", "database/test_outbox_remote.py")
# What a change of the module breaks, the fastest first, and pytest's options.
GUARDS: dict[str, tuple[str, ...]] = {
    "transactions.check": ("unit/test_checks.py",),
    "transactions.decision": ("unit/test_check_decide.py",),
    "producer.local_transaction": (
        "unit/test_transaction_block.py",
        "unit/test_producer.py",
        "unit/test_several_messages.py",
        "unit/test_local_transaction.py",
    ),
    "producer.producer": (
        "unit/test_transaction_producer.py",
        "unit/test_producer.py",
        "unit/test_several_messages.py",
        "unit/test_transaction_block.py",
    ),
    "database.outbox.appended": ("unit/test_outbox_parts.py",),
    "database.outbox.appending": (*OUTBOX, *IN_FILES),
    "database.outbox.committed": (*OUTBOX, *IN_FILES),
    "database.outbox.direct": (*OUTBOX, *IN_FILES),
    "database.outbox.durability": ("database/test_outbox_durability.py",),
    "database.outbox.early": (*OUTBOX, *IN_FILES),
    "database.outbox.expected": ("unit/test_outbox_parts.py",),
    "database.outbox.forwarder": (*OUTBOX, *IN_FILES),
    "database.outbox.ids": ("database/test_outbox.py", "database/test_outbox_remote.py", *IN_FILES),
    "database.outbox.packet": ("database/test_mariadb.py",),
    "database.outbox.pending": ("database/test_pending.py", *IN_FILES),
    "database.outbox.producer": (
        *OUTBOX,
        "database/test_outbox_aio.py",
        "database/test_outbox_aio_remote.py",
        *IN_FILES,
    ),
    "database.outbox.sent": ("database/test_keep_sent.py", *IN_FILES),
    "database.outbox.unattended": ("database/test_outbox_remote.py", "-k", "taken_over_only or makes_progress"),
    "database.outbox.waiting": ("database/test_outbox_waiting.py", *IN_FILES),
}
# Imported before the fork, because each child would need a second for it.
HEAVY = ("pytest", "hypothesis", "sqlalchemy.ext.asyncio", "psycopg", "pygments.lexers.python")
TIME_LIMIT_FACTOR, TIME_LIMIT_MORE_S = 4.0, 10.0
ALL_LINES = (0, sys.maxsize)
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
NONE = ast.Constant(None)


def has_no_value(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def changed_operators(new: ast.AST) -> Iterator[ast.AST]:
    """Yields a comparison, `and`, `or`, `not` or sum with another operator."""
    match new:
        case ast.Compare():
            for at, operator in enumerate(new.ops):
                new.ops[at] = COMPARISONS[type(operator)]()
                yield new
        case ast.BoolOp():
            new.op = ast.And() if isinstance(new.op, ast.Or) else ast.Or()
            yield new
        case ast.UnaryOp(op=ast.Not()):
            yield new.operand
        case ast.BinOp() if type(new.op) in OPERATORS:
            new.op = OPERATORS[type(new.op)]()
            yield new


def changed_constants(new: ast.AST) -> Iterator[ast.AST]:
    match new:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str(value)):
            yield ast.Constant(f"XX{value}XX")


def changed_calls(new: ast.AST) -> Iterator[ast.AST]:
    """Yields a call with None for an argument, and without an option."""
    if not isinstance(new, ast.Call):
        return
    for at, argument in enumerate(new.args):
        if not has_no_value(argument) and not isinstance(argument, ast.Starred):
            without = copy.deepcopy(new)
            without.args[at] = NONE
            yield without
    for at in range(len(new.keywords)):
        without = copy.deepcopy(new)
        del without.keywords[at]
        yield without


def changed_statements(new: ast.AST) -> Iterator[ast.AST]:
    """Yields a statement with None for its value, the opposite condition, another jump, or `pass`."""
    match new:
        case ast.Assign() | ast.AnnAssign() | ast.Return() if not has_no_value(new.value):
            new.value = NONE
            yield new
        case ast.AugAssign():
            yield ast.Assign([new.target], new.value)
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
            yield new
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call()):
            new.test = ast.UnaryOp(ast.Not(), new.test)
            yield new
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Return(value=None):
            yield ast.Pass()


def changed_copies(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what may be written instead of a node."""
    for kind in (changed_operators, changed_constants, changed_calls, changed_statements):
        yield from kind(copy.deepcopy(node))


@dataclass(frozen=True)
class Change:
    """One change: where, and the whole module with it."""

    name: str
    line: int
    tree: ast.Module


def is_documentation(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_for_types(node: ast.AST) -> bool:
    """Whether only a type checker reads the node: overloads, protocols, imports, names of types, `__all__`."""
    match node:
        case ast.FunctionDef(decorator_list=[ast.Name(id="overload")]) | ast.ClassDef(bases=[ast.Name(id="Protocol")]):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")) | ast.Import() | ast.ImportFrom():
            return True
    return False


Way = tuple[tuple[str, int | None], ...]
"""The way to a node: fields, and positions in those that are lists."""


def sites(node: ast.AST, way: Way = ()) -> Iterator[tuple[Way, ast.AST]]:
    """Yields each node below one whose change may matter, with the way to it."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases", "format_spec", "ctx"):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST) and not is_documentation(child) and not is_for_types(child):
                here = (*way, (field, at))
                yield here, child
                yield from sites(child, here)


def step(node: ast.AST, field: str, at: int | None) -> ast.AST:
    child = getattr(node, field)
    found = child if at is None else child[at]
    assert isinstance(found, ast.AST)
    return found


def changes(source: str) -> Iterator[Change]:
    """Yields all changes of a module."""
    original = ast.parse(source)
    for way, node in sites(original):
        for new in changed_copies(node):
            yield changed(copy.deepcopy(original), way, node, new)


def changed(tree: ast.Module, way: Way, node: ast.AST, new: ast.AST) -> Change:
    """Writes another node into a tree. The change is named by its function and by the statement that it results in."""
    parents: list[ast.AST] = [tree]
    for field, at in way[:-1]:
        parents.append(step(parents[-1], field, at))
    field, at = way[-1]
    if at is None:
        setattr(parents[-1], field, new)
    else:
        getattr(parents[-1], field)[at] = new
    ast.fix_missing_locations(tree)
    scope = [one.name for one in parents if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    statement = next(one for one in reversed([*parents, new]) if isinstance(one, ast.stmt | ast.Module))
    is_left_out = isinstance(new, ast.Pass)
    written = f"without {ast.unparse(node)}" if is_left_out else ast.unparse(statement).partition("\n")[0]
    return Change(f"{'.'.join(scope)}: {written}", getattr(node, "lineno", 0), tree)


class Instead(importlib.machinery.SourceFileLoader):
    """Loads a changed tree instead of the file."""

    tree: ast.Module

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


class Finder:
    """Finds one module, with another content."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self._name = name
        self._tree = tree

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = loader = Instead(name, spec.origin)
        loader.tree = self._tree
        return spec


def begin(module: str, tree: ast.Module | None, output: Path | None = None) -> int:
    """Runs the module's tests in a child, with another content of the module if there is one. Returns its id."""
    child = os.fork()
    if child != 0:
        return child
    code = 70
    try:
        os.setsid()
        os.chdir(ROOT)
        to = os.open(output or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(to, 1)
        os.dup2(to, 2)
        if tree is not None:
            sys.meta_path.insert(0, Finder(f"txstore.{module}", tree))
        import pytest

        tests = [f"tests/{name}" if name.endswith(".py") else name for name in GUARDS[module]]
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_all(module: str, tried: Sequence[Change], workers: int, time_limit_s: float) -> list[str]:
    """Runs the module's tests with each change, some at the same time. Returns what became of each."""
    ends, waiting = [""] * len(tried), list(enumerate(tried))[::-1]
    running: dict[int, tuple[int, float]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            at, change = waiting.pop()
            running[begin(module, change.tree)] = (at, time.monotonic() + time_limit_s)
        for child, (at, until) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ends[at] = SURVIVED if os.waitstatus_to_exitcode(status) == 0 else KILLED
                shown = f"line {tried[at].line}: {tried[at].name}\n" if ends[at] == SURVIVED else ""
                print(f"\r{shown}{len(ends) - len(waiting)} of {len(ends)}", end="", file=sys.stderr, flush=True)
            elif time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                ends[at] = TIMED_OUT
            else:
                continue
            del running[child]
        time.sleep(0.01)
    return ends


def examine(module: str, workers: int, lines: tuple[int, int]) -> bool:
    """Examines one module; returns whether each change is noticed or explained."""
    path = ROOT / "python" / "txstore" / f"{module.replace('.', '/')}.py"
    explained: dict[str, str] = tomllib.loads(EXPLAINED.read_text()).get(module, {})
    output = ROOT / "target" / "python-mutants.log"
    output.parent.mkdir(exist_ok=True)
    start = time.monotonic()
    _, status = os.waitpid(begin(module, None, output), 0)
    if os.waitstatus_to_exitcode(status) != 0:
        print(f"{module}: its tests fail without a change: {output}")
        return False
    time_limit_s = (time.monotonic() - start) * TIME_LIMIT_FACTOR + TIME_LIMIT_MORE_S
    tried = [change for change in changes(path.read_text()) if lines[0] <= change.line <= lines[1]]
    ends = run_all(module, tried, workers, time_limit_s)
    survivors = [change for change, end in zip(tried, ends, strict=True) if end == SURVIVED]
    unexplained = [change for change in survivors if change.name not in explained]
    for change in unexplained:
        print(f"{path.relative_to(ROOT)}:{change.line}: {change.name}")
    unused = explained.keys() - {change.name for change in survivors} if lines == ALL_LINES else set()
    for name in sorted(unused):
        print(f"{EXPLAINED.name}: {module}: no such survivor: {name}")
    print(
        f"{module}: {len(ends)} changes, {len(ends) - len(survivors)} noticed ({ends.count(TIMED_OUT)} by the time "
        f"limit), {len(survivors) - len(unexplained)} explained, {len(unexplained)} not",
        flush=True,
    )
    return not unexplained and not unused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", choices=[*GUARDS, []], metavar="MODULE")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="tests at the same time")
    parser.add_argument("--lines", type=int, nargs=2, metavar=("FIRST", "LAST"), help="only the changes of these lines")
    arguments = parser.parse_args()
    sys.path[:0] = [str(ROOT)]
    for name in HEAVY:
        importlib.import_module(name)
    good = [
        examine(module, arguments.workers, tuple(arguments.lines or ALL_LINES))
        for module in arguments.modules or GUARDS
    ]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
