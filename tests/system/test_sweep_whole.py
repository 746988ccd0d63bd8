"""A sweep is in the queue as a whole or not at all, whatever ends it half way."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cutter import Cutter
from pretend import register
from queue_driver import Queue
from servers import RealServer
from shell import Shell
from wait import until

from foxqueue import (
    Client,
    GroupExists,
    JobNotFound,
    OutcomeUnknown,
    QueueFull,
    ServerUnavailable,
    Unsatisfiable,
    sender,
)
from foxqueue.broker import CHUNK_JOBS
from foxqueue.scripts import load

TRAIN = ("--", "train", "--lr", "{lr}", "--bs={bs}")
GRID = ("--param", "lr=1e-3,1e-4", "--param", "bs=32,64")


def echo(count: int) -> dict[str, Any]:
    return {"argv": ["echo", "{n}"], "params": {"n": range(count)}, "max_runs": count}


def unseen(fox: Client, queue: Queue) -> bool:
    """Nothing can be seen, and nothing starts."""
    assert fox.jobs(limit=1000) == []
    assert fox.stats()["queued_jobs"] == 0
    shapes = [name.decode() for name in queue.broker.redis.hkeys(queue.broker.keys.shapes)]
    assert queue.worker("looks", "GPU-9", ("g1", *shapes)).ask().word == "empty"
    return True


def abandoned(queue: Queue) -> None:
    """As if ten minutes had gone by: sweeps take out what is left of a sweep."""
    redis, keys = queue.broker.redis, queue.broker.keys
    for group in redis.zrange(keys.filling, 0, -1):
        redis.zadd(keys.filling, {group: 1})
    until(lambda: dissolved(queue), 20, "the end of all parts", every=0)


def dissolved(queue: Queue) -> bool:
    """Sweep once; whether nothing of any job or group is left."""
    queue.reap()
    names = {bytes(key).decode().removeprefix(queue.broker.keys.prefix) for key in queue.broker.redis.keys("*")}
    left = {name.partition(":")[0] for name in names}
    return not left & {"job", "spec", "pending", "group", "groups", "members", "filling", "unfinished", "scheduled"}


# Seen as a whole


def test_a_large_sweep_appears_at_once(fox: Client, queue: Queue, server: RealServer, tmp_path: Path) -> None:
    worker = queue.worker(shapes=("g1@big",))
    with Client(server.url, "test", tmp_path) as other:

        def look(done: int, _: int) -> None:
            if done % 2000 == 0:
                assert other.stats()["queued_jobs"] == 0
                assert other.jobs(state="pending") == []
                assert worker.ask().word == "empty"

        sweep = fox.sweep(**echo(20_000), group="big", progress=look)
        assert other.stats()["queued_jobs"] == 20_000
        assert other.inspector.group("big").waiting == 20_000
    assert (sweep.total, sweep.numbers) == (20_000, (range(1, 20_001),))
    assert [worker.tokens(), worker.claim().number] == [["g1@big"], 1]


def killed_in_the_middle(shell: Shell, queue: Queue, number: int) -> tuple[int, str]:
    """Begin a sweep of 50,000, and send a signal when some of it is there. Returns its end and what it said."""
    sweep = shell.start("sweep", "--group", "big", "--each-line", "lines", "--", "echo", "{line}")
    until(lambda: queue.broker.redis.zcard(queue.broker.keys.members("big")) > 1000, 30, "a part", every=0.001)
    sweep.send_signal(number)
    _, err = sweep.communicate(timeout=30)
    assert queue.broker.redis.zcard(queue.broker.keys.members("big")) < 50_000
    return sweep.returncode, err.decode()


@pytest.fixture
def lines(shell: Shell) -> None:
    (shell.directory / "lines").write_text("".join(f"{at}\n" for at in range(50_000)))


@pytest.mark.usefixtures("lines")
def test_a_client_that_is_killed_leaves_nothing(shell: Shell, fox: Client, queue: Queue) -> None:
    assert killed_in_the_middle(shell, queue, signal.SIGKILL)[0] == -signal.SIGKILL
    assert unseen(fox, queue)
    assert shell.json("ls", "--group", "big") == []
    with pytest.raises(GroupExists, match="give the sweep another name"):
        fox.sweep(**echo(3), group="big")
    abandoned(queue)
    assert len(fox.sweep(**echo(3), group="big").jobs()) == 3


@pytest.mark.usefixtures("lines")
def test_control_c_gives_it_up_and_says_so(shell: Shell, fox: Client, queue: Queue) -> None:
    status, err = killed_in_the_middle(shell, queue, signal.SIGINT)
    assert (status, err) == (130, "foxqueue: nothing of big is in the queue\n")
    assert unseen(fox, queue)
    until(lambda: dissolved(queue), 20, "the end of all parts", every=0)


def test_what_progress_raises_gives_it_up(fox: Client, queue: Queue) -> None:
    def stop(done: int, _: int) -> None:
        if done == 2 * CHUNK_JOBS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fox.sweep(**echo(1000), group="a", progress=stop)
    assert caught.value.__notes__ == ["nothing of a is in the queue"]
    assert unseen(fox, queue)
    until(lambda: dissolved(queue), 20, "the end of all parts", every=0)


# The server is away


@pytest.fixture
def cutter(server: RealServer) -> Iterator[Cutter]:
    with Cutter(server.socket, None) as proxy:
        yield proxy


@pytest.fixture
def far(cutter: Cutter, tmp_path: Path, fox: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client behind the cutter that does not try for long."""
    monkeypatch.setattr(sender, "RESEND_S", 0.3)
    with Client(cutter.url, "test", tmp_path) as client:
        yield client


