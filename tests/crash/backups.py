"""Takes a backup in a child that is killed at a given step, or fills what it writes to.

In:     a store, a folder, at which line of the backup's code to die.
Out:    a report of how many lines there were, if the child lives.
Always: the child dies by SIGKILL, in the kernel: no handler and no `finally` runs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import txstore.backup
from tests.crash.zygote import Voice

_CODE = str(Path(txstore.backup.__file__).parent)


class _Steps:
    """Counts the executed lines of the package, and dies at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.done, self._kill_at = 0, kill_at

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_CODE):
            return None
        if event == "line":
            self.done += 1
            if self.done == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def back_up(voice: Voice, arguments: dict[str, Any]) -> None:
    """Takes a backup; dies at line `kill_at` of those that it executes, unless that is None."""
    steps = _Steps(arguments["kill_at"])
    sys.settrace(steps.trace)
    backup = txstore.backup.take_backup(arguments["path"], arguments["to"], keep=arguments["keep"])
    sys.settrace(None)
    voice.say("taken", backup.path.name, steps.done)
