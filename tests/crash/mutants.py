"""Wrong variants of the engine, each of which the tests must find.

Run as `python tests/crash/mutants.py [NAME …]`: builds the engine once with all of them (rust/src/base/mutant.rs). The
simulation and the exhaustive scripts run with one active at a time. The output says which promise each broke, and
after how many crashes. A variant that no crash shows is run with the unit test that guards against it. Fails if one
is not found, or if the correct engine fails. `TXSTORE_CRASHES` is the most crashes for each in the simulation.
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
CRASH_TEST_SECONDS_MAX = 1800
UNIT_TEST_SECONDS_MAX = 300
CRASH_TESTS = ("simulation_keeps", "exhaustive")
# Variants that simulated crashes cannot show, and the unit test that finds each: readers in other processes, forks,
# file systems, full disks, counts of calls, races of two calls.
UNIT_TESTS = {
    "EpochIgnored": "store::tests::epochs::one_node_writes_after_a_cut_network_heals",
    "QueuesNotAsked": "store::tests::brokers_end::l7_a_brokers_last_record_in_zeros_is_damage",
    "ResendNamesItsQueue": "store::tests::identities::another_message_under_the_id_of_a_pending_one_is_refused",
    "EqualCrcIsAnother": "store::tests::identities::bodies_of_one_crc_are_not_two_transactions_that_a_crash_makes_one",
    "GapsAreCommitted": "store::tests::lost_halves::t3_a_half_that_a_repair_replaced_is_not_answered_as_committed",
    "FilesNeverOpenedAgain": "store::tests::readers::d1_a_reader_follows_many_writers_wherever_in_a_file_they_end",
    "GapsAtOnce": "storage::segment::tests::no_file_is_missing_in_a_list_made_while_a_writer_adds_and_removes_files",
    "PageSoughtOnce": "store::tests::readers::"
    "d1_a_reader_that_was_there_before_anything_was_published_follows_the_first_writer",
    "DamageIsNotYet": "store::tests::readers::l8_a_reader_names_a_published_record_that_cannot_be_read",
    "ClosedNotUnlocked": "storage::disk::tests::a_dropped_lock_is_free_although_a_copy_of_its_descriptor_is_open",
    "ChildKeepsLocks": "storage::disk::tests::a_forked_child_keeps_no_lock_of_a_parent_that_was_killed",
    "MappedEverywhere": "storage::disk::tests::values_are_stored_through_a_map_only_where_that_needs_no_space",
    "FullDiskPoisons": "log::commit_log::tests::l1_what_a_full_disk_keeps_of_a_batch_is_covered_by_the_next_one",
    "SettledEachRecord": "store::tests::derived::l6_a_reader_without_queue_files_opens_in_time_that_grows_with_the_log",
    "RemovedIsDamaged": "store::tests::retention::a_read_during_retention_finds_its_message_too_old",
    "OpenedUnderAWriter": "store::tests::brokers_end::"
    "a_reader_that_opens_while_a_writer_opens_reads_what_the_writer_shows",
    "OpeningIsABroker": "backup::tests::a_look_at_any_moment_of_an_opening_finds_an_end_that_holds",
    "NobodyStays": "recovery::log_view::tests::log::what_was_read_is_valid_until_another_writer_has_opened_the_store",
    "NoRoomForOps": "store::tests::ends::many_small_halves_are_ended_one_by_one_on_a_full_disk",
    "ResumedTwice": "store::tests::identities::two_resumes_that_race_deliver_once",
    "LargerThanJavaMaps": "base::options::tests::a_log_file_is_as_large_as_a_java_int_counts",
    "NoShortFiller": "repair::tests::the_shortest_record_is_filled_and_costs_no_other",
    "NamedNotKept": "recovery::snapshot::tests::it_comes_back_as_it_was",
    "LockedWhileReading": "store::tests::log::l7_an_entry_in_memory_that_names_no_record_is_damage",
    "ClosedBeforeSync": "store::tests::readers::d1_a_close_on_a_full_disk_has_made_the_log_durable_first",
    "PanicUnnoticed": "store::tests::durable::a_panic_in_the_background_thread_stops_the_store",
    "CopiesUnlimited": "store::tests::log::a_read_is_limited_in_bytes",
    "LostEntriesEndChains": "index::key_index::tests::a_reader_continues_below_entries_that_a_power_loss_took",
}

# The simulation found two of them after 422,775 and 828,526 crashes, and the last one not within 200,000.
UNIT_TESTS |= {
    "LostQueueKeepsOffsets": "store::tests::recovery::"
    "l6_a_queue_whose_messages_are_lost_begins_at_0_whatever_its_files_are",
    "IndexMarkNotCompared": "index::key_index::tests::a_mark_is_between_the_entries_of_two_records",
    "RejectedNamesTaken": "index::key_index::tests::an_index_that_is_built_again_has_no_file_of_an_earlier_mark",
}

# Variants of transactions of several messages, which have a simulation of their own.
SEVERAL = ("SetNotCompleted", "SetNotRolledBack", "SetPassed")
SEVERAL_TEST = "several::several_messages_are_visible_together_or_not_at_all"


def names() -> list[str]:
    text = (ROOT / "rust/src/base/mutant.rs").read_text()
    body = text.split("pub(crate) enum Mutant {")[1].split("\n}")[0]
    return re.findall(r"^    (\w+),$", body, re.MULTILINE)


def build() -> tuple[str, str]:
    """The executables of the crash tests and of the unit tests, in a target directory of their own."""
    flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg txstore_mutants".strip()
    command = ["cargo", "test", "--locked", "--release", "--features", "testing,arrow", "--lib", "--test", "crash"]
    built = subprocess.run(
        [*command, "--no-run", "--message-format", "json"],
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
    tests = {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}
    return tests["crash"], tests["txstore"]


def start(command: list[str], mutant: str, crashes: str, seconds_max: int) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("TXSTORE_SEED", "TXSTORE_POINTS")}
    environment |= {"TXSTORE_MUTANT": mutant, "TXSTORE_CRASHES": crashes, "RUST_BACKTRACE": "0"}
    # Otherwise proptest writes the failure of a wrong variant next to the engine's sources.
    environment["PROPTEST_DISABLE_FAILURE_PERSISTENCE"] = "1"
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds_max,
    )


def run(executable: str, test: str, mutant: str, crashes: str) -> str | None:
    """The promise that broke and when; None if none did."""
    done = start([executable, test], mutant, crashes, CRASH_TEST_SECONDS_MAX)
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


def run_unit_test(executable: str, test: str, mutant: str) -> str | None:
    """The unit test's name if it fails or hangs; None if it passes."""
    try:
        done = start([executable, "--exact", test], mutant, CRASHES, UNIT_TEST_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"{test} hangs"
    if "running 1 test\n" not in done.stdout:
        sys.exit(f"there is no unit test {test}, or it did not start:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return None if done.returncode == 0 else test


def main() -> int:
    wanted = sys.argv[1:] or names()
    if unknown := {*wanted, *UNIT_TESTS} - set(names()):
        sys.exit(f"unknown variants: {', '.join(sorted(unknown))}; known are those of rust/src/base/mutant.rs")
    crash, unit = build()
    for test in CRASH_TESTS:
        if wrong := run(crash, test, "", "5000"):
            sys.exit(f"the right engine is found wrong by {test}: {wrong}")
    if run_unit_test(crash, SEVERAL_TEST, ""):
        sys.exit(f"the right engine fails or hangs in {SEVERAL_TEST}")
    for test in sorted({UNIT_TESTS[mutant] for mutant in wanted if mutant in UNIT_TESTS}):
        if run_unit_test(unit, test, ""):
            sys.exit(f"the right engine fails or hangs in {test}")
    print(f"{'mutant':26}{'simulation':28}exhaustive", flush=True)
    survivors = []
    for mutant in wanted:
        if mutant in UNIT_TESTS or mutant in SEVERAL:
            executable, test = (crash, SEVERAL_TEST) if mutant in SEVERAL else (unit, UNIT_TESTS[mutant])
            found = [run_unit_test(executable, test, mutant)]
            print(f"{mutant:26}{found[0] or '-'}", flush=True)
        else:
            found = [run(crash, test, mutant, CRASHES) for test in CRASH_TESTS]
            print(f"{mutant:26}{found[0] or '-':28}{found[1] or '-'}", flush=True)
        if not any(found):
            survivors.append(mutant)
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} found" + "".join(f", {name} lives" for name in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
