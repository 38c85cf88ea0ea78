"""Who may ask the server, what it refuses, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from onetrip.api.workshop import ModelWorkshop
from onetrip.explore import pages, server

Answer = tuple[int, Any, dict[str, str]]


@pytest.fixture
def ask(running: server.Running) -> Any:
    return asker(running)


def asker(running: server.Running) -> Any:
    """Sends a request with the right token and host, unless others are given."""
    parts = urlsplit(running.url)
    token = parts.query.partition("=")[2]

    def send(
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        token: str = token,
        host: str = parts.netloc,
    ) -> Answer:
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        chosen = {"host": host, "x-onetrip-token": token, **(headers or {})}
        connection.request("POST" if body is not None else "GET", path, body, chosen)
        answer = connection.getresponse()
        text = answer.read()
        is_json = answer.getheader("content-type") == "application/json"
        return answer.status, json.loads(text) if is_json else text, dict(answer.getheaders())

    return send


def test_the_page_and_its_headers(ask: Any) -> None:
    status, text, headers = ask("/")
    assert (status, b"onetrip" in text) == (200, True)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/graph?session=a", "/plan?session=a", "/best", "/export"])
def test_a_wrong_token_is_refused(ask: Any, path: str) -> None:
    for token in ("", "wrong", "é"):
        assert ask(path, token=token.encode().decode("latin-1"))[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_wrong_host_is_refused(ask: Any, host: str) -> None:
    assert ask("/graph?session=a", host=host)[0] == 400


def test_another_pages_requests_are_refused(ask: Any) -> None:
    assert ask("/graph?session=a", headers={"origin": "http://evil.example"})[0] == 403


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b'{"do": "format"}', b'{"do": "undo", "more": 1}', b"\xff\xfe",
        b'{"do": "toggle", "edge": "1"}', b'{"do": "toggle", "edge": 1e99}', b"[" * 5000,
    ],
)  # fmt: skip
def test_malformed_bodies_are_refused(ask: Any, body: bytes) -> None:
    status, found, _ = ask("/plan?session=bad", body)
    assert status == 400
    assert "error" in found


def test_large_bodies_are_refused(ask: Any, running: server.Running) -> None:
    assert ask("/plan?session=a", b" " * (1 << 16) + b"{}")[0] == 413
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    token = parts.query.partition("=")[2]
    chunks = (b" " * 4096 for _ in range(40))  # no length is stated
    connection.request("POST", "/plan?session=a", chunks, {"x-onetrip-token": token})
    assert connection.getresponse().status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/graph", 400), ("/why?session=a&edge=x", 400), ("/why?session=a&edge=99", 400),
        (f"/why?session=a&edge={'1' * 5000}", 400),
        ("/kernel/K99?session=a", 400), ("/static/none.js", 404), ("/static/..%2fserver.py", 404),
        ("/static/%2e%2e/server.py", 404), ("/nothing", 404), ("/diff?session=a&against=no", 400),
        ("/measure/K3?session=a", 400),
    ],
)  # fmt: skip
def test_wrong_questions_get_an_answer(ask: Any, path: str, status: int) -> None:
    assert ask(path)[0] == status


def test_two_sessions(ask: Any) -> None:
    for name in ("one", "two"):
        assert ask(f"/graph?session={name}")[0] == 200
    _, one, _ = ask("/plan?session=one", b'{"do": "preset", "preset": "max"}')
    _, two, _ = ask("/plan?session=two", b'{"do": "undo"}')
    assert (one["totals"]["kernels"], two["totals"]["kernels"]) == (2, 5)


def test_a_page_does_not_wait_for_what_another_one_asks(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved plan is made after the groups were taken down, while other pages go on."""
    begun, asked = threading.Event(), threading.Event()
    whole = server.Session.saving

    def slow(session: server.Session) -> Any:
        make = whole(session)

        def late() -> Any:
            begun.set()
            assert asked.wait(60)
            return make()

        return late

    monkeypatch.setattr(server.Session, "saving", slow)
    saved: list[int] = []
    for name in ("one", "two"):
        ask(f"/graph?session={name}")
    waiting = threading.Thread(target=lambda: saved.append(ask("/save?session=one")[0]))
    waiting.start()
    assert begun.wait(60)
    assert ask("/plan?session=two", b'{"do": "undo"}')[0] == 200
    asked.set()
    waiting.join(60)
    assert saved == [200]


def test_a_refused_fuse_says_why_and_changes_nothing(ask: Any) -> None:
    ask("/graph?session=refused")
    status, found, _ = ask("/plan?session=refused", b'{"do": "toggle", "edge": 0}')
    assert status == 400
    assert "compute-bound-anchor" in found["error"]
    _, state, _ = ask("/plan?session=refused", b'{"do": "undo"}')
    assert state["history"] == ["Eager"]


def test_best_is_streamed_with_its_bound(ask: Any) -> None:
    status, text, headers = ask("/best")
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    name, data = text.decode().strip().split("\n\n")[-1].split("\n")
    assert name == "event: best"
    found = json.loads(data.removeprefix("data: "))
    assert found["kernels"] == 2 and found["gap"] >= 0 and found["kind"] == "exact"


