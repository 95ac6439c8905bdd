"""Web: turns HTTP requests into calls of pages, and their errors into pages.

In:     requests; the pages and actions of `pages`.
Out:    HTML responses.
Always: a page needs a known viewer. An action needs a viewer who may act and a form with the viewer's token, and is
        logged with who did what, also if it failed. No response may be framed, cached, or load anything from elsewhere.
        Without accounts, only requests that name this machine are answered, so that no name of another site leads here.
Not here: what a page shows.
"""

import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from txstore.console import text
from txstore.console.operator import Operator
from txstore.console.page import Action, Asked, Page
from txstore.console.pages import ACTIONS, NAVIGATION, PAGES
from txstore.console.rates import Rates
from txstore.console.viewers import Viewer, Viewers
from txstore.errors import (
    AlreadyEndedError,
    BrokerBusyError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    InUseError,
    InvalidNameError,
    InvalidOptionError,
    MessageNotFoundError,
    OffsetTooOldError,
    ReadOnlyError,
    StoreClosedError,
    TransactionNotFoundError,
    TxStoreError,
)

__all__ = ["application"]

_log = logging.getLogger("txstore.console")

_FORM_BYTES_MAX = 16 << 10
_FIELDS_MAX = 50
_OLD_FORM = "The form is too old, or came from another site. Load its page again, and repeat."
_LOGIN, _LOGOUT = "/login", "/logout"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STATUS: tuple[tuple[type[TxStoreError], int], ...] = (
    (TransactionNotFoundError, 404),
    (MessageNotFoundError, 404),
    (OffsetTooOldError, 404),
    (InvalidNameError, 404),
    (AlreadyEndedError, 409),
    (InUseError, 409),
    (ReadOnlyError, 409),
    (InvalidOptionError, 400),
)
_PASSING = (BrokerBusyError, BrokerTimeoutError, BrokerUnreachableError, StoreClosedError)
"""Errors that end by themselves: the server starts, or opens its store again."""
_RETRY_SECONDS = 3


