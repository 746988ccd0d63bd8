"""A runner with a command under a lease: it shares what the caller has, and ends when the caller is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runners import PYTHON, Rig
from wait import until

from foxqueue.processes import marked
from foxqueue.rundirs import MARK
from workers.runs import spawn_runner


class Shared:
    """A runner, and the streams that its command shares with the caller."""

    def __init__(self, place: Path) -> None:
        self.rig = Rig(place)
        self.stdin, self.into = os.pipe()
        self.out, self.stdout = os.pipe()
        self.directory = os.open(place, os.O_PATH | os.O_DIRECTORY)

    def start(self, argv: Sequence[str], *, group: int | None = None, ignored: Sequence[int] = (), **more: Any) -> None:
        order = {"run_dir": None, "feed_until": None, "cwd": ".", "umask": 0, **more}
        fds = [self.stdin, self.stdout, self.stdout, self.directory]
        shared = {"group": group, "ignored": list(ignored)}
        self.rig.start(list(argv), lock_fds=fds, shared=shared, **order)
        for descriptor in set(fds):
            os.close(descriptor)

    def read(self) -> bytes:
        """All that the command writes until nobody can write any more."""
        found = b""
        while piece := os.read(self.out, 4096):
            found += piece
        return found


@contextmanager
def shared_in(place: Path) -> Iterator[Shared]:
    made = Shared(place)
    try:
        yield made
    finally:
        os.close(made.into)
        os.close(made.out)
        made.rig.close()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    with shared_in(tmp_path) as made:
        yield made


def test_streams_directory_and_umask_are_the_callers(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with shared_in(tmp_path) as shared:
            shared.start(["sh", "-c", "umask; pwd; cat; echo err >&2"])
            os.write(shared.into, b"typed\n")
            os.close(shared.into)
            assert shared.read() == f"0027\n{tmp_path}\ntyped\nerr\n".encode()
            record = shared.rig.ended()
            shared.into = os.open("/dev/null", os.O_RDONLY)
    finally:
        os.umask(before)
    assert (record["exit_code"], record["output_bytes"]) == (0, 0)
    assert not list(shared.rig.run_dir.iterdir())


def test_who_reads_sees_the_end_when_the_command_has_closed_its_side(shared: Shared) -> None:
    shared.start([*PYTHON, "import os, time; os.close(1); os.close(2); time.sleep(60)"])
    assert shared.read() == b""
    assert not any(message["op"] == "exited" for message in shared.rig.heard)


def test_no_other_descriptor_goes_along(shared: Shared) -> None:
    shared.start([*PYTHON, "import os; print(os.listdir('/proc/self/fd'))"])
    assert shared.read() == b"['0', '1', '2', '3']\n"


def test_without_a_terminal_it_has_a_session_of_its_own(shared: Shared) -> None:
    shared.start(["sleep", "60"])
    pid = shared.rig.wait_for("started")["pid"]
    assert os.getsid(pid) == os.getpgid(pid) == pid


def test_with_one_it_joins_the_callers_group(tmp_path: Path) -> None:
    with shared_in(tmp_path) as shared:
        shared.rig.close()
        shared.rig.handle = spawn_runner(terminal=True)
        shared.start(["sleep", "60"], group=os.getpgrp())
        pid = shared.rig.wait_for("started")["pid"]
        assert (os.getpgid(pid), os.getsid(pid)) == (os.getpgrp(), os.getsid(0))
        assert os.getpgid(shared.rig.handle.pid) == shared.rig.handle.pid
        assert os.getsid(shared.rig.handle.pid) == os.getsid(0)
        shared.rig.handle.kill("cancel", 5)
        assert shared.rig.ended()["signal"] == signal.SIGTERM  # and we, of the same group, are still here


def test_what_the_caller_ignores_is_ignored(shared: Shared) -> None:
    shared.start(["grep", "SigIgn", "/proc/self/status"], ignored=[signal.SIGHUP, signal.SIGINT])
    library = 3 << 31
    assert int(shared.read().split()[1], 16) & ~library == (1 << signal.SIGHUP - 1) | (1 << signal.SIGINT - 1)


def test_signals_are_passed_on_to_its_group(shared: Shared) -> None:
    code = "import os, signal, time; signal.signal(2, lambda *_: os.write(1, b'int'))\nif os.fork(): os.wait()\n"
    shared.start([*PYTHON, code + "else:\n os.write(1, b'ready')\n while True: time.sleep(60)"])
    assert os.read(shared.out, 5) == b"ready"
    shared.rig.handle.signal(signal.SIGINT)
    assert [os.read(shared.out, 3) for _ in range(2)] == [b"int", b"int"]


def test_nobody_has_to_feed_it(shared: Shared) -> None:
    shared.start([*PYTHON, "import time; time.sleep(0.5); print('done')"], beat_grace_s=0.0)
    assert shared.read() == b"done\n"
    assert shared.rig.ended()["why"] is None


def test_it_ends_with_a_grace_when_the_caller_is_gone(shared: Shared, tmp_path: Path) -> None:
    """C6: given a command whose grandchild ignores TERM and has a session of its own, when its caller dies, then all is
    killed after the grace, and only then the lock drops that the runner shares."""
    code = (
        "import os, signal, time\n"
        "if not os.fork():\n"
        " os.setsid(); signal.signal(15, signal.SIG_IGN); open('ready', 'w').close(); time.sleep(60)\n"
        "time.sleep(60)"
    )
    reader, writer = os.pipe()  # stands for the lock: it ends when the runner closes its share
    fds = [shared.stdin, shared.stdout, shared.stdout, shared.directory, writer]
    order = {"run_dir": None, "feed_until": None, "shared": {"group": None, "ignored": []}, "grace_s": 0.4}
    shared.rig.start([*PYTHON, code], lock_fds=fds, **order)
    for descriptor in set(fds):
        os.close(descriptor)
    until((tmp_path / "ready").exists)
    began = time.monotonic()
    shared.rig.handle.channel.close()
    assert os.read(reader, 1) == b""
    assert time.monotonic() - began >= 0.4
    assert not marked(MARK, shared.rig.mark)
    os.close(reader)


def test_a_caller_that_is_gone_before_it_starts(shared: Shared) -> None:
    shared.rig.wait_for("ready")
    os.kill(shared.rig.handle.pid, signal.SIGSTOP)
    shared.start(["touch", "made"])
    shared.rig.handle.channel.close()
    os.kill(shared.rig.handle.pid, signal.SIGCONT)
    assert shared.rig.handle.process.wait(10) == 0
    assert shared.read() == b""
    assert not (shared.rig.run_dir.parents[3] / "made").exists()


@pytest.mark.parametrize(
    ("argv", "not_found", "words"),
    [
        (["no-such-command-at-all"], True, "was not found in your PATH"),
        (["./none"], True, "does not exist here"),
        (["./plain"], False, "chmod \\+x"),
    ],
)
def test_what_cannot_be_started(shared: Shared, tmp_path: Path, argv: list[str], not_found: bool, words: str) -> None:
    (tmp_path / "plain").write_text("no\n")
    shared.start(argv)
    record = shared.rig.ended()
    assert record["not_found"] is not_found
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(record["error"])


def test_its_time_is_over(shared: Shared) -> None:
    shared.start(["sleep", "60"], time_limit_s=0.3)
    record = shared.rig.ended()
    assert (record["why"], record["signal"]) == ("timeout", signal.SIGTERM)
