"""Options of a write.

In:     texts.
Out:    `WriteOptions`, checked and picklable.
Always: an unknown option is an error that names the nearest known one.
Not here: the columns of a write (`rows.py`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txstore.client.dial import STORE, name_servers
from txstore.errors import InvalidOptionError

__all__ = ["WRITE_OPTIONS", "WriteOptions", "refuse_overwrite"]

WRITE_OPTIONS = ("path", "brokers", "appId", "batchId", "topic", "tls", "accessKey", "secretKey")
_KNOWN = {name.lower(): name for name in WRITE_OPTIONS}
_APP = re.compile(r"[A-Za-z0-9_.%|-]{1,128}")


@dataclass(frozen=True)
class WriteOptions:
    """The options of one write."""

    address: str
    """As `txstore.connect` takes it."""
    path: str | None
    """The store's directory, if the write goes to a store of this machine."""
    app: str | None
    """The name of the query; None in a write of a batch that has none."""
    batch: int | None
    """The number of the batch."""
    topic: str | None
    """The topic of rows without one."""
    tls: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parses the options as Spark passes them: texts, with names in any case. Raises InvalidOptionError."""
        texts = {_known(name): text for name, text in options.items()}
        for key, other in (("accessKey", "secretKey"), ("secretKey", "accessKey")):
            if key in texts and other not in texts:
                raise _invalid(key, f"applies only with {other}")
        address, path = _target(texts)
        app, batch = texts.get("appId"), texts.get("batchId")
        if app is not None and not _APP.fullmatch(app):
            raise _invalid("appId", f"must be 1 to 128 letters, digits or _.%|-, got {app!r}")
        if (app is None) != (batch is None):
            missing = "appId" if app is None else "batchId"
            hint = "hint: both name a batch that may be written again; neither means that it is written once"
            raise _invalid(missing, f"missing\n{hint}")
        if batch is not None and not re.fullmatch(r"\d{1,18}", batch):
            raise _invalid("batchId", f"must be a whole number of 0 or more, got {batch!r}")
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


def refuse_overwrite(overwrite: bool) -> None:
    """Raises InvalidOptionError for a write that replaces what is there."""
    if overwrite:
        raise _invalid("mode", "a log cannot be overwritten\nhint: mode('append')")


def _target(texts: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns the address to write to, and the path if it is a store of this machine."""
    if ("path" in texts) == ("brokers" in texts):
        hint = 'hint: .save("orders.store") names a store of this machine, option("brokers", "host:9876") brokers'
        raise _invalid("path" if "path" not in texts else "brokers", f"give either path or brokers\n{hint}")
    if "path" in texts:
        bare = re.sub(r"^file:(//[^/]*(?=/))?", "", texts["path"])
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", bare):
            raise _invalid("path", f"must be a local path, got {texts['path']!r}")
        path = str(Path(bare).absolute())
        return STORE + path, path
    address = ";".join(part.strip() for part in re.split("[;,]", texts["brokers"]) if part.strip())
    try:
        name_servers(address)
    except InvalidOptionError as error:
        raise _invalid("brokers", str(error)) from None
    return address, None


def _known(name: str) -> str:
    known = _KNOWN.get(name.lower())
    if known is None:
        near = difflib.get_close_matches(name.lower(), _KNOWN, 1)
        hint = f"did you mean {_KNOWN[near[0]]}?" if near else f"a write has the options {', '.join(WRITE_OPTIONS)}"
        raise _invalid(name, f"unknown option\nhint: {hint}")
    return known


def _invalid(option: str, what: str) -> InvalidOptionError:
    return InvalidOptionError(f"option {option}: {what}", option=option)
