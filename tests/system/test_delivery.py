"""One end told: by a command or a POST, within its time, and nothing of it is left."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wait import until

from foxqueue.job import JobView
from foxqueue.processes import ProcessId
from workers import delivery as module
from workers.delivery import MARK, deliver, delivery, end_abandoned

JOB = JobView(
    number=7,
    born="1",
    state="failed",
    reason="exit_code",
    detail="exited with 3\nfor good ü",
    name="train",
    user="ada",
    exit_code=3,
    spec={"cwd": "/usr"},
)
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/root", "LC_ALL": "C.UTF-8", "FOXQUEUE_HOME": "/h"}
HOME = "/some/where else"
SECRETS = {"FOXQUEUE_PASSWORD": "secret", "FOXQUEUE_URL": "redis://:secret@there", "REDISCLI_AUTH": "secret"}


def tell(to: str, job: JobView = JOB, stopped: bool = False, **environ: str) -> str:
    what = delivery(job, to, "ns", {**ENVIRON, **SECRETS, **environ})
    return deliver(what, HOME, lambda _pids: None, lambda: stopped)


# --- a command -----------------------------------------------------------------------------------------------


def test_a_command_finds_what_it_needs_and_no_password(tmp_path: Path) -> None:
    assert tell(f"env -0 > {tmp_path}/env; pwd > {tmp_path}/cwd; cat > {tmp_path}/input") == ""
    found = dict(part.split("=", 1) for part in (tmp_path / "env").read_text().split("\0") if part)
    assert {name: value for name, value in found.items() if name.startswith("FOXQUEUE_")} == {
        "FOXQUEUE_JOB_ID": "7",
        "FOXQUEUE_JOB_NAME": "train",
        "FOXQUEUE_JOB_STATE": "failed",
        "FOXQUEUE_JOB_REASON": "exit_code",
        "FOXQUEUE_JOB_DETAIL": "exited with 3\nfor good ü",
        "FOXQUEUE_JOB_EXIT_CODE": "3",
        "FOXQUEUE_JOB_USER": "ada",
        "FOXQUEUE_NAMESPACE": "ns",
        "FOXQUEUE_HOME": "/h",
        MARK: found[MARK],
    }
    assert "secret" not in (tmp_path / "env").read_text()
    assert (found["HOME"], found["LC_ALL"], found["PATH"]) == ("/root", "C.UTF-8", os.environ["PATH"])
    assert ((tmp_path / "cwd").read_text(), (tmp_path / "input").read_text()) == ("/usr\n", "")


def test_what_is_unknown_is_empty_and_a_directory_that_is_gone_is_the_root(tmp_path: Path) -> None:
    job = JobView(number=8, born="1", state="cancelled", spec={"cwd": "/no/such/place"})
    assert tell(f'echo "$FOXQUEUE_JOB_REASON,$FOXQUEUE_JOB_EXIT_CODE,$PWD" > {tmp_path}/out', job) == ""
    assert (tmp_path / "out").read_text() == ",,/\n"


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("exit 3", "it exited with 3"),
        ("echo first; echo no such mailbox >&2; exit 1", "it exited with 1: no such mailbox"),
        ("no-such-command", "it exited with 127: "),
        ("kill -9 $$", "it was killed by SIGKILL"),
        ("printf 'a\\033[31mb' ; exit 1", "it exited with 1: a?[31mb"),
        ("head -c 1000000 /dev/zero | tr '\\0' x; exit 2", "it exited with 2: xxx"),
    ],
)
def test_what_went_wrong_is_said(command: str, fault: str) -> None:
    assert tell(command).startswith(fault)


def test_what_cannot_be_started_is_said() -> None:
    assert tell("true\0").startswith("it cannot be started: ")
    assert tell("true " + "x" * 200_000).startswith("it cannot be started: ")


def test_nothing_of_a_command_outlives_it(tmp_path: Path) -> None:
    """Given a command that leaves two behind, one of them in a session of its own, then both are gone."""
    escaped = f"setsid sh -c 'trap \"\" TERM HUP; echo $$ > {tmp_path}/pid; sleep 600'"
    assert tell(f"{escaped} & sleep 600 & while ! test -s {tmp_path}/pid; do sleep 0.01; done") == ""
    left = ProcessId.of(int((tmp_path / "pid").read_text()))
    assert left is None or not left.alive()


def test_a_command_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND_S", 0.3)
    code = f"trap '' TERM; echo $$ > {tmp_path}/pid; echo busy; sleep 600"
    began = time.monotonic()
    assert tell(code) == "it did not end in its time: busy"
    assert 0.3 <= time.monotonic() - began < 5
    left = ProcessId.of(int((tmp_path / "pid").read_text()))
    assert left is None or not left.alive()


def test_a_worker_that_leaves_ends_it() -> None:
    assert tell("sleep 600", stopped=True) == "its worker was stopped"


def test_a_status_that_another_took_is_no_success() -> None:
    """Given a dead runner whose orphans are killed and reaped, when a command is among them: it is told again."""
    taken: list[int] = []

    def take(pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, 9)
            taken.append(os.waitpid(pid, 0)[0])

    what = delivery(JOB, "sleep 600", "ns", ENVIRON)
    assert deliver(what, HOME, take, lambda: False) == "its status was lost"
    assert len(taken) == 2, "its guard too"


def test_only_what_dead_workers_of_the_home_left_is_ended() -> None:
    """Given five that carry marks, when abandoned ones are ended: it hits that of a dead worker of this home alone."""
    me = ProcessId.of()
    assert me
    dead, other_ns = replace(me, start=me.start + 1), replace(me, start=me.start + 1, pid_ns="pid:[1]")
    marks = [
        *(f"{who.pid}/{who.start}/{who.boot_id}/{who.pid_ns}/ab/{HOME}" for who in (dead, me, other_ns)),
        f"{dead.pid}/{dead.start}/{dead.boot_id}/{dead.pid_ns}/ab/{HOME}/deeper",
        "ab",
    ]
    started = [subprocess.Popen(["sleep", "600"], env={MARK: mark}, start_new_session=True) for mark in marks]
    try:
        until(lambda: all(module._mark_of(process.pid) for process in started), what="their marks")
        assert end_abandoned(HOME) == [started[0].pid]
        assert started[0].wait(5) == -9
        assert [process.poll() for process in started[1:]] == [None] * 4
    finally:
        for process in started:
            process.kill()
            process.wait()


# --- a POST --------------------------------------------------------------------------------------------------


class Hook:
    """A server that takes POSTs and answers as told."""

    def __init__(self, code: int, headers: dict[str, str]) -> None:
        self.taken: list[tuple[str, str, dict[str, Any]]] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.taken.append((self.path, self.headers["Content-Type"], json.loads(body)))
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def do_GET(self) -> None:
                hook.taken.append((self.path, "GET", {}))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=secret"


@contextmanager
def hooked(code: int = 204, **headers: str) -> Iterator[Hook]:
    hook = Hook(code, headers)
    thread = threading.Thread(target=hook.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hook
    finally:
        hook.server.shutdown()
        thread.join()
        hook.server.server_close()


def test_a_post_brings_the_job() -> None:
    with hooked() as hook:
        assert tell(hook.url) == ""
    [(path, kind, body)] = hook.taken
    assert (path, kind) == ("/hook?token=secret", "application/json")
    assert body == json.loads(json.dumps(JOB.to_dict()))
    assert (body["number"], body["state"], body["exit_code"]) == (7, "failed", 3)


@pytest.mark.parametrize("code", [400, 404, 500, 503])
def test_an_answer_of_failure_is_none_of_success(code: int) -> None:
    with hooked(code) as hook:
        fault = tell(hook.url)
    assert fault.startswith(f"it exited with 1: the server answered {code} ")
    assert "secret" not in fault


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/elsewhere"])
def test_no_redirect_is_followed(code: int, where: str) -> None:
    with hooked(code, Location=where) as hook:
        assert f"to {where}: give that address" in tell(hook.url)
    assert [path for path, _, _ in hook.taken] == ["/hook?token=secret"]


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "refused" in tell(f"http://127.0.0.1:{free.getsockname()[1]}/")
    assert tell("http:///nothing").startswith("it exited with 1: ")
    assert tell("http://[::1").startswith("it exited with 1: ")
    assert tell("file:///etc/passwd") == "it exited with 1: file is not http or https"


def test_a_server_that_drips_has_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a server that sends a byte now and then, so that no time-out of a socket ever comes."""
    monkeypatch.setattr(module, "POST_S", 1.5)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            link, _ = server.accept()
            with link:
                while not done.wait(0.05):
                    try:
                        link.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            began = time.monotonic()
            assert tell(f"http://127.0.0.1:{server.getsockname()[1]}/") == "it did not end in its time"
            assert time.monotonic() - began < 10
        finally:
            done.set()
            thread.join()


def test_an_address_is_no_argument_that_others_can_read() -> None:
    with hooked() as hook:
        what = delivery(JOB, hook.url, "ns", ENVIRON)
    assert "secret" not in " ".join(what.argv) + repr(what.environ) + what.to
    assert what.to == "http://127.0.0.1"


def test_a_job_as_large_as_one_can_be(tmp_path: Path) -> None:
    job = JobView(**{**JOB.__dict__, "description": "x" * 4_000_000, "detail": "y" * 4_000_000 + "\0"})
    with hooked() as hook:
        assert tell(hook.url, job) == ""
    assert len(hook.taken[0][2]["description"]) == 4_000_000
    assert tell(f'printf %s "$FOXQUEUE_JOB_DETAIL" | wc -c > {tmp_path}/size', job) == ""
    assert (tmp_path / "size").read_text().strip() == "4096"
