"""`up`, `down` and `server` with real processes; what they start as a worker is a stand-in that obeys the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import RealServer
from supervised import Home
from wait import until

from foxqueue.broker import Broker
from foxqueue.config import load_config
from foxqueue.errors import InvalidInput
from foxqueue.locks import DeviceLock
from foxqueue.places import read_json
from foxqueue.processes import ProcessId
from foxqueue.server import find_server
from workers.keeper import Backoff, up_seat
from workers.supervisor import serve


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def server_pid(home: Home) -> int:
    return int(read_json(home.config.machine_dir / "server" / "server.json")["process"]["pid"])


# --- up -----------------------------------------------------------------------------------------------


def test_runs_a_worker_per_device_and_ends_all_on_sigterm(home: Home) -> None:
    up = home.up()
    starts = home.notes("start")
    assert len(starts) == 2 and len({device for _, device, _ in starts}) == 2
    assert "sim:0  simulated GPU 24G" in home.said and starts[0][1] in home.said and "2 of 2 workers ready" in home.said
    assert {os.getsid(pid) for _, _, pid in starts} == {pid for _, _, pid in starts}
    up.terminate()
    assert up.wait(30) == 0
    assert len(home.notes("end")) == 2 and not home.workers()
    assert find_server(home.config) is None and not up_seat(home.config).taken()


def test_worker_that_dies_runs_again_at_once(home: Home) -> None:
    home.up()
    _, device, pid = home.notes("start")[0]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(home.notes("start")) == 3, what="another start", every=0.005)
    assert home.notes("start")[2][1] == device
    assert time.monotonic() - began < 1.5  # 0.2 s of ours; the rest is Python's start-up on a busy machine
    until(lambda: "was killed by SIGKILL; starting it again" in home.said, what="the message")
    recorded = lambda: {worker["pid"] for worker in up_seat(home.config).read()["workers"]}  # noqa: E731
    until(lambda: recorded() == set(home.workers()), what="the new worker in up.json")


def test_quick_deaths_slow_down(home: Home) -> None:
    home.order("crash")
    home.start("up", simulate="1x24G")
    until(lambda: len(home.notes("start")) >= 3, what="three starts", seconds=20)
    began, before = time.monotonic(), len(home.notes("start"))
    until(lambda: time.monotonic() - began > 1.5, what="time passing")
    assert len(home.notes("start")) - before <= 3


def test_delays_between_restarts() -> None:
    backoff = Backoff()
    assert [backoff.after(0.1) for _ in range(9)] == [0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert [backoff.after(60), backoff.after(60), backoff.after(0)] == [0, 0, 0.2]


def test_nothing_runs_where_every_device_is_refused_from_the_start(home: Home) -> None:
    home.order("refuse")
    assert home.run("up") == 1
    assert len(home.notes("start")) == 2
    assert "refused" in home.said and "nothing is left to run" in home.said
    assert find_server(home.config) is None


def test_refusal_of_the_only_worker_after_it_was_ready_is_not_the_end(home: Home) -> None:
    up = home.up(simulate="1x24G", again_s=0.3)
    home.order("refuse")
    os.kill(home.workers()[0], signal.SIGKILL)
    until(lambda: len(home.notes("start")) > 3, what="several refusals")
    assert up.poll() is None and find_server(home.config)
    assert home.said.count("was refused to its worker, see above: trying again every 0.3 s") == 1
    (home.directory / "refuse").unlink()
    until(home.workers, what="a worker again")
    up.terminate()
    assert up.wait(30) == 0


def test_device_that_another_home_serves_is_taken_when_it_is_free(home: Home) -> None:
    up = home.up(again_s=0.3)
    _, device, pid = home.notes("start")[0]
    lock = hold(home, device, {"home": "/elsewhere", "namespace": "theirs", "user": "somebody"}, instead_of=pid)
    text = "is served by another worker (pid unknown of user somebody, namespace theirs, home /elsewhere)"
    until(lambda: text in home.said, what="who has it")
    starts = len(home.notes("start"))
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.0, what="several looks")
    assert home.said.count(text) == 1 and len(home.notes("start")) == starts and len(home.workers()) == 1
    lock.release()
    until(lambda: len(home.workers()) == 2, what="a worker of ours")
    assert up.poll() is None


def test_worker_of_this_home_that_came_first_is_watched_instead(home: Home) -> None:
    """The holder has the lock, and writes down who it is only when a worker of ours was refused for it."""
    up = home.up(again_s=0.3)
    _, device, pid = home.notes("start")[0]
    lock = hold(home, device, {}, instead_of=pid)
    until(lambda: home.notes("held"), what="a refusal")
    script = "import sys, time; time.sleep(300)"
    other = subprocess.Popen([sys.executable, "-S", "-c", script])
    home.started.append(other)
    process = ProcessId.of(other.pid)
    assert process
    lock.write({"process": process.to_dict(), "home": str(home.config.home), "namespace": home.config.namespace})
    recorded = lambda: {worker["pid"] for worker in up_seat(home.config).read()["workers"]}  # noqa: E731
    until(lambda: other.pid in recorded(), what="the other worker in up.json")
    assert f"that this foxqueue up did not start (pid {other.pid})" in home.said
    other.kill()
    other.wait()
    lock.release()
    until(lambda: len(home.workers()) == 2, what="a worker of ours")
    assert up.poll() is None


def hold(home: Home, device: str, record: dict[str, str], *, instead_of: int) -> DeviceLock:
    """Kill a worker, and have its device's lock before its successor."""
    lock = DeviceLock(device, "worker", [home.config.machine_dir / "locks"])
    up = home.started[-1]
    up.send_signal(signal.SIGSTOP)
    os.kill(instead_of, signal.SIGKILL)
    until(lock.acquire, what="the lock")
    lock.write(record)
    up.send_signal(signal.SIGCONT)
    return lock


