"""A wrong variant of `txstore serve`, which the histories must find: readers see what is not copied yet.

python -m tests.histories.visible_early serve …
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from txstore.cli.main import main
from txstore.server.server import Server


def show(server: Server) -> None:
    """Shows everything at once, until the server ends."""
    store = server.broker.store
    while not server.closed:
        store.show_up_to(store.appended_end)
        time.sleep(0.001)


def begin(self: Server, *arguments: Any, **options: Any) -> None:
    right(self, *arguments, **options)
    threading.Thread(target=show, args=(self,), daemon=True).start()


right = Server.__init__

if __name__ == "__main__":
    Server.__init__ = begin  # type: ignore[method-assign]
    sys.exit(main())
