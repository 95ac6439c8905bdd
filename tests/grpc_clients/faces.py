"""The two faces of each server: one for everybody, and one with accounts.

In:     which server: ours or theirs.
Out:    both faces, while they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from tests.certificates import Authority
from tests.grpc_clients.ours import serve_ours
from tests.grpc_clients.servers import GrpcServer
from tests.grpc_clients.theirs import serve_theirs
from tests.peer import rocketmq as peer

__all__ = ["OURS", "THEIRS", "both_faces"]

OURS, THEIRS = "ours", "theirs"


@contextmanager
def both_faces(which: str, folder: Path, authority: Authority) -> Iterator[tuple[GrpcServer, GrpcServer]]:
    """The face without accounts, and the one with. Raises peer.NoPeerError."""
    pair = authority.pair()
    folders = [folder / f"{which}{'-guarded' * accounts}" for accounts in (False, True)]
    for one in folders:
        one.mkdir()
    serve: Callable[..., AbstractContextManager[GrpcServer]] = serve_ours
    if which == THEIRS:
        serve = partial(serve_theirs, peer.Home.build(folder))
    with serve(folders[0], pair) as server, serve(folders[1], pair, accounts=True) as guarded:
        yield server, guarded
