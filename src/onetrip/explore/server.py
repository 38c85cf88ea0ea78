"""The explorer's server: who may ask, what is asked, and how it ends.

It listens on 127.0.0.1 alone, answers requests for its own host name with the token of this run,
and takes small bodies only. Planning runs in threads; Ctrl-C ends it at once. Must not know plans.
"""

from __future__ import annotations

import gc
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from ..base.cancel import Cancelled, cancelled_by
from ..base.errors import OnetripError, UsageError
from ..report import compare
from . import export, shown, source, timeline
from .boards import PRESETS
from .guard import Guard
from .pages import ACTIONS, Action, Explorer, Page
from .session import Session
from .workshop import Workshop

MOST_DIGITS = 18
"""Of a number in a request."""
STATIC = files("onetrip.explore") / "static"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
BEAT_SECONDS = 0.5
"""Between two signs of life while Best is planned."""
PLANNER = "best"
"""The thread that plans it for a page that has just been opened."""
GRACE = 3
"""Seconds that answers under way have when the server ends; a stream ends within a beat."""


Endpoint = Callable[[Request], Awaitable[Response]]


def application(explorer: Explorer, token: str, hosts: Sequence[str]) -> Guard:
    """The ASGI application behind its guard."""

    def answer(question: Callable[[Page, Request], Any]) -> Endpoint:
        return _answer(explorer, question)

    async def best(_: Request) -> Response:
        return StreamingResponse(_stream(explorer), media_type="text/event-stream")

    routes = [
        Route("/", lambda _: HTMLResponse((STATIC / "index.html").read_text())),
        Route("/static/{name}", _static),
        Route("/graph", _opening(explorer)),
        Route("/plan", _act(explorer), methods=["POST"]),
        Route("/cancel", _cancel(explorer), methods=["POST"]),
        Route(
            "/why", answer(lambda p, r: shown.why(p.session, p.session.edge(_number(r, "edge"))))
        ),
        Route("/kernel/{name}", answer(lambda p, r: _kernel(p.session, r.path_params["name"]))),
        Route("/measure/{name}", answer(lambda p, r: _measured(p.session, r.path_params["name"]))),
        Route("/memory", answer(lambda p, _: timeline.memory(p.session))),
        Route(
            "/diff", answer(lambda p, r: _diff(p.session, r.query_params.get("against", "eager")))
        ),
        Route("/save", answer(lambda p, _: _saved(p.session))),
        Route("/export", _exported(explorer)),
        Route("/best", best),
    ]
    return Guard(Starlette(routes=routes), token, hosts)


# ------------------------------------------------------------------ endpoints


def _answer(explorer: Explorer, question: Callable[[Page, Request], Any]) -> Endpoint:
    """An answer, or what makes it after other pages were let in again."""

    async def endpoint(request: Request) -> Response:
        name = request.query_params.get("session", "")

        def found(unwanted: threading.Event) -> Any:
            made = explorer.ask(name, lambda page: question(page, request))
            with cancelled_by(unwanted):
                return made() if callable(made) else made

        return await _told(request, found)

    return endpoint


def _opening(explorer: Explorer) -> Endpoint:
    """All of a page; `opened=1` where it has just been opened."""

    async def endpoint(request: Request) -> Response:
        name = request.query_params.get("session", "")
        if request.query_params.get("opened") == "1":
            return await _told(request, lambda _: explorer.open(name))
        return await _told(request, lambda _: explorer.ask(name, Page.whole))

    return endpoint


def _act(explorer: Explorer) -> Endpoint:
    """What an action changed."""

    async def endpoint(request: Request) -> Response:
        name = request.query_params.get("session", "")
        try:
            action = msgspec.json.decode(await request.body(), type=Action)
        except ClientDisconnect:
            return Response(status_code=400)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _json({"error": f"the body is no action: {error}"}, 400)

        spent: list[float] = []

        def change(page: Page) -> Any:
            began = time.thread_time()
            ACTIONS[action.do](page.session, action)
            found = shown.state(page.session, page.told)
            spent.append(1e3 * (time.thread_time() - began))
            return found

        def answer_of(unwanted: threading.Event) -> Any:
            explorer.foresee(name, action, unwanted)
            return explorer.ask(name, change)

        answered = await _told(request, answer_of)
        if spent:
            answered.headers["server-timing"] = f"python;dur={spent[0]:.1f}"
        return answered

    return endpoint


def _cancel(explorer: Explorer) -> Endpoint:
    """Ends what `POST /plan` waits for, which answers that it was cancelled."""

    async def endpoint(request: Request) -> Response:
        name = request.query_params.get("session", "")
        await request.body()

        def drop(_: threading.Event) -> None:
            given = "number" in request.query_params
            explorer.page(name).drop(_number(request, "number") if given else None)

        return await _told(request, drop)

    return endpoint


