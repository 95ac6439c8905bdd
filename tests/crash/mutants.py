"""Wrong variants of the engine, each of which the simulation or the exhaustive scripts must find.

Run as `python tests/crash/mutants.py [NAME …]`: builds the engine once with all of them (rust/src/base/mutant.rs), runs
both tests with one active at a time, and prints which promise each broke, and after how many crashes. Fails if one is
not found, or if the correct engine fails. `TXSTORE_CRASHES` is the most crashes for each in the simulation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRASHES = os.environ.get("TXSTORE_CRASHES", "200000")
SECONDS_MAX = 1800


def names() -> list[str]:
    text = (ROOT / "rust/src/base/mutant.rs").read_text()
    body = text.split("pub(crate) enum Mutant {")[1].split("\n}")[0]
    return re.findall(r"^    (\w+),$", body, re.MULTILINE)


def build() -> str:
    """The test's executable, in a target directory of its own."""
    flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg txstore_mutants".strip()
    command = ["cargo", "test", "--locked", "--release", "--features", "testing", "--test", "crash", "--no-run"]
    built = subprocess.run(
        [*command, "--message-format", "json"],
        cwd=ROOT,
        env={
            **os.environ,
            "RUSTFLAGS": flags,
            "CARGO_TARGET_DIR": str(ROOT / "target" / "mutants"),
            "CARGO_PROFILE_RELEASE_LTO": "off",
            "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
        },
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    return str(next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "crash"))


def run(executable: str, test: str, mutant: str, crashes: str) -> str | None:
    """The promise that broke and when; None if none did."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TXSTORE_SEED", "TXSTORE_POINTS")}
    done = subprocess.run(
        [executable, test],
        cwd=ROOT,
        env={**environment, "TXSTORE_MUTANT": mutant, "TXSTORE_CRASHES": crashes, "RUST_BACKTRACE": "0"},
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS_MAX,
    )
    if done.returncode == 0:
        return None
    promise = re.search(r"^(\w+) is broken", done.stdout, re.MULTILINE)
    crashes_before = re.search(r"after (\d+) crashes", done.stdout)
    runs = re.search(r"^seed (\d+),", done.stdout, re.MULTILINE)
    if not promise or not crashes_before:
        sys.exit(
            f"{mutant or 'the right engine'}: {test} failed otherwise:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    where = f"seed {runs[1]}, crash {crashes_before[1]}" if runs else f"image {crashes_before[1]}"
    return f"{promise[1]:4} {where}"


def main() -> int:
    wanted = sys.argv[1:] or names()
    executable = build()
    for test in ("simulation_keeps", "exhaustive"):
        if wrong := run(executable, test, "", "5000"):
            sys.exit(f"the right engine is found wrong by {test}: {wrong}")
    print(f"{'mutant':26}{'simulation':28}exhaustive", flush=True)
    survivors = []
    for mutant in wanted:
        found = [run(executable, test, mutant, CRASHES) for test in ("simulation_keeps", "exhaustive")]
        print(f"{mutant:26}{found[0] or '-':28}{found[1] or '-'}", flush=True)
        if not any(found):
            survivors.append(mutant)
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} caught" + "".join(f", {name} lives" for name in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