@pytest.mark.parametrize("script", ["enqueue", "open"])
def test_a_lost_answer_changes_nothing(cutter: Cutter, far: Client, fox: Client, script: str) -> None:
    sweep = far.sweep(**echo(250), progress=lambda done, _: done == 100 and cutter.lose("reply", load(script).sha, 1))
    assert cutter.cuts == 1
    assert [job.number for job in fox.jobs(group=sweep.name, limit=1000)] == [*range(1, 251)]


@pytest.mark.parametrize("how", ["reply", "request"])
def test_a_server_that_is_gone_in_the_middle(cutter: Cutter, far: Client, fox: Client, queue: Queue, how: str) -> None:
    with pytest.raises(ServerUnavailable, match="in the midst of the sweep a") as caught:
        far.sweep(
            **echo(1000),
            group="a",
            progress=lambda done, _: done == 200 and cutter.lose(how, load("enqueue").sha, 10_000),
        )
    assert (caught.value.exit_code, caught.value.__notes__) == (75, ["nothing of a is in the queue"])
    assert unseen(fox, queue)
    until(lambda: dissolved(queue), 20, "the end of all parts", every=0)


def test_where_nobody_can_be_told_it_goes_by_itself(cutter: Cutter, far: Client, fox: Client, queue: Queue) -> None:
    with pytest.raises(ServerUnavailable) as caught:
        far.sweep(**echo(1000), group="a", progress=lambda *_: cutter.close())
    (note,) = caught.value.__notes__
    assert note == "nothing of a is in the queue: the server forgets its parts within some ten minutes"
    assert unseen(fox, queue)
    abandoned(queue)


@pytest.mark.parametrize(("how", "there"), [("reply", 250), ("request", 0)])
def test_a_last_step_without_answer_is_in_doubt(
    cutter: Cutter, far: Client, fox: Client, queue: Queue, how: str, there: int
) -> None:
    with pytest.raises(OutcomeUnknown) as caught:
        far.sweep(**echo(250), group="a", progress=lambda *_: cutter.lose(how, load("open").sha, 10_000))
    assert "nothing of a is in the queue, unless its last step was done" in caught.value.__notes__[0]
    assert fox.stats()["queued_jobs"] == there


def test_when_the_last_step_was_done_it_says_so(fox: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_group = fox.broker.open_group

    def interrupted(*given: Any) -> str:
        assert open_group(*given) == "ok"
        raise KeyboardInterrupt

    monkeypatch.setattr(fox.broker, "open_group", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        fox.sweep(**echo(3), group="a")
    assert caught.value.__notes__ == ["all of a is in the queue: foxqueue cancel --group a takes it out"]
    assert fox.stats()["queued_jobs"] == 3


def test_a_group_that_the_server_gave_up_meanwhile_is_not_shown_in_part(fox: Client, queue: Queue) -> None:
    with pytest.raises(ServerUnavailable, match="has given up a, of which it had not heard for long"):
        fox.sweep(**echo(300), group="a", progress=lambda done, _: done == 200 and abandoned(queue))
    assert unseen(fox, queue)
    until(lambda: dissolved(queue), 20, "the end of all parts", every=0)


# Refused by the server


def parents_unknown(_: Queue) -> dict[str, Any]:
    return {"after": 77}


def no_such_device(queue: Queue) -> dict[str, Any]:
    register(queue, "SIM-1")
    return {"gpu_memory": "80G"}


@pytest.mark.parametrize(
    ("prepare", "error"), [(parents_unknown, JobNotFound), (no_such_device, Unsatisfiable)], ids=["parents", "device"]
)
def test_what_the_server_refuses_is_not_in_the_queue(
    fox: Client, queue: Queue, prepare: Callable[[Queue], dict[str, Any]], error: type[Exception]
) -> None:
    options = prepare(queue)
    with pytest.raises(error):
        fox.sweep(**echo(250), **options)
    assert unseen(fox, queue)
    assert dissolved(queue)


def test_a_group_of_that_name_is_left_alone(fox: Client, shell: Shell) -> None:
    fox.sweep(**echo(3), group="a")
    _, err = shell.fox("sweep", "--group", "a", *GRID, *TRAIN, code=1)
    assert "there is a group 'a': give the sweep another name" in err
    assert "foxqueue: the sweep was not submitted\n" in err and "nothing of" not in err
    assert fox.inspector.group("a").total == 3


def test_a_queue_that_gets_full_takes_none_of_it(fox: Client, shell: Shell, queue: Queue) -> None:
    shell.fox("config", "set", "max_unfinished", "250")
    with pytest.raises(QueueFull) as caught:
        fox.sweep(**echo(300), group="a")
    assert (caught.value.limit, caught.value.current) == (250, 200)
    assert caught.value.__notes__ == ["nothing of a is in the queue"]
    assert unseen(fox, queue)
    until(lambda: dissolved(queue), 20, "the end of all parts", every=0)
    _, err = shell.fox("sweep", "--group", "b", "--each-line", "/etc/services", "--", "echo", "{line}", code=75)
    assert err.splitlines()[-2].startswith("foxqueue: nothing of b is in the queue")
    assert err.splitlines()[-1].startswith("foxqueue: the queue is full")
    assert "needs room for all: try later, or give fewer values" in err and "--block" not in err
