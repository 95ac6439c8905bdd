"""The background of a broker in a test: the same jobs and checks, without threads.

In:     jobs, calls of listeners.
Out:    their effects, in the thread of the test.
Always: nothing runs unless the test advances the clock or runs the checks.
"""

from collections.abc import Callable, Hashable

from txstore.broker.housekeeping import Housekeeping, Job
from txstore.transactions.pool import Pool, Result

__all__ = ["CallerPool", "HandHousekeeping"]


class HandHousekeeping(Housekeeping):
    """Jobs that run when `run_all_due` is called. It leaves out the checks, which have a call of their own."""

    def add(self, name: str, run: Job, every: float) -> None:
        """Adds a job, as `Housekeeping.add`."""
        if name != "checks":
            super().add(name, run, every)

    def start(self) -> None:
        """Starts no thread."""

    def run_all_due(self) -> None:
        """Runs due jobs until none is due."""
        while self.run_due() == 0:
            pass


class CallerPool(Pool):
    """Makes each call at once, in the thread that submits it. There is no time limit."""

    calls: int = 0
    """How many calls were made."""

    def submit(
        self,
        owner: Hashable,
        key: Hashable,
        work: Callable[[], object],
        *,
        done: Callable[[Result], None],
        starting: Callable[[], bool] | None = None,
    ) -> bool:
        """Makes the call and returns True; False after `stop`. What is not an Exception reaches the caller."""
        if self._stopped:
            return False
        if starting is None or starting():
            self.calls += 1
            try:
                result = Result(work())
            except Exception as error:
                result = Result(error=error)
            done(result)
        return True