def test_server_that_dies_runs_again_with_its_data(home: Home) -> None:
    home.up()
    url = find_server(home.config)
    assert url
    Broker.connect(url, "default").redis.set("kept", 1)
    for _ in range(3):
        pid = server_pid(home)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: server_pid(home) != pid and find_server(home.config), what="the server", seconds=10)
        assert time.monotonic() - began < 3
    assert Broker.connect(url, "default").redis.get("kept") == b"1"
    assert len(home.notes("start")) == 2


def test_second_up_names_the_first(home: Home) -> None:
    up = home.up()
    assert home.run("up") == 1
    assert f"already runs for {home.config.machine_dir} (pid {up.pid})" in home.said
    assert home.run("up", detach=True) == 1
    assert up.poll() is None and len(home.notes("start")) == 2


def test_leftovers_of_a_power_cut_do_not_stop_it(home: Home) -> None:
    home.config.machine_dir.mkdir(parents=True)
    stranger = subprocess.Popen(["sleep", "60"])
    home.started.append(stranger)
    record = {"process": {"pid": stranger.pid, "start": 1, "boot_id": "another", "pid_ns": "x"}, "ready": False}
    (home.config.machine_dir / "up.json").write_text(json.dumps(record))
    (home.config.machine_dir / "up.lock").touch()
    assert home.run("down") == 0 and "nothing was running" in home.said
    home.up()
    assert stranger.poll() is None


def test_ctrl_c_reaches_up_alone(home: Home) -> None:
    up = home.up()
    os.killpg(up.pid, signal.SIGINT)
    assert up.wait(30) == 0
    assert sorted(word for word, _, _ in home.notes("signal")) == ["signal-SIGTERM"] * 2


@pytest.mark.parametrize("needed", [2, 99])
def test_further_signals_are_passed_on_and_the_third_kills(home: Home, needed: int) -> None:
    home.order("stubborn", str(needed))
    up = home.up()
    up.terminate()
    until(lambda: len(home.notes("signal")) == 2, what="the first SIGTERM")
    assert up.poll() is None and find_server(home.config)  # the server lives as long as a worker may need it
    up.send_signal(signal.SIGINT)
    until(lambda: len(home.notes("signal")) == 4, what="the second SIGTERM")
    if needed > 2:
        assert up.poll() is None
        up.terminate()
    assert up.wait(30) == 0
    assert not home.workers() and len(home.notes("end")) == (2 if needed == 2 else 0)


def test_no_device_says_the_cure_and_starts_nothing(home: Home) -> None:
    assert home.run("up", simulate=None) == 1
    assert "no device found: --simulate 2x24G or --cpu 2" in home.said
    assert not (home.config.machine_dir / "server").exists()


def test_with_a_url_no_server_is_started(tmp_path: Path) -> None:
    with RealServer(None, tmp_path / "theirs", "--requirepass", "s3cret") as server:
        home = Home(tmp_path, server.url)
        try:
            assert home.run("up") == 1  # no password yet
            assert "FOXQUEUE_PASSWORD" in home.said and "s3cret" not in home.said
            home.environ["FOXQUEUE_PASSWORD"] = "s3cret"
            up = home.up(lease_ttl_ms=2000)
            settings = Broker.connect(server.url, "default", "s3cret").settings()
            assert (settings.ttl_ms, settings.beat_ms) == (2000, 666)
            assert not (home.config.machine_dir / "server").exists()
            up.terminate()
            assert up.wait(30) == 0 and "s3cret" not in home.said
            assert Broker.connect(server.url, "default", "s3cret").redis.ping()
        finally:
            home.close()


# --- after a SIGKILL of up ----------------------------------------------------------------------------


