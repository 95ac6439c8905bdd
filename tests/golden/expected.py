"""What a golden store should show, taken from its manifest alone.

In:     a manifest.
Out:    hosts and units in txstore's spelling; each transaction's outcome.
Always: nothing here reads the store, so it is independent of the engine and of tests/golden/reader.py.
"""

from __future__ import annotations

import base64
import ipaddress
from collections import Counter
from typing import Any

from tests.golden.reader import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC

SYSTEM_TOPICS = {HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC}
# How the manifests' client answered, by plan: what it said itself, or when it was asked. A listener that threw was
# recorded as THROW and committed when asked.
MEANT = {
    "COMMIT": "committed",
    "THROW": "committed",
    "CHECK1_COMMIT": "committed",
    "CHECK2_COMMIT": "committed",
    "ROLLBACK": "rolled_back",
    "CHECK1_ROLLBACK": "rolled_back",
    "NEVER": "discarded",
}
Manifest = dict[str, Any]


def host(text: str) -> str:
    """Java's `0:0:0:0:0:0:0:1:41048` as `[::1]:41048`."""
    address, port = text.rsplit(":", 1)
    parsed = ipaddress.ip_address(address)
    return f"[{parsed}]:{port}" if parsed.version == 6 else f"{parsed}:{port}"


def by_transaction(manifest: Manifest, topics: set[str] | None) -> Counter[str]:
    """How many messages each transaction has in `topics` (None: in all but the system's)."""
    return Counter(
        message["properties"]["UNIQ_KEY"]
        for message in manifest["messages"]
        if (message["topic"] in topics if topics is not None else message["topic"] not in SYSTEM_TOPICS)
        and message["properties"].get("UNIQ_KEY") in manifest["plans"]
    )


def committed_twice(manifest: Manifest) -> set[str]:
    """Transactions whose message the broker delivered more than once."""
    return {transaction for transaction, count in by_transaction(manifest, None).items() if count > 1}


def halves_named_by_ops(manifest: Manifest) -> set[int]:
    """Half queue offsets that some op message names. The manifest has small bodies as text."""
    bodies = (m["bodyBase64"] for m in manifest["messages"] if m["topic"] == OP_TOPIC and "bodyBase64" in m)
    return {int(text) for body in bodies for text in base64.b64decode(body).decode().split(",") if text}


def outcomes(manifest: Manifest, named: set[int] | None = None) -> dict[str, str]:
    """Each transaction's outcome; `named`: what ops name, if the manifest does not hold every op body."""
    real, discarded = by_transaction(manifest, None), by_transaction(manifest, {DISCARD_TOPIC})
    named = halves_named_by_ops(manifest) if named is None else named
    said = {check["transactionId"] for check in manifest["checks"] if check["answer"] == "ROLLBACK_MESSAGE"}
    copies: dict[str, set[int]] = {}
    for message in manifest["messages"]:
        if message["topic"] == HALF_TOPIC:
            copies.setdefault(message["properties"]["UNIQ_KEY"], set()).add(message["queueOffset"])
    found: dict[str, str] = {}
    for transaction, plan in manifest["plans"].items():
        if real[transaction]:
            found[transaction] = "committed"
        elif discarded[transaction]:
            found[transaction] = "discarded"
        elif (plan == "ROLLBACK" or transaction in said) and copies[transaction] & named:
            found[transaction] = "rolled_back"
        else:
            found[transaction] = "pending"
    return found
