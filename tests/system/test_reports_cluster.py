"""Devices taken from their jobs, servers of a cluster, and servers that forget everything."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from pretend import register
from queue_driver import Queue
from servers import RealServer, binaries
from shell import Shell
from stack import Stack, ended, gone, until_exists
from wait import until

from foxqueue.binaries import Binary
from foxqueue.connection import Connection
from foxqueue.errors import ServerRefused, ServerUnavailable

ONE = ("--simulate", "1x24G")
both = pytest.mark.parametrize("binary", binaries(), ids=str)

# --- C3: a device taken from its job ------------------------------------------------------------------


def family(flag: Path) -> tuple[str, ...]:
    """A job of several processes, one of which has left its group and its session and ignores SIGTERM."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        "stubborn = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-S', '-c', stubborn], start_new_session=True)\n"
        "subprocess.Popen(['sleep', '600'])\n"
        f"open({str(flag)!r}, 'w').close()\n"
        "time.sleep(600)"
    )
    return (sys.executable, "-S", "-c", code)


def started(stack: Stack, number: int, flag: Path) -> list[int]:
    """The processes of a job that has started all of them."""
    stack.await_state(number, "running")
    until(flag.exists, 15, "the job's start")
    return until(lambda: found if len(found := stack.processes_of(number)) >= 3 else None, 10, "processes") or []


def test_a_device_is_taken_from_its_job_and_given_to_the_next(stack: Stack) -> None:
    """C3: with its worker alive; the next job begins when nothing of the first is left."""
    stack.up(*ONE, "--lease-ttl", "3s", workers=1)
    first = stack.queue(*family(stack.root / "flag"))
    processes = started(stack, first, stack.root / "flag")
    second = stack.queue(*until_exists(stack.root / "go on"))
    began = time.monotonic()
    said = stack.fox("gpus", "--release", "sim:0").stdout
    assert said.startswith(f"job {first} is being ended (lease_lost); sim:0 on ")
    assert "is free when its processes are gone" in said
    stack.await_state(second, "running", seconds=15)
    assert gone(processes)() and time.monotonic() - began < 10
    done = stack.job(first)
    assert (done["state"], done["reason"], done["attempts"]) == ("failed", "lease_lost", 1)
    until(lambda: stack.processes_of(second), 10, "the next job's processes")
    events = [event["event"] for event in stack.events(first)]
    assert events == ["enqueue", "claim", "force_release", "fail"]
    (by,) = stack.events(first, "force_release")
    assert by["by"] and by["device"] == done["gpu_uuids"][0]
    (stack.root / "go on").touch()
    assert stack.await_state(second, "succeeded")["gpu_uuids"] == done["gpu_uuids"]


def test_what_release_names_and_finds(stack: Stack) -> None:
    """C3: a label, a UUID or its beginning; nothing to release and no such device are exit code 1."""
    stack.up(workers=2)
    uuids = {device["index"]: uuid for uuid, device in stack.devices().items()}
    idle = stack.fox("gpus", "--release", "sim:1", check=False)
    assert idle.returncode == 1 and f"({uuids[1]}): there is nothing to release" in idle.stderr
    unknown = stack.fox("gpus", "--release", "gpu:9", check=False)
    assert unknown.returncode == 1 and all(uuid in unknown.stderr for uuid in uuids.values())
    for ref in (uuids[0], uuids[0][:12].lower(), f"sim:0@{socket.gethostname()}"):
        flag = stack.root / "flag"
        flag.unlink(missing_ok=True)
        numbers = [stack.queue("sh", "-c", f"touch {flag}; sleep 600") for _ in range(2)]
        held = {stack.await_state(number, "running")["gpu_uuids"][0]: number for number in numbers}
        told = json.loads(stack.fox("gpus", "--json", "--release", ref).stdout)
        assert told == {"device": uuids[0], "released": True, "job": held[uuids[0]], "holder": None}
        assert stack.await_state(held[uuids[0]], "failed")["reason"] == "lease_lost"
        assert stack.job(held[uuids[1]])["state"] == "running"
        stack.fox("cancel", str(held[uuids[1]]))
        stack.await_state(held[uuids[1]], "cancelled")


