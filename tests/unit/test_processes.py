"""A process is named so that no other can be mistaken for it, and marked ones are found and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from wait import until

import foxqueue.processes as processes
from foxqueue.processes import ProcessId, children, descendants, kill_marked, marked, parent_of

Spawn = Callable[..., "subprocess.Popen[bytes]"]
MARK = "FOXQUEUE_RUN"


@pytest.fixture
def value() -> str:
    return f"{uuid.uuid4().hex}/1-2/3"


@pytest.fixture
def spawn(value: str) -> Iterator[Spawn]:
    made: list[subprocess.Popen[bytes]] = []

    def start(*command: str, wait_for: bytes = b"") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, env={"PATH": os.environ["PATH"], MARK: value}, stdout=subprocess.PIPE, bufsize=0
        )
        made.append(process)
        assert process.stdout is not None
        if wait_for:
            assert process.stdout.readline() == wait_for
        return process

    yield start
    assert kill_marked(MARK, value, 0, 10)
    for process in made:
        process.kill()
        process.communicate()


@pytest.fixture(params=["kernel's list", "scan"])
def listing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "scan":
        monkeypatch.setattr(processes, "_tells_children", lambda: False)


def identity(process: subprocess.Popen[bytes]) -> ProcessId:
    found = ProcessId.of(process.pid)
    assert found is not None
    return found


def test_own_identity() -> None:
    own = ProcessId.of()
    assert own is not None
    assert own.pid == os.getpid()
    assert own.start > 0
    assert own.alive()
    assert ProcessId.from_dict(own.to_dict()) == own


def test_life_of_a_child(spawn: Spawn) -> None:
    child = spawn("sleep", "60")
    who = identity(child)
    assert who.alive()
    assert who.send(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not who.alive()  # a zombie: its number is there and it is not
    assert not who.send(signal.SIGKILL)
    assert ProcessId.of(child.pid) == who
    child.wait()
    assert not who.alive()
    assert ProcessId.of(child.pid) is None


def test_another_life_of_the_number_is_not_signalled(spawn: Spawn) -> None:
    child = spawn("sleep", "60")
    who = identity(child)
    for stranger in (replace(who, start=who.start - 1), replace(who, boot_id="another boot")):
        assert not stranger.alive()
        assert not stranger.send(signal.SIGKILL)
    elsewhere = replace(who, pid_ns="pid:[1]")
    assert elsewhere.alive()  # cannot be judged
    assert not elsewhere.send(signal.SIGKILL)
    assert child.poll() is None


def test_send_without_pidfd(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise OSError(38, "not here")

    monkeypatch.setattr(processes.os, "pidfd_open", refused)
    child = spawn("sleep", "60")
    assert identity(child).send(signal.SIGTERM)
    assert child.wait(5) == -signal.SIGTERM


def test_a_name_that_looks_like_the_rest_of_the_line(spawn: Spawn, tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    child = spawn(str(program), "60")
    until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "a) S 1 (b\n", what="its name")
    assert parent_of(child.pid) == os.getpid()
    assert identity(child).alive()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"pid": 1, "start": 2, "boot_id": "b"},
        {"pid": "1", "start": 2, "boot_id": "b", "pid_ns": "n"},
        {"pid": True, "start": 2, "boot_id": "b", "pid_ns": "n"},
        {"pid": 0, "start": 2, "boot_id": "b", "pid_ns": "n"},
        {"pid": -1, "start": 2, "boot_id": "b", "pid_ns": "n"},
        None,
        [],
        "text",
    ],
)
def test_malformed_identity(data: object) -> None:
    with pytest.raises(ValueError):
        ProcessId.from_dict(data)  # type: ignore[arg-type]


def test_an_identity_from_a_newer_version_is_read() -> None:
    own = ProcessId.of()
    assert own is not None
    assert ProcessId.from_dict({**own.to_dict(), "more": 1}) == own


@pytest.mark.usefixtures("listing")
def test_children_and_descendants(spawn: Spawn) -> None:
    shell = spawn("sh", "-c", "sleep 60 & setsid sh -c 'sleep 60 & echo up; wait' & wait", wait_for=b"up\n")
    below = until(lambda: len(found := descendants(shell.pid)) == 3 and found, what="three descendants")
    assert set(children(shell.pid)) < set(below)
    assert len(children(shell.pid)) == 2
    assert shell.pid in children(os.getpid())
    assert set(below) < set(descendants(os.getpid()))
    assert shell.pid not in below
    assert children(2**22 + 1) == descendants(2**22 + 1) == []


def test_marked(spawn: Spawn, value: str) -> None:
    child = spawn("sh", "-c", "echo up; exec sleep 60", wait_for=b"up\n")
    until(lambda: marked(MARK, value) == [child.pid], what="the mark")  # in the midst of exec it has no environment
    assert marked(MARK, value[:-1]) == marked(MARK, value + "x") == []
    assert marked(MARK[1:], value) == []
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert marked(MARK, value) == []


def test_kill_marked_asks_first(spawn: Spawn, value: str) -> None:
    child = spawn("sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done", wait_for=b"up\n")
    assert kill_marked(MARK, value, 10, 20)
    assert child.wait() == 7


def test_kill_marked_kills_what_does_not_listen(spawn: Spawn, value: str) -> None:
    body = "trap '' TERM; setsid env -i sh -c 'sleep 60' & echo up; while :; do sleep 0.05; done"
    child = spawn("sh", "-c", body, wait_for=b"up\n")
    stray = until(lambda: [pid for pid in descendants(child.pid) if pid not in marked(MARK, value)], what="the stray")
    who = [ProcessId.of(pid) for pid in stray]
    assert kill_marked(MARK, value, 0.2, 10)
    assert child.wait() == -signal.SIGKILL
    until(lambda: not any(process and process.alive() for process in who), what="the stray's end")


def test_kill_marked_catches_what_forks_anew_every_few_milliseconds(spawn: Spawn, value: str) -> None:
    code = """
import os, time
os.write(1, b'up\\n')
while True:
    if os.fork(): os._exit(0)
    os.setsid(); time.sleep(0.003)
"""
    spawn(sys.executable, "-S", "-c", code, wait_for=b"up\n")
    assert kill_marked(MARK, value, 0, 10)
    assert marked(MARK, value) == []


def test_kill_marked_spares_the_caller(value: str) -> None:
    script = (
        "import os, sys; from foxqueue.processes import kill_marked\n"
        "print(kill_marked('FOXQUEUE_RUN', os.environ['FOXQUEUE_RUN'], 0, 5))"
    )
    environ = {**os.environ, MARK: value}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, check=True)
    assert done.stdout == b"True\n"


def test_kill_marked_gives_up(spawn: Spawn, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = spawn("sleep", "60")
    until(lambda: marked(MARK, value), what="the mark")
    with monkeypatch.context() as patch:
        patch.setattr(ProcessId, "send", lambda self, signum: False)
        assert not kill_marked(MARK, value, 0, 0.1)
    assert child.poll() is None


def test_subreaper_inherits_orphans() -> None:
    script = """
import os, time
from foxqueue.processes import become_subreaper, children
become_subreaper()
if os.fork() == 0:
    if os.fork() == 0: time.sleep(60)
    os._exit(0)
os.wait()
[orphan] = children(os.getpid())
os.kill(orphan, 9)
assert os.waitpid(orphan, 0)[0] == orphan
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
