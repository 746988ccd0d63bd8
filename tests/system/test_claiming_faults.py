"""Claims of custom workers against other workers, dead and stopped processes, and a server that is away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from claims import Custom, claim, device_of
from cutter import Cutter
from queue_driver import Queue
from servers import RealServer
from stack import Stack, is_stopped
from wait import until

from foxqueue import Client, DeviceHeld, LeaseLost
from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId
from foxqueue.scripts import load
from foxqueue.seat import OUTCOMES
from workers.record import RECORD_NAME, REPORT_NAME

DEVICE = ("--simulate", "2x24G")


def locks(fox: Client) -> tuple[DeviceLock, DeviceLock]:
    """The seat and the device's own lock, as anybody else sees them."""
    place = fox.config.machine_dir / "locks"
    device = device_of(fox).uuid
    return DeviceLock(device, "worker", [place]), DeviceLock(device, "gpu", [place])


# --- one worker a device ---------------------------------------------------------------------------------------


def test_a_device_that_a_worker_serves_is_refused_at_once(stack: Stack) -> None:
    stack.up()
    fox = stack.api
    began = time.monotonic()
    with pytest.raises(DeviceHeld, match=r"device sim:0 \(SIM-.*\) is served by worker .* \(pid [0-9]+ of user"):
        claim(fox, None).__enter__()
    assert time.monotonic() - began < 2
    number = stack.queue("true")
    assert stack.await_state(number, "succeeded")["state"] == "succeeded"  # the worker was not disturbed


def test_a_worker_is_refused_while_a_claim_has_the_device(stack: Stack) -> None:
    stack.serve()
    fox = stack.api
    fox.submit(["a"])
    with claim(fox):
        process = stack.start_worker("sim:0", *DEVICE)
        assert stack.exit_status(process.pid) != 0
        assert f"pid {os.getpid()} of user" in stack.log("worker")
    stack.start_worker("sim:0", *DEVICE)
    assert stack.await_state(stack.queue("true"), "succeeded")


def test_down_leaves_a_custom_worker_alone(stack: Stack) -> None:
    stack.up("--simulate", "1x24G", workers=1)
    fox = stack.api
    with claim(fox, 0, "sim:1") as run:
        assert run is None
        assert fox.submit(["sleep", "0"]).wait(20).succeeded
    custom = Custom(fox, "say('in'); input()", "sim:1")
    with custom:
        until(lambda: fox.redis.zcard(fox.broker.keys.idle) == 2, 10, "both idle")
        stack.fox("down")
        assert custom.process.poll() is None


# --- other claims ----------------------------------------------------------------------------------------------


def test_another_process_waits_for_the_device(fox: Client) -> None:
    first, second = fox.submit(["a"]), fox.submit(["b"])
    with Custom(fox, "input()") as custom:
        assert custom.says() == f"got {first.number}"
        with claim(fox, 0.3) as run:
            assert run is None
        threading.Timer(0.2, custom.go_on).start()
        with claim(fox) as run:
            now = time.monotonic()
            assert run is not None and run.number == second.number
        late_ms = (now - float(custom.says())) * 1000
        print(f"{late_ms:.1f} ms after another process")
        assert late_ms < 500
        assert first.refresh().succeeded and custom.process.wait(10) == 0


def test_who_has_the_device_is_shown_also_when_it_changes_to_and_fro(fox: Client) -> None:
    for _ in range(2):
        fox.submit(["a"])
        with claim(fox):
            (worker,) = fox.workers()
            assert (worker["state"], worker["pid"]) == ("busy", os.getpid())
        fox.submit(["b"])
        with Custom(fox, "say(fox.workers()[0]['pid'])") as custom:
            assert custom.says().startswith("got") and custom.says() == str(custom.process.pid)
            assert custom.process.wait(10) == 0


def test_what_a_dead_process_left_is_ended_and_its_job_runs_again(fox: Client) -> None:
    job = fox.submit(["a"])
    body = "say(subprocess.Popen(['sleep', '60'], env=run.env(), start_new_session=True).pid)\ntime.sleep(60)"
    with Custom(fox, body) as custom:
        assert custom.says() == f"got {job.number}"
        child = ProcessId.of(int(custom.says()))
        custom.process.kill()
        custom.process.wait()
        began = time.monotonic()
        with claim(fox) as run:
            assert run is not None and (run.number, run.attempt) == (job.number, 1)
            assert child is not None and not child.alive()
    assert time.monotonic() - began < 10  # the lease would have lasted for 30
    assert job.refresh().succeeded and job.losses == 1