def test_a_device_being_released_says_so(shell: Shell, queue: Queue) -> None:
    """C3: until its run has ended it is nobody else's."""
    register(queue)
    number = queue.enqueue()
    run = queue.worker(device="SIM-1").claim()
    shell.fox("gpus", "--release", "SIM-1")
    assert [(d["state"], d["detail"], d["job"]) for d in shell.json("gpus")] == [("leased", "being released", number)]
    assert "being released" in shell.fox("gpus")[0]
    assert shell.json("gpus", "--release", "SIM-1")["job"] == number, "said twice, done once"
    other = queue.enqueue()
    queue.broker.redis.delete(queue.broker.keys.lease("SIM-1"))  # the worker is late, and its run is not over
    rival = queue.worker("w2", "SIM-1")
    assert rival.ask().word == "taken"
    assert queue.beat(run) == "taken"
    queue.fail(run, "lease_lost", None)
    assert [(d["state"], d["job"]) for d in shell.json("gpus")] == [("free", None)]
    assert rival.claim().number == other


def test_a_killed_workers_device_comes_back_within_seconds_of_its_lease(stack: Stack) -> None:
    """C3: no `up`, no other worker: the runner ends its job at the end of the lease, whoever looks puts it back."""
    stack.serve(ttl_ms=2000)
    worker = stack.start_worker("sim:0", *ONE)
    first = stack.queue(*family(stack.root / "flag"))
    processes = started(stack, first, stack.root / "flag")
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)
    began = time.monotonic()
    stack.fox("gpus", "--release", "sim:0")
    until(lambda: shown_as_gone(stack) == "being released, its worker is gone", 15, "a dead worker's device")
    again = stack.fox("gpus", "--release", "sim:0").stdout
    assert f"job {first} ends (lease_lost)" in again and "when its lease has run out" in again
    until(lambda: stack.fox("stats").returncode == 0 and stack.job(first)["state"] != "running", 20, "the end")
    assert gone(processes)(), "the lease was taken from processes that still ran"
    assert time.monotonic() - began < 2 + 2 + 6
    assert stack.job(first)["reason"] == "lease_lost"
    second = stack.queue("true")
    stack.start_worker("sim:0", *ONE)
    stack.await_state(second, "succeeded")


def shown_as_gone(stack: Stack) -> str | None:
    (device,) = stack.devices().values()
    return str(device["detail"]) if device["state"] == "unavailable" else None


def test_a_killed_workers_successor_never_runs_beside_its_job(stack: Stack) -> None:
    """C3: the next worker of the device starts at once, long before the lease has run out."""
    stack.serve(ttl_ms=6000)
    worker = stack.start_worker("sim:0", *ONE)
    first = stack.queue(*family(stack.root / "flag"))
    processes = started(stack, first, stack.root / "flag")
    second = stack.queue(*until_exists(stack.root / "go on"), priority=9)
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)
    stack.fox("gpus", "--release", "sim:0")
    began = time.monotonic()
    stack.start_worker("sim:0", *ONE)
    stack.await_state(second, "running", seconds=20)
    assert gone(processes)() and time.monotonic() - began < 10
    (stack.root / "go on").touch()
    stack.await_state(second, "succeeded")


# --- K8: servers of a cluster -------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def node(binary: Binary, place: Path) -> Iterator[tuple[RealServer, tuple[int, int], redis.Redis]]:
    """A node of a cluster that has no slots yet, its port and the one of its bus, and a client."""
    port, bus = free_ports(2)
    flags = ("--cluster-enabled", "yes", "--port", str(port), "--bind", "127.0.0.1", "--cluster-port", str(bus))
    with RealServer(binary, place, *flags) as server, redis.Redis.from_url(server.url) as client:
        yield server, (port, bus), client


def is_ready(client: redis.Redis) -> bool:
    return bool(client.cluster("INFO")["cluster_state"] == "ok")  # type: ignore[no-untyped-call]


