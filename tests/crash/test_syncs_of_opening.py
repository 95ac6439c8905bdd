"""Opening a store after a kill syncs the file system once, however many queues the log has.

Three syncs for each queue's new file and directories took minutes with many queues on a slow disk.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.tracer import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
_QUEUES = 60
_SYNC = re.compile(r"\b(fsync|fdatasync|syncfs)\(")
_SEND = """
import os, signal, sys, txstore
broker = txstore.open(sys.argv[1])
producer = broker.producer("many")
for number in range(int(sys.argv[2])):
    producer.send(txstore.Message(f"topic-{number}", b"x"))
os.kill(os.getpid(), signal.SIGKILL)
"""
_OPEN = """
import os, signal, sys, txstore
txstore.open(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_recovery_syncs_once_for_all_queues(tmp_path: Path) -> None:
    few, many = _syncs_of_opening(tmp_path, 1), _syncs_of_opening(tmp_path, _QUEUES)
    assert few["syncfs"] == many["syncfs"] == 1
    # The background thread of the opened store may sync a little before the process ends.
    assert many.total() < few.total() + _QUEUES / 2


def _syncs_of_opening(folder: Path, queues: int) -> Counter[str]:
    """How often each kind of sync is called to open a store whose process was killed with that many queues."""
    store, trace = folder / f"{queues}.store", folder / f"{queues}.trace"
    killed = subprocess.run([sys.executable, "-c", _SEND, str(store), str(queues)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    # The killed process may have written some queue files. Recovery creates them all.
    shutil.rmtree(store / "consumequeue", ignore_errors=True)
    command = ["strace", "-f", "-e", "trace=fsync,fdatasync,syncfs", "-o", str(trace)]
    opened = subprocess.run([*command, sys.executable, "-c", _OPEN, str(store)], check=False, timeout=60)
    assert opened.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return Counter(_SYNC.findall(trace.read_text()))