class _RefusalError(Exception):
    """Why a request is not answered with its page."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def application(operator: Operator, rates: Rates, viewers: Viewers, *, is_secure: bool, cookie: str) -> Starlette:
    """Returns the console as an ASGI application. `is_secure`: whether it is served over TLS. `cookie`: its name."""
    web = _Web(operator, rates, viewers, is_secure=is_secure, cookie=cookie)
    routes = [Route(page.path, web.page(page), methods=["GET"]) for page in PAGES]
    routes += [Route(action.path, web.action(action), methods=["GET", "POST"]) for action in ACTIONS]
    routes += [Route(_LOGIN, web.log_in, methods=["GET", "POST"]), Route(_LOGOUT, web.log_out, methods=["POST"])]
    files = StaticFiles(packages=[("txstore.console", "static")])
    return Starlette(
        routes=[*routes, Mount("/static", files)],
        exception_handlers={HTTPException: web.failed, Exception: web.broken},
    )


class _Web:
    """The requests of one console."""

    def __init__(self, operator: Operator, rates: Rates, viewers: Viewers, *, is_secure: bool, cookie: str) -> None:
        self._operator = operator
        self._rates = rates
        self._viewers = viewers
        self._is_secure = is_secure
        self._cookie = cookie
        self._templates = Environment(
            loader=PackageLoader("txstore.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("age", "body_of", "counted", "line_of", "number", "shown", "size", "utc"):
            self._templates.filters[name] = getattr(text, name)
        self._templates.globals["link"] = text.link

    # Requests

    def page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Returns the endpoint of a page."""

        async def answer(request: Request) -> Response:
            return await run_in_threadpool(self._guarded, request, {}, lambda asked: self._show(page, asked))

        return answer

    def action(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        """Returns the endpoint of an action: GET asks for confirmation, POST does it."""

        async def answer(request: Request) -> Response:
            form = await _form(request) if request.method == "POST" else {}
            run = self._confirm if request.method == "GET" else self._act
            return await run_in_threadpool(self._guarded, request, form, lambda asked: run(action, asked))

        return answer

    async def log_in(self, request: Request) -> Response:
        """Shows the form, or begins a session."""
        form = await _form(request) if request.method == "POST" else {}
        return await run_in_threadpool(self._log_in, request, form)

    async def log_out(self, request: Request) -> Response:
        """Ends the session."""
        form = await _form(request)
        viewer = self._viewer(request)
        if not self._viewers.is_token(viewer, form.get("token", "")):
            return self._error(request, viewer, 403, _OLD_FORM)
        self._viewers.log_out(viewer)
        return self._finish(RedirectResponse(_LOGIN, 303), None)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Answers what Starlette refuses: unknown paths, wrong methods, forms that are too large."""
        assert isinstance(error, HTTPException)
        said = {404: "There is no such page.", 405: "This page takes no such request."}.get(error.status_code)
        return self._error(request, self._viewer(request), error.status_code, said or str(error.detail))

    async def broken(self, request: Request, error: Exception) -> Response:
        """Answers an error of our own."""
        _log.error("%s could not be answered: %r", request.url.path, error)
        return self._error(request, self._viewer(request), 500, "The console has failed: see the log of its process.")

    # The work, in threads

    def _guarded(self, request: Request, form: Mapping[str, str], run: Callable[[Asked], Response]) -> Response:
        """Answers a request of a known viewer; sends others to the login. Errors become pages."""
        viewer = self._viewer(request)
        try:
            self._must_be_here(request)
            if not viewer.is_known:
                there = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                to = text.link(_LOGIN, to=there if request.method == "GET" and there != "/" else None)
                return self._finish(RedirectResponse(to, 303), viewer)
            asked = Asked(self._operator, self._rates, viewer, dict(request.query_params), form)
            response = run(asked)
        except _RefusalError as refused:
            return self._error(request, viewer, refused.status, refused.message)
        except TxStoreError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 503)
            return self._error(request, viewer, status, str(error), is_passing=isinstance(error, _PASSING))
        if (seconds := asked.refresh) is not None and response.status_code == 200:
            response.headers["Refresh"] = str(seconds)
        return self._finish(response, viewer)

    def _show(self, page: Page, asked: Asked) -> Response:
        if page.is_admin_only and not asked.viewer.is_admin:
            raise _RefusalError(403, f"{page.title}: shown to administrators only (admin = true in the accounts file).")
        return HTMLResponse(
            self._rendered(page.template, asked.viewer, asked=asked, here=page.path, **page.show(asked))
        )

    def _confirm(self, action: Action, asked: Asked) -> Response:
        self._must_act(asked.viewer)
        fields = {
            name: found
            for name in action.fields
            if (found := asked.get(name) if name in action.optional else asked.need(name)) is not None
        }
        of = action.fields[0]  # What the action is done to: its page is the action's own path without the last part.
        back = text.link(action.path.rpartition("/")[0], **{of: fields[of]})
        context = {"action": action, "fields": fields, "said": action.question(asked), "back": back}
        return HTMLResponse(self._rendered("confirm.html", asked.viewer, asked=asked, here=action.path, **context))

    def _act(self, action: Action, asked: Asked) -> Response:
        facts = {"account": asked.viewer.name, "action": action.name}
        facts |= {name: asked.form.get(name, "")[:200] for name in action.fields}
        what = f"{action.name} " + " ".join(f"{name}={facts[name]}" for name in action.fields)
        try:
            self._must_act(asked.viewer)
            if not self._viewers.is_token(asked.viewer, asked.form.get("token", "")):
                raise _RefusalError(403, _OLD_FORM)
            done = action.do(asked)
        except (_RefusalError, TxStoreError) as error:
            why = error.message if isinstance(error, _RefusalError) else str(error)
            _log.warning("%s: %s was not done: %s", asked.viewer.name, what, why, extra=facts)
            raise
        _log.info("%s: %s: %s", asked.viewer.name, what, done.text, extra=facts)
        self._viewers.leave_note(asked.viewer, done.text)
        return RedirectResponse(done.to, 303)

    def _must_act(self, viewer: Viewer) -> None:
        if viewer.acts:
            return
        if not self._viewers.acts:
            raise _RefusalError(403, "This console is read-only. Start it with --console-actions to allow actions.")
        raise _RefusalError(403, "Only administrators may do this (admin = true in the accounts file).")

    def _log_in(self, request: Request, form: Mapping[str, str]) -> Response:
        viewer, said, status = self._viewer(request), None, 200
        to = form.get("to") or request.query_params.get("to") or "/"
        to = to if to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable() else "/"
        if not self._viewers.has_accounts:
            return self._finish(RedirectResponse("/", 303), viewer)
        if request.method == "POST":
            name = form.get("account", "")
            if not self._viewers.is_token(viewer, form.get("token", "")):
                said, status = "The form was too old. Try again.", 403
            elif self._viewers.must_wait():
                said, status = "Too many logins failed. Wait for a minute.", 429
            elif (known := self._viewers.log_in(name, form.get("secret", ""))) is None:
                _log.warning("login of %s failed", name[:200], extra={"account": name[:200]})
                said, status = "There is no account with this name and this secret.", 403
            else:
                _log.info("%s logged in", name, extra={"account": name})
                return self._finish(RedirectResponse(to, 303), known)
        page = self._rendered("login.html", viewer, said=said, to=to, here=_LOGIN)
        return self._finish(HTMLResponse(page, status), viewer)

    def _viewer(self, request: Request) -> Viewer:
        return self._viewers.viewer(request.cookies.get(self._cookie))

    def _must_be_here(self, request: Request) -> None:
        """Raises _RefusalError if the request names another machine: a site whose name was made to lead here.

        With accounts, the cookie belongs to the name that the viewer logged in at.
        """
        if self._viewers.has_accounts or _names_this_machine(request.headers.get("host", "")):
            return
        raise _RefusalError(
            421, "Without accounts, open the console by its IP address, as localhost, or by the host's name."
        )

    # Responses

    def _rendered(self, template: str, viewer: Viewer, **context: Any) -> str:
        pages = [page for page in NAVIGATION if viewer.is_admin or not page.is_admin_only] if viewer.is_known else []
        common = {
            "viewer": viewer,
            "navigation": pages,
            "token": self._viewers.token(viewer),
            "note": self._viewers.take_note(viewer),
            "has_accounts": self._viewers.has_accounts,
        }
        return self._templates.get_template(template).render(common | context)

    def _error(
        self, request: Request, viewer: Viewer, status: int, message: str, *, is_passing: bool = False
    ) -> Response:
        """Returns a page about an error. One that is passing is loaded again by itself, except after an action."""
        what, _, hint = message.partition("\nhint: ")
        again = _RETRY_SECONDS if is_passing and request.method == "GET" else None
        context = {"status": status, "what": what, "hint": hint, "is_passing": is_passing, "again": again}
        response = HTMLResponse(self._rendered("error.html", viewer, here=request.url.path, **context), status)
        if is_passing:
            response.headers["Retry-After"] = str(_RETRY_SECONDS)
        if again is not None:
            response.headers["Refresh"] = str(again)
        return self._finish(response, viewer)

    def _finish(self, response: Response, viewer: Viewer | None) -> Response:
        """Adds the headers of all pages, and the cookie; None removes it."""
        response.headers.update(_HEADERS | {"Cache-Control": "no-store"})
        if viewer is None:
            response.delete_cookie(self._cookie)
        else:
            response.set_cookie(
                self._cookie, viewer.session, httponly=True, samesite="strict", secure=self._is_secure, path="/"
            )
        return response


async def _form(request: Request) -> dict[str, str]:
    """Reads a form. Raises HTTPException if it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _FORM_BYTES_MAX:
            raise HTTPException(413, "The form is too large.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None


def _names_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    name = name.strip("[]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in ("localhost", socket.gethostname().lower(), socket.getfqdn().lower())
    return True