@both
def test_all_scripts_work_on_a_node_that_has_all_slots(binary: Binary, tmp_path: Path) -> None:
    """K8: one hash tag, so that no script meets a key of another slot."""
    with node(binary, tmp_path / "node") as (server, _, client):
        client.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")
        until(lambda: is_ready(client), 15, "the cluster")
        queue = Queue(server.url, "test")
        whole_life(queue)
        shell = Shell(server, tmp_path)
        checks = {check["name"]: check for check in shell.json("doctor")["checks"]}
        slot = client.cluster("KEYSLOT", queue.broker.keys.instance)  # type: ignore[no-untyped-call]
        assert checks["cluster"]["detail"] == f"a node that owns slot {slot}, where this namespace lies"
        assert {client.cluster("KEYSLOT", key) for key in client.scan_iter()} == {slot}  # type: ignore[no-untyped-call]
        queue.broker.close()


def whole_life(queue: Queue) -> None:
    """Every script, each at least once, on jobs of two shapes."""
    broker, worker = queue.broker, queue.worker(shapes=("g1", "g1.m8192"))
    assert broker.configure(2000).ttl_ms == 2000
    for shape in ("g1", "g1.m8192"):
        queue.enqueue(shape=shape, retries=1)
    assert worker.ask().word == "ok"
    run = queue.worker("w2", "GPU-2", ("g1", "g1.m8192")).claim()
    assert queue.beat(run) == "ok"
    assert queue.send(broker.log_call(run.number, run.fence, 0, 0, b"out")) == "ok"
    assert queue.fail(run, delay_ms=0) == "failed"
    queue.reap()  # promotes it
    run = queue.worker("w3", "GPU-2", ("g1", "g1.m8192")).claim()
    assert queue.release(run) == "released"
    run = queue.worker("w4", "GPU-2", ("g1", "g1.m8192")).claim()
    assert queue.lose(run) == "lost"
    run = queue.worker("w5", "GPU-2", ("g1", "g1.m8192")).claim()
    assert queue.complete(run) == "succeeded"
    queue.overdue(1)
    queue.reap()
    assert queue.job(1)["state"] == "pending"
    assert broker.cancel(1, "", "me") == "cancelled"
    assert broker.requeue(1, "", "me").word == "ok"
    run = queue.worker("w6", "GPU-1").claim()
    assert broker.force_release("GPU-1", "me") == ("ok", 1)
    assert queue.beat(run) == "taken" and queue.fail(run, "lease_lost", None) == "failed"
    queue.enqueue()
    assert broker.cancel(3, "", "me") == "cancelled"


@both
def test_a_whole_foxqueue_runs_on_a_node_that_has_all_slots(binary: Binary, tmp_path: Path) -> None:
    """K8: with real workers."""
    with (
        node(binary, tmp_path / "node") as (server, _, client),
        ended(Stack(tmp_path / "home", {"FOXQUEUE_URL": server.url})) as stack,
    ):
        client.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")
        until(lambda: is_ready(client), 15, "the cluster")
        stack.up(*ONE, workers=1)
        assert "hello" in stack.fox("submit", "--wait", "--", "echo", "hello").stdout
        endless = stack.queue("sleep", "600")
        stack.await_state(endless, "running")
        waiting = stack.queue("true")
        stack.fox("cancel", str(endless), str(waiting))
        stack.await_state(endless, "cancelled")
        stack.await_state(stack.queue("false"), "failed")


COMMANDS = (["ls"], ["submit", "--", "true"], ["gpus"], ["cancel", "1"], ["stats"])


def complaints(shell: Shell) -> list[str]:
    """What each command says that cannot do its work."""
    up = shell.start("up", *ONE)
    said = [shell.fox(*words, code=1)[1] for words in COMMANDS]
    _, err = up.communicate(timeout=30)
    assert up.returncode == 1
    return [*said, err.decode()]


