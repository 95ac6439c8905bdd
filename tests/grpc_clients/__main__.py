"""Runs scenarios and prints a line of JSON for each; or writes docs/rocketmq/grpc_clients.md from all of them.

In:     `python -m tests.grpc_clients SERVER CLIENT [SCENARIO ...]`, with ours or theirs as SERVER; or
        `python -m tests.grpc_clients page`.
Out:    the outcomes; the page.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.certificates import Authority
from tests.grpc_clients.clients import CLIENTS
from tests.grpc_clients.expected import ON_OURS
from tests.grpc_clients.faces import OURS, both_faces
from tests.grpc_clients.outcomes import Outcome, Runner
from tests.grpc_clients.page import PAGE, page
from tests.grpc_clients.scenarios import SCENARIOS


def run(which: str, names: Iterable[str], scenarios: Iterable[str] = SCENARIOS) -> Mapping[str, Mapping[str, Outcome]]:
    """The outcomes of each client; prints them, too."""
    folder = Path(tempfile.mkdtemp(prefix="grpc-clients-"))
    print(f"logs: {folder}", file=sys.stderr)
    authority = Authority(folder / "authority")
    found: dict[str, Mapping[str, Outcome]] = {}
    with both_faces(which, folder, authority) as (server, guarded):
        for name in names:
            runner = Runner(CLIENTS[name], server, guarded, folder / "clients", authority.file)
            found[name] = runner.run(scenarios)
            for outcome in found[name].values():
                print(f"{name} {outcome.line()}", flush=True)
    return found


def main() -> None:
    if sys.argv[1:] == ["page"]:
        PAGE.write_text(page(run(OURS, CLIENTS, ON_OURS)))
    else:
        which, names, *scenarios = sys.argv[1:]
        run(which, names.split(","), scenarios or SCENARIOS)


if __name__ == "__main__":
    main()
