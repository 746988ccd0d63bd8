"""The audit trail as people read it: who did what, from which state to which, when and why."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import pytest
from pretend import register
from queue_driver import ENVIRONMENT, Queue
from servers import RealServer
from shell import Shell

from foxqueue.broker import NewJob
from foxqueue.codec import pack
from foxqueue.submission import user

ME = user()
AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  ")


def told(shell: Shell, *words: str) -> list[str]:
    """The lines of ``foxqueue events`` without their times."""
    lines = shell.fox("events", *words)[0].splitlines()
    assert all(AT.match(line) for line in lines), lines
    return [AT.sub("", line) for line in lines]


def test_every_change_says_what_from_to_by_whom_and_why(shell: Shell, queue: Queue) -> None:
    register(queue)
    jobs = [NewJob("a", "g1@lr", 5, 1, 1000, pack({"v": 1, "argv": ["true"]}))] * 3
    queue.broker.enqueue_many(jobs, ENVIRONMENT, user=ME)
    worker = queue.worker("box-123", "SIM-1-of-a-long-name", ("g1@lr",))
    queue.fail(worker.claim(), delay_ms=60_000)
    shell.fox("pause", "--group", "lr", "--reason", "bad data")
    shell.fox("resume", "--group", "lr")
    shell.fox("pause", "--reason", "upgrade")
    shell.fox("pause", "--device", "SIM-1")
    shell.fox("cancel", "2")
    shell.fox("hold", "3")
    shell.fox("config", "set", "aging", "1h")
    lines = told(shell)
    assert lines[:2] == [
        f"jobs 1-3  enqueue  - -> pending  by {ME}",
        "job 1  claim  pending -> running  by box-123 on SIM-1-of-a-l",
    ]
    assert lines[2] == "job 1  fail  running -> scheduled  exit_code  by box-123"
    assert lines[3:7] == [
        f"group lr  pause  bad data  by {ME}",
        f"group lr  resume  by {ME}",
        f"the queue  pause  upgrade  by {ME}",
        f"device SIM-1  pause  by {ME}",
    ]
    assert lines[7:9] == [
        f"job 2  cancel  pending -> cancelled  by {ME}",
        f"job 3  hold  pending -> blocked  by {ME}",
    ]
    assert lines[9].startswith(f"settings  configure  by {ME}  set=aging")
    assert len(lines) == 10


def test_the_trail_of_one_job_has_what_it_was_enqueued_with_others_by(shell: Shell, queue: Queue) -> None:
    queue.broker.enqueue_many([NewJob("a", "g1", 5, 0, 0, pack({}))] * 3, ENVIRONMENT)
    queue.broker.cancel(2, "", ME)
    queue.broker.cancel(1, "", "bob")
    assert [line.split("  ")[1] for line in told(shell, "--job", "2")] == ["enqueue", "cancel"]
    found = shell.json("events", "--job", "2")
    assert found[0] | {"id": "", "at": ""} == found[0] | {"id": "", "at": "", "job": 1, "count": 3, "event": "enqueue"}
    assert set(found[0]) == {
        *("id", "at", "event", "job", "count", "from", "to", "reason", "by", "worker", "device", "fence", "scope"),
        "more",
    }
    assert (found[1]["from"], found[1]["to"], found[1]["by"]) == ("pending", "cancelled", ME)
    assert shell.fox("events", "--job", "9") == ("", "foxqueue: no events of job 9 are kept\n")
    assert shell.json("events", "--job", "9") == []
    shell.fox("events", "--job", "x", code=2)


def test_a_limit_gives_the_newest(shell: Shell, queue: Queue) -> None:
    assert shell.json("events") == []
    for _ in range(1200):
        queue.enqueue()
    assert [event["job"] for event in shell.json("events", "--limit", "3")] == [1198, 1199, 1200]
    assert len(shell.json("events")) == 100
    assert [event["job"] for event in shell.json("events", "--limit", "1100")] == list(range(101, 1201))
    assert [event["job"] for event in shell.json("events", "--job", "2")] == [2], "far behind the first page"


def test_what_others_wrote_moves_no_cursor(shell: Shell, queue: Queue) -> None:
    queue.broker.redis.xadd(queue.broker.keys.events, {"event": "\x1b[31mred", "job": "x", "note": "\x07", "to": ""})
    assert told(shell) == ["-  \\x1b[31mred  note=\\x07"]


# --- followed --------------------------------------------------------------------------------------------


class Followed:
    """``foxqueue events -f`` in a process of its own, read line by line."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self.process = shell.start("events", "-f", *words)
        self._lines: SimpleQueue[str] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line.decode())

    def next(self, seconds: float = 20.0) -> str:
        return self._lines.get(timeout=seconds).rstrip("\n")

    def nothing(self) -> bool:
        try:
            self._lines.get(timeout=0.2)
        except Empty:
            return True
        return False

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20) == 130
        assert self.process.stderr and b"Traceback" not in self.process.stderr.read()


@pytest.fixture
def follow(shell: Shell) -> Callable[..., Followed]:
    return lambda *words: Followed(shell, *words)


def test_events_are_followed_from_the_newest_on(queue: Queue, follow: Callable[..., Followed]) -> None:
    for _ in range(5):
        queue.enqueue()
    followed = follow("--limit", "2")
    assert ["job 4" in followed.next(), "job 5" in followed.next()] == [True, True]
    queue.broker.cancel(1, "", "bob")
    assert followed.next().endswith("job 1  cancel  pending -> cancelled  by bob")
    followed.end()
    one = follow("--job", "2", "--json")
    assert json.loads(one.next())["event"] == "enqueue"
    queue.broker.cancel(3, "", "bob")
    queue.broker.cancel(2, "", "bob")
    assert json.loads(one.next())["event"] == "cancel" and one.nothing()
    one.end()


def test_following_goes_on_over_an_outage_and_tells_each_event_once(tmp_path: Path) -> None:
    with RealServer(None, tmp_path / "s") as own:
        shell = Shell(own, tmp_path)
        queue = Queue(own.url, "test")
        followed = Followed(shell)
        jobs = [queue.enqueue()]
        numbers = [enqueued(followed.next())]
        for _ in range(2):
            own.restart(crash=False)
            jobs += [queue.enqueue() for _ in range(3)]
            numbers += [enqueued(followed.next()) for _ in range(3)]
        assert numbers == jobs and followed.nothing()
        followed.end()
        queue.broker.close()


def enqueued(line: str) -> int:
    match = re.search(r"job (\d+)  enqueue", line)
    assert match, line
    return int(match[1])