@both
def test_a_node_that_has_not_our_slot_is_told_with_the_one_that_has(binary: Binary, tmp_path: Path) -> None:
    """K8: MOVED; and CLUSTERDOWN where nobody has it. Every command says what to do."""
    with node(binary, tmp_path / "a") as (one, _, first), node(binary, tmp_path / "b") as (two, ports, second):
        shell = Shell(one, tmp_path)
        said = complaints(shell)
        assert all("nobody serves the slot" in text and "--cluster fix" in text for text in said), said
        first.execute_command("CLUSTER ADDSLOTSRANGE 0 99")
        second.execute_command("CLUSTER ADDSLOTSRANGE 100 16383")
        ours = first.cluster("KEYSLOT", Queue(two.url, "test").broker.keys.instance)  # type: ignore[no-untyped-call]
        assert ours > 99
        port, bus = ports
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        until(lambda: is_ready(first) and is_ready(second), 30, "the cluster")
        cure = f"give the URL of the node that owns slot {ours}, 127.0.0.1:{port}"
        said = complaints(shell)
        assert all(cure in text for text in said), said
        checks = {check["name"]: check for check in shell.json("doctor", code=1)["checks"]}
        assert not checks["cluster"]["ok"] and checks["cluster"]["cure"] == cure
        assert checks["server"]["ok"] and checks["persistence"]["ok"]
        assert cure in json.dumps(shell.json("health", code=1)["checks"])
        other = Shell(two, tmp_path)
        assert other.fox("submit", "--quiet", "--", "true")[0] == "1\n"


def test_answers_of_other_kinds_of_clusters() -> None:
    """K8: keys in several slots, which hash tags prevent; a slot on its way; a cluster that is down for now."""
    connection = Connection("unix:///nowhere")
    for error in (redis.exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"),):
        with pytest.raises(ServerRefused, match="hash tags"), connection.errors("enqueue"):
            raise error
    for passing in (
        redis.exceptions.AskError("3999 127.0.0.1:6381"),
        redis.exceptions.ClusterDownError("The cluster is down"),
    ):
        with pytest.raises(ServerUnavailable) as away, connection.errors("enqueue"):
            raise passing
        assert away.value.passing


# --- K9: servers that forget --------------------------------------------------------------------------


@both
def test_a_server_that_forgets_everything_costs_no_worker_and_no_run(binary: Binary, tmp_path: Path) -> None:
    """K9: persistence off is warned of; FLUSHALL while idle and while a job runs."""
    with (
        RealServer(binary, tmp_path / "server", "--appendonly", "no") as server,
        ended(Stack(tmp_path / "home", {"FOXQUEUE_URL": server.url})) as stack,
    ):
        up = stack.up("--simulate", "2x24G", "--lease-ttl", "2s")
        assert "no append-only file" in stack.log("up") and "CONFIG SET appendonly yes" in stack.log("up")
        report = json.loads(stack.fox("doctor", "--json").stdout)
        checks = {check["name"]: check for check in report["checks"]}
        assert not checks["persistence"]["ok"] and "CONFIG SET" in checks["persistence"]["cure"]
        workers = {worker["pid"] for worker in stack.api.workers()}

        stack.api.redis.flushall()
        until(lambda: {worker["pid"] for worker in stack.api.workers()} == workers, 10, "both workers again")
        run_on_both(stack)

        flag, end = stack.root / "flag", stack.root / "end"
        number = stack.queue("sh", "-c", f"until [ -e {flag} ]; do sleep 0.05; done; echo done > {end}")
        processes = until(lambda: stack.processes_of(number), 10, "processes of the job")
        device = stack.job(number)["gpu_uuids"][0]
        stack.api.redis.flushall()
        until(lambda: len(stack.api.workers()) == 2, 10, "both workers again")
        fresh = stack.queue("true")
        assert stack.await_state(fresh, "succeeded", seconds=10)["gpu_uuids"] != [device], "beside the old run"
        until(lambda: beaten(stack, device, processes), 10, "the run over three leases")
        flag.touch()
        until(gone(processes), 10, "the end of the job")
        assert end.read_text() == "done\n"
        run_on_both(stack)
        assert {worker["pid"] for worker in stack.api.workers()} == workers and up.poll() is None


def run_on_both(stack: Stack) -> None:
    """New jobs run on both devices."""
    numbers = [stack.queue("sleep", "0.3") for _ in range(4)]
    devices = {stack.await_state(number, "succeeded", seconds=15)["gpu_uuids"][0] for number in numbers}
    assert len(devices) == 2


def beaten(stack: Stack, device: str, processes: list[int], leases_s: float = 6.0) -> bool:
    """True once the run has outlived its lease by far; its device is nobody else's meanwhile."""
    assert not gone(processes)()
    assert stack.devices()[device]["job"] is None, "the queue knows nothing of it"
    started_at = float(Path(f"/proc/{processes[0]}/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - started_at / os.sysconf("SC_CLK_TCK") > leases_s