def test_a_claim_that_a_dead_process_had_not_written_down(fox: Client) -> None:
    job = fox.submit(["a"])
    before = """
import signal
from foxqueue.serving import Serving
Serving._write_down = lambda self, run, claimed: os.kill(os.getpid(), signal.SIGKILL)
"""
    with Custom(fox, "pass", before=before) as custom:
        custom.process.wait(20)
    assert job.refresh().running
    with claim(fox, 5) as run:
        assert run is not None and run.number == job.number


def test_forked_children_of_a_dead_process_keep_the_device(fox: Client) -> None:
    job = fox.submit(["a"])
    body = "child = os.fork()\nif not child: time.sleep(60)\nsay(child)\ntime.sleep(60)"
    with Custom(fox, body) as custom:
        assert custom.says() == f"got {job.number}"
        child = int(custom.says())
        custom.process.kill()
        custom.process.wait()
        with claim(fox, 0.5) as run:
            assert run is None
        os.kill(child, signal.SIGKILL)
        with claim(fox) as run:
            assert run is not None and run.number == job.number


def test_forked_children_neither_end_the_run_nor_keep_the_device(fox: Client) -> None:
    first, second = fox.submit(["a"]), fox.submit(["b"])
    with claim(fox) as run:
        assert run is not None
        child = os.fork()
        if not child:
            try:
                run.complete("from the child")
            except Exception:  # noqa: BLE001 - whatever it is, the child must not go on as a test
                time.sleep(60)
            os._exit(0)
        assert first.refresh().running
    with claim(fox, 5) as run:
        assert run is not None and run.number == second.number
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL  # it was refused, and slept
    assert first.result() is None


def test_an_end_that_only_a_worker_can_tell_is_waited_for(fox: Client, queue: Queue) -> None:
    """Given a worker's run that has ended, its worker dead before it told: the job is not run twice by us."""
    assert set(OUTCOMES) == {RECORD_NAME, REPORT_NAME}
    job = fox.submit(["a"])
    queue.worker(device=device_of(fox).uuid)
    with Custom(fox, "say(fox.config.jobs_dir / run.mark)\nrun.env()\ntime.sleep(60)") as custom:
        assert custom.says() == f"got {job.number}"
        run_dir = Path(custom.says())
        until(run_dir.exists, 5, "its directory")
        custom.process.kill()
        custom.process.wait()
    (run_dir / RECORD_NAME).touch()
    with claim(fox, 0.5) as run:
        assert run is None
    assert job.refresh().running
    queue.overdue(job.number)
    queue.reap()
    with claim(fox) as run:
        assert run is not None and run.number == job.number


def test_another_queues_record_is_nothing_to_tell(fox: Client) -> None:
    seat, gpu = locks(fox)
    with claim(fox, 0):
        pass
    assert gpu.acquire()
    gpu.write({"home": "/elsewhere", "namespace": "x", "job": 1, "mark": "nobody/1-1/1"})
    with claim(fox, 0.2) as run:
        assert run is None
    gpu.release()
    fox.submit(["a"])
    with claim(fox, 5) as run:
        assert run is not None
    assert seat.acquire() and gpu.acquire()
    seat.release(), gpu.release()


# --- a lease that is lost --------------------------------------------------------------------------------------


def test_a_device_that_an_operator_took(fox: Client, queue: Queue) -> None:
    queue.broker.configure(600)
    job = fox.submit(["a"])
    with pytest.raises(LeaseLost, match="its device was taken from it"), claim(fox) as run:
        assert run is not None
        assert fox.broker.force_release(run.device.uuid, "ann")[0] == "ok"
        until(lambda: run.lost, 5, "the loss")
        run.complete("nobody wants it")
    assert run.state == "lost"
    assert job.refresh().state == "failed" and job.reason == "lease_lost"
    fox.submit(["b"])
    with claim(fox, 5) as run:
        assert run is not None


def test_an_error_of_ones_own_is_not_hidden_by_a_lost_lease(fox: Client, queue: Queue) -> None:
    job = fox.submit(["a"])
    with pytest.raises(ZeroDivisionError), claim(fox) as run:
        assert run is not None
        queue.send(queue.broker.lose_call(job.number, run.fence))
        raise ZeroDivisionError
    assert run.state == "lost" and job.refresh().state == "pending"


