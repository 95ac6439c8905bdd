"""Runs the fuzz targets one after the other, shows their progress, and sums up libFuzzer's own statistics.

In: seconds (or executions) for each target, which targets, with or without AddressSanitizer. Out: how far it is, then a
table; exit code 1 if an input broke something, which then lies in fuzz/artifacts. Always: builds these targets first;
one that found something ends, the others continue. It needs cargo-fuzz, a nightly toolchain and a C++ compiler.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzz.corpus import FUZZ

ROOT = FUZZ.parent
TARGETS = sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))
# A whole store is opened four times for one execution, so its turn is longer.
SHARES = {"store": 3}
LIMITS = ["-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-timeout=20", "-max_len=4096", "-print_final_stats=1"]


@dataclass
class Result:
    """What libFuzzer said of one target."""

    target: str
    executions: int = 0
    per_second: int = 0
    memory_mb: int = 0
    coverage: int = 0
    found: str = ""


def build(sanitizer: str, targets: list[str]) -> Path:
    """Builds these targets; the folder of their programs."""
    folder = FUZZ / "target" / sanitizer
    command = ["cargo", "+nightly", "fuzz", "build", "--sanitizer", sanitizer, "--target-dir", str(folder)]
    # cargo-fuzz takes one target, or builds all of them.
    only = [[target] for target in targets] if len(targets) < len(TARGETS) else [[]]
    for chosen in only:
        subprocess.run([*command, *chosen], cwd=ROOT, check=True)
    (program,) = folder.glob(f"*/release/{targets[0]}")
    return program.parent


def lines(command: list[str]) -> Iterator[str]:
    """What a program says, line by line, on either output."""
    with subprocess.Popen(command, cwd=FUZZ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as program:
        assert program.stdout is not None
        for line in program.stdout:
            yield line.decode(errors="replace").rstrip()


def run(program: Path, target: str, limit: str, verbose: bool) -> Result:
    """One target's turn."""
    result, shown = Result(target), 0
    folders = [FUZZ / kind / target for kind in ("corpus", "artifacts", "seeds")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    corpus, artifacts, seeds = map(str, folders)
    for line in lines([str(program / target), corpus, seeds, f"-artifact_prefix={artifacts}/", limit, *LIMITS]):
        if found := re.match(r"#(\d+)\s.*?cov: (\d+)", line):
            result.executions, result.coverage = int(found[1]), int(found[2])
            if sys.stderr.isatty() and result.executions // 100_000 != shown:
                shown = result.executions // 100_000
                print(f"\r{target}: {result.executions:,} executions", end="", file=sys.stderr)
        elif found := re.match(r"stat::(\w+):\s+(\d+)", line):
            field = {"number_of_executed_units": "executions", "average_exec_per_sec": "per_second"}.get(found[1])
            setattr(result, field or {"peak_rss_mb": "memory_mb"}.get(found[1], "ignored"), int(found[2]))
        elif found := re.search(r"Test unit written to (\S+)", line):
            result.found = found[1]
        if verbose or line.startswith(("thread '", "assertion", "  left:", " right:", "SUMMARY")):
            print(line)
    return result


def main() -> None:
    """The whole round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--executions", type=int, help="for each target, instead of seconds")
    parser.add_argument("--sanitizer", choices=["address", "none"], default="address")
    parser.add_argument("--verbose", action="store_true", help="show all that libFuzzer says")
    args = parser.parse_args()
    program = build(args.sanitizer, args.targets)
    results = []
    print(f"{'target':12}{'executions':>16}{'a second':>10}{'coverage':>10}{'MiB':>6}")
    for target in args.targets:
        seconds = args.seconds * SHARES.get(target, 1)
        limit = f"-runs={args.executions}" if args.executions else f"-max_total_time={seconds}"
        result = run(program, target, limit, args.verbose)
        results.append(result)
        line = f"{target:12}{result.executions:>16,}{result.per_second:>10,}{result.coverage:>10,}{result.memory_mb:>6}"
        print(f"{line}  {result.found}".rstrip(), flush=True)
    print(f"{'all':12}{sum(result.executions for result in results):>16,}")
    sys.exit(any(result.found for result in results))


if __name__ == "__main__":
    main()
