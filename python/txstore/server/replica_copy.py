"""The copy that a replica has of its source's store.

In:     bytes of the source's log, how far they are visible, and what the source has besides its log.
Out:    a store whose log is a prefix of the source's; how much it lacks, and since when.
Always: a piece may end within a record: the rest of it waits here, and only whole records are in the store.
Not here: where the bytes come from (`replication`, `following_rocketmq`).
"""

import time
from collections.abc import Iterable, Mapping

from txstore._native import Store
from txstore.broker import EmbeddedBroker
from txstore.errors import InvalidOptionError

__all__ = ["ReplicaCopy"]


class ReplicaCopy:
    """A copy. One thread adds to its log."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        """`broker` is open on it, as a replica."""
        self.broker = broker
        self.store: Store = broker.store
        self.missing_bytes: int | None = None
        """How many bytes it lacked at the last answer; None before the first one."""
        self.complete_at: float = time.monotonic()
        """When it had all of the source's log last, on the monotonic clock."""
        stat = broker.stat()
        self._file_size = stat.commit_log_file_size
        self._minimum = stat.min_physical_offset
        self._rest = bytearray()

    @property
    def next_offset(self) -> int:
        """The physical offset of the byte that it needs next."""
        return self.store.appended_end + len(self._rest)

    @property
    def file_size(self) -> int:
        """The size of a file of its log, in bytes."""
        return self._file_size

    def begin(self, rest: bytes = b"") -> None:
        """Begins to copy after the last whole record. `rest` are bytes that are known to follow it."""
        self._rest = bytearray(rest)

    def add(self, piece: bytes, epoch: int) -> None:
        """Adds bytes of the source's log that begin at `next_offset`."""
        self._rest += piece
        while self._rest:
            end = self.store.appended_end
            in_file = bytes(self._rest[: self._file_size - end % self._file_size])
            now = self.store.append_copied(end, in_file, epoch)
            if now == end:
                break
            # The rest of a log file after its last record is skipped, also if it has not come yet.
            del self._rest[: now - end]

    def show_up_to(self, visible: int, source_end: int) -> None:
        """Shows readers what the source shows. `source_end` is the end of its log."""
        self.store.show_up_to(visible)
        self.missing_bytes = max(0, source_end - self.store.appended_end)
        if self.missing_bytes == 0:
            self.complete_at = time.monotonic()

    def remove_below(self, minimum: int) -> None:
        """Removes log files that the source has no longer."""
        if minimum > self._minimum:
            self._minimum = self.store.remove_log_files(minimum, keep_unread=False).minimum

    def adopt_config(self, files: Mapping[str, str]) -> None:
        """Takes over files of `config/`."""
        for name, text in files.items():
            if self.store.config_text(name) != text:
                self.store.set_config_text(name, text)

    def adopt_offsets(self, rows: Iterable[tuple[str, str, int, int]]) -> bool:
        """Sets groups' offsets: topic, group, queue id, queue offset. Returns False if some are above the copy's end;
        these are set with the next state."""
        is_complete = True
        for topic, group, queue_id, offset in rows:
            if self.store.consumer_offset(topic, group, queue_id) != offset:
                try:
                    self.store.set_consumer_offset(topic, group, queue_id, offset)
                except InvalidOptionError:
                    is_complete = False
        return is_complete

    def must_have_names(self, broker_name: str, cluster_name: str, address: str) -> None:
        """Refuses a source under another name: clients would take the two for different brokers."""
        config = self.broker.config
        for option, own, theirs in (
            ("broker_name", config.broker_name, broker_name),
            ("cluster_name", config.cluster_name, cluster_name),
        ):
            if theirs != own:
                raise InvalidOptionError(
                    f"{address} has {option} {theirs!r}, and this replica has {own!r}\n"
                    f"hint: start it with --set {option}={theirs}",
                    option=option,
                )