def test_a_process_that_stood_still_past_its_lease(fox: Client, queue: Queue) -> None:
    queue.broker.configure(600)
    job = fox.submit(["a"])
    body = """
say("in"); input()
say(run.lost)
try: run.complete("late")
except LeaseLost as error: say(error)
"""
    with Custom(fox, body) as custom:
        assert [custom.says(), custom.says()] == [f"got {job.number}", "in"]
        custom.process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(custom.process.pid), 5, "its stop")
        with claim(fox, 20, "sim:1") as run:
            assert run is not None and (run.number, run.attempt) == (job.number, 1)
            custom.process.send_signal(signal.SIGCONT)
            custom.go_on()
            assert custom.says() == "True"
            assert "is no longer this process's" in custom.says()
            assert custom.process.wait(10) != 0  # leaving the block says it again
            run.complete("ours")
    assert job.result(timeout=5) == "ours" and job.refresh().losses == 1


# --- a server that is away -------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Client, RealServer]]:
    """A server for the test alone, and its client."""
    with RealServer(None, tmp_path / "server").start() as server, Client(server.url, "test", tmp_path / "home") as fox:
        yield fox, server


def test_a_server_that_goes_and_comes_back_while_a_claim_waits(own: tuple[Client, RealServer]) -> None:
    fox, server = own
    got: list[int] = []

    def wait() -> None:
        with claim(fox) as run:
            got.append(run.number if run else 0)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: fox.redis.zcard(fox.broker.keys.idle) == 1, 10, "an idle claim")
    server.stop()
    with claim(fox, 0.3, "sim:1") as run:  # it says nothing but that the time is over
        assert run is None
    server.start()
    job = fox.submit(["a"])
    thread.join(20)
    assert got == [job.number] and job.wait(10).succeeded


def test_an_end_is_told_when_the_server_is_back(own: tuple[Client, RealServer]) -> None:
    fox, server = own
    job = fox.submit(["a"])
    with claim(fox) as run:
        assert run is not None
        server.stop()
        run.log("said while it was away")
        assert not run.lost
        timer = threading.Timer(0.5, server.start)
        timer.start()
        run.complete(5)
    timer.join()
    assert job.result(timeout=5) == 5 and job.logs() == b"said while it was away"


@pytest.mark.parametrize("how", ["reply", "request"])
def test_a_claim_whose_answer_is_lost_is_asked_again(own: tuple[Client, RealServer], how: str) -> None:
    fox, server = own
    with Cutter(server.socket, None) as cutter, Client(cutter.url, "test", fox.config.home) as cut:
        for script in ("none", "claim", "complete"):  # the first one has the server know them all
            job = cut.submit(["a"])
            if script != "none":
                cutter.lose(how, load(script).sha)
            with claim(cut, 10) as run:
                assert run is not None and (run.number, run.attempt) == (job.number, 1)
            assert fox.job(job.number).succeeded and (job.refresh().attempts, job.losses) == (1, 0)
        assert cutter.cuts == 2


def test_a_question_that_outlived_its_claim_is_asked_by_the_next(own: tuple[Client, RealServer]) -> None:
    """The time is over before the lost answer could be had again: the job is the next claim's."""
    fox, server = own
    with Cutter(server.socket, None) as cutter, Client(cutter.url, "test", fox.config.home) as cut:
        cut.submit(["a"])
        with claim(cut):  # from now on it knows the shape
            pass
        job = cut.submit(["a"])
        cutter.lose("reply", load("claim").sha)
        with claim(cut, 0) as run:
            assert run is None
        assert job.refresh().running
        with claim(cut, 5) as run:
            assert run is not None and (run.number, run.attempt) == (job.number, 1)
    assert fox.job(job.number).succeeded


def test_a_job_that_cannot_be_begun_after_all_is_given_back(own: tuple[Client, RealServer]) -> None:
    """The answer was lost, and by the next claim somebody else uses the device."""
    fox, server = own
    with Cutter(server.socket, None) as cutter, Client(cutter.url, "test", fox.config.home) as cut:
        cut.submit(["a"])
        with claim(cut):
            pass
        job = cut.submit(["a"])
        cutter.lose("reply", load("claim").sha)
        with claim(cut, 0) as run:
            assert run is None
        _, gpu = locks(fox)
        assert gpu.acquire()
        with claim(cut, 0.1) as run:
            assert run is None
        assert (job.refresh().state, job.reason, job.attempts) == ("pending", "shutdown", 0)
        gpu.release()
        with claim(cut, 5) as run:
            assert run is not None and run.number == job.number
