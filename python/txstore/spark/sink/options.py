"""Options of a write.

In:     texts.
Out:    `WriteOptions`, checked and picklable.
Not here: the names of options (`option_names.py`), the columns of a write (`rows.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txstore.client.dial import STORE
from txstore.spark.connection import broker_address
from txstore.spark.option_names import invalid, known_options

__all__ = ["WRITE_OPTIONS", "WriteOptions", "refuse_overwrite"]

WRITE_OPTIONS = ("path", "brokers", "appId", "batchId", "topic", "tls", "accessKey", "secretKey")
# What Spark itself reads, and passes on.
_OF_STREAMS = ("checkpointLocation", "queryName")
_APP = re.compile(r"[A-Za-z0-9_.%|-]{1,128}")


@dataclass(frozen=True)
class WriteOptions:
    """The options of one write."""

    address: str
    """As `txstore.connect` takes it."""
    path: str | None
    """The store's directory, if the write goes to a store of this machine."""
    app: str | None
    """The name of the query; None in a write of a batch that has none. A stream has one."""
    batch: int | None
    """The number of the batch; None in a stream, whose batches get theirs from Spark."""
    topic: str | None
    """The topic of rows without one."""
    tls: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
        """Parses the options as Spark passes them: texts, with names in any case. Raises InvalidOptionError."""
        texts = known_options(options, (*WRITE_OPTIONS, *_OF_STREAMS) if is_stream else WRITE_OPTIONS)
        for key, other in (("accessKey", "secretKey"), ("secretKey", "accessKey")):
            if key in texts and other not in texts:
                raise invalid(key, f"applies only with {other}")
        address, path = _target(texts)
        app, batch = texts.get("appId"), texts.get("batchId")
        if app is not None and not _APP.fullmatch(app):
            raise invalid("appId", f"must be 1 to 128 letters, digits or _.%|-, got {app!r}")
        (_check_stream if is_stream else _check_batch)(app, batch)
        if batch is not None and not re.fullmatch(r"\d{1,18}", batch):
            raise invalid("batchId", f"must be a whole number of 0 or more, got {batch!r}")
        return cls(
            address=address,
            path=path,
            app=app,
            batch=None if batch is None else int(batch),
            topic=texts.get("topic"),
            tls=texts.get("tls"),
            access_key=texts.get("accessKey"),
            secret_key=texts.get("secretKey"),
        )


def refuse_overwrite(overwrite: bool, *, is_stream: bool = False) -> None:
    """Raises InvalidOptionError for a write that replaces what is there."""
    if overwrite:
        mode = "outputMode" if is_stream else "mode"
        raise invalid(mode, f"a log cannot be overwritten\nhint: {mode}('append')")


def _check_batch(app: str | None, batch: str | None) -> None:
    if (app is None) != (batch is None):
        missing = "appId" if app is None else "batchId"
        hint = "hint: both name a batch that may be written again; neither means that it is written once"
        raise invalid(missing, f"missing\n{hint}")


def _check_stream(app: str | None, batch: str | None) -> None:
    if app is None:
        hint = "hint: a name of the query that stays the same when it is restarted, and that no other query has"
        raise invalid("appId", f"missing: it tells the stream's batches from those of other queries\n{hint}")
    if batch is not None:
        raise invalid("batchId", "a stream has the numbers of its batches from Spark\nhint: omit it")


def _target(texts: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns the address to write to, and the path if it is a store of this machine."""
    if ("path" in texts) == ("brokers" in texts):
        hint = 'hint: .save("orders.store") names a store of this machine, option("brokers", "host:9876") brokers'
        raise invalid("path" if "path" not in texts else "brokers", f"give either path or brokers\n{hint}")
    if "path" in texts:
        bare = re.sub(r"^file:(//[^/]*(?=/))?", "", texts["path"])
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", bare):
            raise invalid("path", f"must be a local path, got {texts['path']!r}")
        path = str(Path(bare).absolute())
        return STORE + path, path
    return broker_address(texts["brokers"]), None