def test_what_is_planned_can_be_cancelled_and_changes_nothing(unending: Any, endless: Any) -> None:
    ask = asker(unending)
    ask("/graph?session=a")
    _, before, _ = ask("/plan?session=a", b'{"do": "undo"}')
    answers: list[Answer] = []
    best = b'{"do": "preset", "preset": "best"}'
    waiting = threading.Thread(target=lambda: answers.append(ask("/plan?session=a", best)))
    waiting.start()
    assert endless.begun.wait(60)
    assert ask("/cancel?session=other", b"")[0] == 200  # another page's wish
    assert ask("/plan?session=a", b'{"do": "undo"}')[0] == 200
    assert not answers
    assert ask("/cancel?session=a", b"")[0] == 200
    waiting.join(60)
    assert [x[:2] for x in answers] == [(200, {"cancelled": True})]
    _, after, _ = ask("/plan?session=a", b'{"do": "undo"}')
    assert (after["totals"], after["history"]) == (before["totals"], ["Eager"])
    endless.enough.set()
    assert ask("/plan?session=a", best)[1]["preset"] == "best"


def test_a_stream_that_is_left_ends_the_planning(unending: Any, endless: Any) -> None:
    parts = urlsplit(unending.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"/best?{parts.query}")
    answer = connection.getresponse()
    assert answer.readline() == b"event: planning\n"
    assert endless.begun.wait(60)
    planners = [t for t in threading.enumerate() if t.name == server.PLANNER]
    assert planners
    answer.close()
    connection.close()
    for thread in planners:
        thread.join(60)
        assert not thread.is_alive()


def test_planning_ends_when_the_page_that_waits_for_it_has_gone(
    unending: Any, endless: Any
) -> None:
    ask = asker(unending)
    parts = urlsplit(unending.url)
    headers = {"x-onetrip-token": parts.query.partition("=")[2], "host": parts.netloc}
    gone = http.client.HTTPConnection(parts.netloc, timeout=60)
    body = b'{"do": "preset", "preset": "best"}'
    gone.request("POST", "/plan?session=gone", body, headers)
    assert endless.begun.wait(60)
    gone.close()
    # Another target has to be captured and planned behind it.
    status, found, _ = ask("/plan?session=stays", b'{"do": "go", "target": "a100"}')
    assert (status, found["target"]) == (200, "a100")
    assert not endless.enough.is_set()


def test_what_is_cancelled_before_it_has_begun_does_not_begin(unending: Any) -> None:
    ask = asker(unending)
    best = b'{"do": "preset", "preset": "best", "number": 3}'
    assert ask("/cancel?session=a&number=3", b"")[0] == 200
    assert ask("/plan?session=a", best)[:2] == (200, {"cancelled": True})
    later = best.replace(b"best", b"max").replace(b"3", b"4")
    assert ask("/plan?session=a", later)[1]["preset"] == "max"
    ask("/graph?session=a&opened=1")  # a reload counts anew
    again = best.replace(b"best", b"eager").replace(b"3", b"1")
    assert ask("/plan?session=a", again)[1]["preset"] == "eager"


FUSE_ALL = b'{"do": "preset", "preset": "max"}'


def test_pages_without_work_are_forgotten_first(ask: Any) -> None:
    ask("/plan?session=mine", FUSE_ALL)
    for k in range(2 * pages.MOST_SESSIONS):
        assert ask(f"/graph?session=idle{k}&opened=1")[1]["forgotten"] is False
    assert ask("/plan?session=mine", b'{"do": "redo"}')[1]["history"] == ["Eager", "Fuse all"]
    assert ask("/graph?session=idle0")[0] == 200  # nothing was lost with it


def test_a_page_whose_work_was_forgotten_is_told_so_and_begins_anew_when_it_is_reloaded(
    ask: Any,
) -> None:
    ask("/plan?session=quiet", FUSE_ALL)
    for k in range(pages.MOST_SESSIONS):
        ask(f"/plan?session=busy{k}", FUSE_ALL)
    for path, body in (("/plan", FUSE_ALL), ("/graph", None), ("/save", None)):
        status, found, _ = ask(f"{path}?session=quiet", body)
        assert status == 400 and "reload" in found["error"]
    opened = ask("/graph?session=quiet&opened=1")[1]
    assert opened["forgotten"] and opened["state"]["history"] == ["Eager"]
    assert ask("/plan?session=quiet", FUSE_ALL)[1]["history"] == ["Eager", "Fuse all"]
    assert ask("/graph?session=quiet&opened=1")[1]["forgotten"] is False


def test_an_open_stream_ends_with_the_server(
    demo: ModelWorkshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best is still being planned; the page gets a whole answer, not a torn one."""
    planned = threading.Event()
    monkeypatch.setattr(server.Explorer, "best", lambda _: {"waited": planned.wait(60)})
    running = server.start(demo, "h100")
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"/best?{parts.query}")
    answer = connection.getresponse()
    assert answer.readline() == b"event: planning\n"
    try:
        running.stop()
        assert b"event: best" not in answer.read()  # IncompleteRead where it was torn off
    finally:
        planned.set()


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly() -> None:
    command = [sys.executable, "-m", "onetrip", "explore", "siblings", "--no-open"]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert run.stdout is not None
        first = run.stdout.readline()
        assert "http://127.0.0.1:" in first
        parts = urlsplit(first.split()[-1])
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        connection.request("GET", f"/best?{parts.query}")  # left open
        connection.getresponse()
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 0, errors
    assert "Traceback" not in errors