def _exported(explorer: Explorer) -> Endpoint:
    """The page as a file; its presets are planned before other pages have to wait."""

    async def endpoint(request: Request) -> Response:
        name = request.query_params.get("session", "")
        redact = request.query_params.get("redact", "") == "1"

        def found(unwanted: threading.Event) -> Any:
            for preset in PRESETS:
                explorer.foresee(name, Action("preset", preset=preset), unwanted)
            return explorer.ask(name, lambda p: {"html": export.page(p.session, redact=redact)})

        return await _told(request, found)

    return endpoint


# ------------------------------------------------------------------ answers


async def _told(request: Request, question: Callable[[threading.Event], Any]) -> Response:
    """The answer to a question, whose planning ends when nobody waits for it any more."""
    gone = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        answered = await _answered(lambda: question(gone))
        tasks.cancel_scope.cancel()
    return answered


async def _answered(question: Callable[[], Any]) -> Response:
    try:
        return _json(await run_in_threadpool(question))
    except Cancelled:
        return _json({"cancelled": True})
    except OnetripError as error:
        return _json({"error": str(error), "message": error.message}, 400)


def _json(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    kind = KINDS.get("." + name.rpartition(".")[2])
    found = STATIC / name
    if kind is None or "/" in name or "\\" in name or not found.is_file():
        return _json({"error": "no such file"}, 404)
    return Response(found.read_bytes(), media_type=kind)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise UsageError(
            f"{name} is no number", expected=f"at most {MOST_DIGITS} digits", found=text[:80]
        )
    return int(text)


def _kernel(session: Session, name: str) -> Any:
    return source.kernel(session, session.part(name))


def _measured(session: Session, name: str) -> Any:
    board, workshop = session.board, session.boards.workshop
    group = board.draft.group(session.part(name))
    return lambda: {"us": workshop.measured(board.planned, group)}


def _saved(session: Session) -> Any:
    saving = session.saving()
    return lambda: {"plan": saving().json()}


def _diff(session: Session, against: str) -> Any:
    if against not in PRESETS:
        raise UsageError("there is no such preset", expected=", ".join(PRESETS), found=against[:80])
    place, workshop, saving = session.place, session.boards.workshop, session.saving()

    def text() -> Any:
        other = workshop.plan(place.size, place.target, against).document
        return {"text": compare.text(compare.compare(other, saving().document))}

    return text


async def _stream(explorer: Explorer) -> AsyncIterator[str]:
    """Signs of life until Best is planned, then its figures; where the page leaves or the server
    ends, so does the planning."""
    made: list[str] = []
    unwanted = threading.Event()

    def plan() -> None:
        try:
            with cancelled_by(unwanted):
                made.append(_event("best", explorer.best()))
        except OnetripError as error:
            made.append(_event("failed", {"error": str(error)}))

    worker = threading.Thread(target=plan, name=PLANNER, daemon=True)
    worker.start()
    began = time.monotonic()
    try:
        while not made and not explorer.ending():
            yield _event("planning", {"seconds": round(time.monotonic() - began, 1)})
            await anyio.sleep(BEAT_SECONDS)
    finally:
        unwanted.set()
    for event in made:
        yield event


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {msgspec.json.encode(data).decode()}\n\n"


# ------------------------------------------------------------------ running


@dataclass(frozen=True)
class Running:
    """A server in a thread of its own, for notebooks and tests."""

    url: str
    server: uvicorn.Server
    thread: threading.Thread

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank">Explore the plan</a>'

    def stop(self) -> None:
        """Ends it and waits until it has ended."""
        self.server.should_exit = True
        self.thread.join(10)


def prepared(
    workshop: Workshop, target: str, port: int = 0, settle: Callable[[], None] = lambda: None
) -> tuple[str, uvicorn.Server, Any]:
    """The address of the page, a server that is not running yet, and its socket."""
    explorer = Explorer(workshop, target, settle)
    explorer.page("first")  # plans Eager before anybody waits
    explorer.pages.clear()
    settle()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen()
    except OSError as error:
        raise UsageError(
            f"port {port} cannot be used",
            expected="a free port, or 0 for any",
            found=error.strerror or str(error),
            next_step="leave out --port",
        ) from error
    place = f"127.0.0.1:{sock.getsockname()[1]}"
    token = secrets.token_urlsafe(24)
    app = application(explorer, token, (place, place.replace("127.0.0.1", "localhost")))
    config = uvicorn.Config(
        app, log_level="warning", lifespan="off", timeout_graceful_shutdown=GRACE, access_log=False
    )
    server = uvicorn.Server(config)
    explorer.ending = lambda: server.should_exit
    return f"http://{place}/?token={token}", server, sock


def serve(workshop: Workshop, target: str, port: int, announce: Callable[[str], None]) -> None:
    """Serves until Ctrl-C.

    The process is the page's alone, so that what plans leave in memory is frozen: a collection that
    walks the millions of objects of a deep graph makes a toggle wait for a second.
    """
    url, server, sock = prepared(workshop, target, port, gc.freeze)
    announce(url)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:
        pass
    finally:
        sock.close()


def start(workshop: Workshop, target: str, port: int = 0) -> Running:
    """Serves in a thread until `stop`."""
    url, server, sock = prepared(workshop, target, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    return Running(url, server, thread)