def test_next_up_takes_over_workers_that_live_on(home: Home) -> None:
    home.up().kill()
    until(lambda: not up_seat(home.config).taken(), what="the end of up")
    left = home.workers()
    assert len(left) == 2 and find_server(home.config)
    (home.config.machine_dir / "up.json").unlink()
    up = home.up()
    assert len(home.notes("start")) == 2 and "did not start (pid" in home.said
    os.kill(left[0], signal.SIGKILL)
    until(lambda: len(home.notes("start")) == 3, what="a worker in its place")
    up.terminate()
    assert up.wait(30) == 0
    assert not home.workers()


@pytest.mark.parametrize("known_by", ["up.json", "lock"])
def test_down_ends_workers_that_live_on(home: Home, known_by: str) -> None:
    home.up().kill()
    until(lambda: not up_seat(home.config).taken(), what="the end of up")
    workers = home.workers()
    assert len(workers) == 2
    if known_by == "lock":
        (home.config.machine_dir / "up.json").unlink()
    else:
        for _, device, _ in home.notes("start"):
            path = DeviceLock(device, "worker", [home.config.machine_dir / "locks"]).paths[0]
            path.write_text("")
    os.kill(workers[0], signal.SIGSTOP)  # it takes the SIGTERM only when it goes on
    assert home.run("down") == 0
    assert not home.workers() and len(home.notes("end")) == 2 and find_server(home.config) is None


def test_a_server_that_dies_while_up_begins_is_waited_for(home: Home) -> None:
    up = home.up(server_dies=True)
    assert len(home.workers()) == 2 and "our own server had ended and runs again" in home.said
    up.terminate()
    assert up.wait(30) == 0


# --- down ---------------------------------------------------------------------------------------------


def test_down_ends_a_foreground_up(home: Home) -> None:
    up = home.up(lingers_s=0.5)
    assert home.run("down") == 0
    assert up.poll() == 0, "its process ran on after down"
    assert not home.workers() and find_server(home.config) is None
    assert home.run("down") == 0
    assert "nothing was running" in home.said


# --- up --detach --------------------------------------------------------------------------------------


def test_detached_up_returns_when_all_have_registered(home: Home) -> None:
    assert home.run("up", detach=True) == 0
    assert len(home.workers()) == 2 and "2 of 2 workers ready, in the background" in home.said
    holder = up_seat(home.config).holder()
    assert holder and os.getsid(holder.pid) != holder.pid  # it can never get a terminal
    assert holder.send(signal.SIGHUP)
    assert "sim:0" in (home.config.machine_dir / "up.log").read_text()
    assert home.run("down") == 0
    assert "signal-SIGHUP" not in {word for word, _, _ in home.notes("signal")}
    assert not home.workers() and not holder.alive()


def test_detached_up_that_fails_shows_why(home: Home) -> None:
    assert home.run("up", detach=True, simulate="2xnothing") == 2
    assert "is not understood" in home.said and "it did not come up" in home.said
    home.order("refuse")
    assert home.run("up", detach=True) == 1
    assert "nothing is left to run" in home.said and find_server(home.config) is None


# --- server -------------------------------------------------------------------------------------------


def test_foreground_server_comes_again_and_waits_for_up(home: Home) -> None:
    server = home.start("serve")
    until(lambda: find_server(home.config), what="the server")
    home.order("stubborn", "2")
    up = home.up()
    pid = server_pid(home)
    os.kill(pid, signal.SIGKILL)
    until(lambda: server_pid(home) != pid and find_server(home.config), what="the server again")
    for process in (server, up):
        process.terminate()
    until(lambda: "waiting up to 75 s" in home.said and len(home.notes("signal")) == 2, what="the end to begin")
    assert server.poll() is None and find_server(home.config)
    up.terminate()
    assert up.wait(30) == 0 and server.wait(30) == 0
    assert find_server(home.config) is None


def test_up_leaves_the_server_to_a_foreground_one(home: Home) -> None:
    server = home.start("serve")
    until(lambda: "answers on" in home.said, what="the server")
    pid = server_pid(home)
    up = home.up()
    up.terminate()
    assert up.wait(30) == 0
    assert find_server(home.config) and server_pid(home) == pid and server.poll() is None
    assert home.run("serve") == 1
    assert "foxqueue server already runs" in home.said
    assert home.run("down") == 0 and server.wait(5) == 0
    assert find_server(home.config) is None


def test_foreground_server_refuses_beside_a_configured_one(tmp_path: Path) -> None:
    config = load_config(url="redis://:secret@localhost:1/0", home=tmp_path, environ={}, cwd=tmp_path)
    with pytest.raises(InvalidInput, match=r"redis://:\*\*\*@localhost.*nothing is started"):
        serve(config)
