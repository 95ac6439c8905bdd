"""Viewers: who looks at the console, what they may see and do, and for how long they are logged in.

In:     accounts of the server (or none), the cookies of a request.
Out:    a `Viewer`.
Always: a session lives in memory only, for hours at most, and ends at once when its account is removed or gets another
        secret. Secrets are compared in constant time. A form is accepted only with the token of its own session, so
        that no other site can send it.
Not here: HTTP.
"""

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from txstore._native import DEAD_LETTER_PREFIX, RETRY_PREFIX

__all__ = ["AccountFacts", "Viewer", "Viewers"]

_SESSIONS_MAX = 1_000
_SESSION_SECONDS = 8 * 3600.0
_IDLE_SECONDS = 3600.0
_FAILURES_MAX = 20
_FAILURE_SECONDS = 60.0
_READ = 2
"""The bit of SUB."""


class AccountFacts(Protocol):
    """An account of the server. Permissions are bits: 1 send, 2 read."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def admin(self) -> bool: ...
    @property
    def default_topic(self) -> int: ...
    @property
    def default_group(self) -> int: ...
    @property
    def topics(self) -> Mapping[str, int]: ...
    @property
    def groups(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks at the console."""

    session: str
    """The secret name of the session; the browser's cookie."""
    account: AccountFacts | None
    """None if there are no accounts, or before the login."""
    is_known: bool
    """Whether pages are shown: after the login, or without accounts."""
    acts: bool
    """Whether actions are allowed."""

    @property
    def name(self) -> str:
        """The name in the log of actions."""
        return "local user" if self.account is None else self.account.access_key

    @property
    def is_admin(self) -> bool:
        """Whether everything is shown."""
        return self.is_known and (self.account is None or self.account.admin)

    def may_read_topic(self, topic: str) -> bool:
        """Tells whether the messages of a topic are shown."""
        if self.account is None or self.account.admin:
            return self.is_known
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            if topic.startswith(prefix):
                return self.may_read_group(topic.removeprefix(prefix))
        return bool(self.account.topics.get(topic, self.account.default_topic) & _READ)

    def may_read_group(self, group: str) -> bool:
        """Tells whether a consumer group is shown."""
        if self.account is None or self.account.admin:
            return self.is_known
        return bool(self.account.groups.get(group, self.account.default_group) & _READ)


@dataclass(slots=True)
class _Session:
    access_key: str
    secret_hash: bytes
    began: float
    used: float


class Viewers:
    """The sessions of a console. Thread-safe.

    `accounts` returns the server's accounts now; None if it has none, and everybody who can connect is known. `actions`
    tells whether the console may change the store. `monotonic` returns seconds.
    """

    def __init__(
        self, accounts: Callable[[], Sequence[AccountFacts] | None], *, actions: bool, monotonic: Callable[[], float]
    ) -> None:
        self._accounts = accounts
        self._actions = actions
        self._monotonic = monotonic
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._failures: deque[float] = deque(maxlen=_FAILURES_MAX)
        self._notes: OrderedDict[str, str] = OrderedDict()

    @property
    def acts(self) -> bool:
        """Whether the console may change the store at all."""
        return self._actions

    @property
    def has_accounts(self) -> bool:
        """Whether a login is needed."""
        return self._accounts() is not None

    def viewer(self, cookie: str | None) -> Viewer:
        """Returns who sends this cookie. Without one, somebody new, who gets the returned session as cookie."""
        session = cookie if cookie and len(cookie) == 64 and cookie.isascii() else secrets.token_hex(32)
        accounts = self._accounts()
        if accounts is None:
            return Viewer(session, None, is_known=True, acts=self._actions)
        account = self._account_of(session, accounts)
        acts = self._actions and account is not None and account.admin
        return Viewer(session, account, is_known=account is not None, acts=acts)

    def log_in(self, access_key: str, secret_key: str) -> Viewer | None:
        """Begins a session, with a new name; None if there is no such account with this secret."""
        now = self._monotonic()
        account = _matching(self._accounts() or (), access_key, secret_key)
        with self._lock:
            if account is None:
                self._failures.append(now)
                return None
            session = secrets.token_hex(32)
            self._sessions[session] = _Session(access_key, _hash(account.secret_key), now, now)
            while len(self._sessions) > _SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return Viewer(session, account, is_known=True, acts=self._actions and account.admin)

    def log_out(self, viewer: Viewer) -> None:
        """Ends a session."""
        with self._lock:
            self._sessions.pop(viewer.session, None)

    def leave_note(self, viewer: Viewer, text: str) -> None:
        """Keeps what an action has done, for the viewer's next page."""
        with self._lock:
            self._notes[viewer.session] = text
            while len(self._notes) > _SESSIONS_MAX:
                self._notes.popitem(last=False)

    def take_note(self, viewer: Viewer) -> str | None:
        """Returns what the viewer's last action has done, once."""
        with self._lock:
            return self._notes.pop(viewer.session, None)

    def must_wait(self) -> bool:
        """Tells whether so many logins failed in the last minute that no more are tried."""
        with self._lock:
            full = len(self._failures) == _FAILURES_MAX
            return full and self._monotonic() - self._failures[0] < _FAILURE_SECONDS

    def token(self, viewer: Viewer) -> str:
        """Returns what a form of this viewer contains, so that it is accepted."""
        return hmac.digest(self._key, viewer.session.encode(), "sha256").hex()

    def is_token(self, viewer: Viewer, token: str) -> bool:
        """Tells whether a form came from a page of this viewer."""
        return hmac.compare_digest(self.token(viewer).encode(), token.encode())

    def _account_of(self, session: str, accounts: Sequence[AccountFacts]) -> AccountFacts | None:
        now = self._monotonic()
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return None
            account = next((one for one in accounts if one.access_key == found.access_key), None)
            is_over = now - found.began > _SESSION_SECONDS or now - found.used > _IDLE_SECONDS
            if is_over or account is None or not hmac.compare_digest(_hash(account.secret_key), found.secret_hash):
                del self._sessions[session]
                return None
            found.used = now
            return account


def _matching(accounts: Sequence[AccountFacts], access_key: str, secret_key: str) -> AccountFacts | None:
    """Returns the account with this name and secret. Takes as long for an unknown name as for a wrong secret."""
    found = None
    for account in accounts:
        is_name = hmac.compare_digest(_hash(account.access_key), _hash(access_key))
        is_secret = hmac.compare_digest(_hash(account.secret_key), _hash(secret_key))
        if is_name and is_secret:
            found = account
    return found


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
