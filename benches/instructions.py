"""Counts the engine's instructions for each kind of work by callgrind and compares them with a baseline.

In:     `python -m benches.instructions [--write]`.
Out:    a table in Markdown; exit code 1 if some work takes more than its baseline by `TOLERANCE`.
Always: the same code gives the same counts within a thousandth, whatever else uses the machine, so a change of a
        hundredth comes from the code, or from the compiler. `--write` makes the counts the baseline, for a change that
        is worth its cost. Time is not measured, and what the kernel does in a call is not counted.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BASELINE = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.02
_COUNTS = {  # How often the work is done, and how many of it are in one line of the table.
    "append": 2000,
    "append_batch": 4000,
    "prepare": 2000,
    "commit": 2000,
    "roll_back": 2000,
    "check": 4000,
    "read": 4096,
    "recover": 12_000,  # Fewer bytes than a second thread is started for: what it saves depends on the scheduling.
}
# rustix reads the time from the vDSO, which valgrind does not provide; through libc it works.
_BUILD = "cargo build --locked --quiet --release --features rustix/use-libc --target-dir target/callgrind --example"
_BINARY = Path("target/callgrind/release/examples/instructions")


def count(work: str, times: int) -> float:
    """Instructions for one message, transaction or half of `work`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        command += ["--toggle-collect=instructions::measured", str(_BINARY), work, str(times)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or found is None:
        sys.exit(f"callgrind failed on {work}:\n{run.stderr}")
    return int(found[1]) / times


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.instructions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make today's counts the baseline")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed\nhint: apt-get install valgrind")
    subprocess.run([*_BUILD.split(), "instructions"], check=True)
    counts = {work: round(count(work, times)) for work, times in _COUNTS.items()}
    if arguments.write:
        BASELINE.write_text(json.dumps(counts, indent=2) + "\n")
    baseline: dict[str, int] = json.loads(BASELINE.read_text())
    print("| work, for each of it | instructions | baseline | ratio |\n|---|---|---|---|")
    worse = []
    for work, found in counts.items():
        ratio = found / baseline[work] if work in baseline else 1.0
        print(f"| {work} | {found:,} | {baseline.get(work, found):,} | {ratio:.3f} |")
        if ratio > 1 + TOLERANCE:
            worse.append(work)
    if worse:
        print(f"more than {TOLERANCE:.0%} above the baseline: {', '.join(worse)}", file=sys.stderr)
        print("hint: callgrind_annotate shows where; --write accepts the new counts", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
