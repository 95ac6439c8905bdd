"""Deep check of a store, even of one that does not open: each file, then the derived files against the log.

In:     a path.
Out:    the findings of `verify` and more, and what a repair would do.
Always: writes nothing. A store that does not open is reported file by file.
Not here: repairing (`repair`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from txstore import errors
from txstore._native import Examiner
from txstore.inspection import verify
from txstore.inspection.opening import demand, reading
from txstore.inspection.progress import Progress, unwatched
from txstore.inspection.verify import Findings

__all__ = ["Depth", "look"]

_LOST_SHOWN = 100
_WHAT_REPAIR_DOES = {
    "front": "let the log begin after it",
    "missing": "replace it with a file of filler records",
    "length": "restore its length, and check its content",
    "bad": "fill the range, so that readers skip it",
    "tail": "end the log before it",
    "end": "end the log there",
}


@dataclass
class Depth:
    """The findings and the facts they come from."""

    findings: Findings
    facts: dict[str, Any]
    plan: list[str] = field(default_factory=list)
    """What a repair would do, one line each; empty if there is nothing to repair."""

    def as_facts(self) -> dict[str, Any]:
        names = ("first", "end", "records", "clean", "damages", "derived", "lost", "lost_count")
        return {**self.findings.as_facts(), "files": {name: self.facts[name] for name in names}, "repair": self.plan}


def look(path: str, progress: Progress = unwatched) -> Depth:
    """Reads everything. Raises ForeignStoreError, and the system's errors."""
    demand(path)
    examiner = Examiner(path)
    with progress("checking the files", examiner.files) as steps:
        number = 0
        while examiner.step():
            number += 1
            steps.to(number)
    depth = Depth(Findings(), json.loads(examiner.facts()))
    _report_files(depth)
    if not depth.findings.damages:
        _compare(path, depth, progress)
    return depth


def _report_files(depth: Depth) -> None:
    facts, found = depth.facts, depth.findings
    found.counts["records"] = facts["records"]
    for damage in facts["damages"]:
        found.damages.append(
            f"{damage['file']}: {damage['what']}: {damage['from']} to {damage['to']} of the log cannot be read; "
            f"{damage['records_before']} records before it and {damage['records_after']} after it can"
        )
        depth.plan.append(f"{damage['file']} at {damage['from']}: {_WHAT_REPAIR_DOES[damage['kind']]}")
    for one in facts["derived"]:
        found.differs(f"{one['file']}: {one['what']}")
    if facts["torn"]:
        start, end = facts["torn"]
        found.notes.append(
            f"the log ends torn, {start} to {end}; the next opening cuts this off, it holds nothing acknowledged"
        )
    for lost in facts["lost"][:_LOST_SHOWN]:
        found.notes.append(
            f"lost: message {lost['queue_offset']} of {lost['topic']}/{lost['queue_id']}, at {lost['physical_offset']}"
        )
    if facts["lost_count"] > _LOST_SHOWN:
        found.notes.append(f"lost: {facts['lost_count'] - _LOST_SHOWN} more messages that queues name")
    if found.damages or found.differences:
        depth.plan.append("queues, index, checkpoint, snapshot: set aside and rebuilt from the log")


def _compare(path: str, depth: Depth, progress: Progress) -> None:
    """Checks the derived files of a store whose log is whole."""
    found = depth.findings
    try:
        with reading(path) as store:
            compared = verify.verify(store, progress)
            entries, texts = store.check_index()
            warnings = store.open_report.warnings
    except (errors.StoreCorruptError, errors.MissingFileError, errors.ForeignStoreError) as error:
        found.damages.append(str(error).partition("\n")[0])
    else:
        found.counts = compared.counts
        found.counts["index_entries"] = entries
        found.damages += compared.damages
        for text in [*compared.differences, *texts, *(warnings if depth.facts["clean"] else ())]:
            found.differs(text)
        found.notes += compared.notes
        if not depth.facts["clean"]:
            found.notes += warnings
    if (found.damages or found.differences) and not depth.plan:
        depth.plan.append("queues, index, checkpoint, snapshot: set aside and rebuilt from the log")
