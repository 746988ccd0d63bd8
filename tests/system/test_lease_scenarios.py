"""The old GPU lock manager's fifteen scenarios, by name: real processes, a real server, GPUs of the NVML stub."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nvml_stub
import pytest
from crowd import Crowd
from lease_holders import Process, environ_of, in_line
from nvml_stub import Answered
from queue_driver import Queue
from servers import RealServer
from wait import until

from foxqueue import Client
from foxqueue.processes import children

pytestmark = pytest.mark.nvml

GPUS = 4
UUIDS = [f"GPU-{os.getpid():08x}-{index}222-3333-4444-555555555555" for index in range(GPUS)]  # their locks are shared
TOTALS = [81_920, 24_576, 24_576, 40_960]
LEASE_MS = 2000


@pytest.fixture
def state(nvml_state: nvml_stub.State) -> nvml_stub.State:
    """A machine with four GPUs, on one of which a desktop holds 200 MiB."""
    lines = []
    for index, (uuid, total) in enumerate(zip(UUIDS, TOTALS, strict=True)):
        lines += [f"gpu {index} name NVIDIA Test", f"gpu {index} uuid {uuid}", f"gpu {index} util {index * 10 + 5} 1"]
        lines += [f"gpu {index} mem_total_mib {total}", f"gpu {index} mem_reserved_mib 500"]
    nvml_state.write(*lines, f"gpu 2 proc {os.getpid()} 200")
    return nvml_state


@pytest.fixture
def environ(state: nvml_stub.State, tmp_path: Path) -> dict[str, str]:
    return environ_of(tmp_path / "home", state.env(os.environ))


@pytest.fixture
def start(server: RealServer, fox: Client, environ: dict[str, str]) -> Iterator[Callable[[], Process]]:
    """Start processes with a ``leases``; they end with the test."""
    started: list[Process] = []
    fox.broker.configure(LEASE_MS)

    def begin() -> Process:
        started.append(Process(server.url, environ))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def grant(fox: Client, index: int) -> str:
    """The last grant of a GPU, without its fence."""
    redis: Any = fox.redis
    return (redis.hget(fox.broker.keys.granted, UUIDS[index]) or b"").decode().partition(" ")[2]


def is_free(fox: Client, index: int) -> bool:
    return grant(fox, index)[:1] in ("", "-") and not fox.redis.exists(fox.broker.keys.lease(UUIDS[index]))


def refused(process: Process, source: str) -> Answered:
    """What an expression raises in a process; its attributes are then in ``error`` there."""
    process.run(f"error = None\ntry:\n    {source}\nexcept Exception as problem:\n    error = problem")
    kind = process.ask("type(error).__name__")
    return Answered(kind, process.ask("str(error)"))


# --- one after another --------------------------------------------------------------------------------------------


def test_acquire(start: Callable[[], Process], fox: Client) -> None:
    process = start()
    lease = process.acquire(1)
    assert (lease["uuid"], lease["index"]) == (UUIDS[1], 1)
    assert lease["env"] == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    assert lease["fence"] > 10**15
    assert grant(fox, 1) == f"lease:{process.ask('lease.token')}"
    key: Any = fox.redis.pttl(fox.broker.keys.lease(UUIDS[1]))
    assert 0 < key <= 2 * LEASE_MS
    process.run("lease.apply()")
    assert process.ask("os.environ['CUDA_VISIBLE_DEVICES']") == "1"
    until(lambda: fox.redis.pttl(fox.broker.keys.lease(UUIDS[1])) < 2 * LEASE_MS - 500, 5, "an older lease")
    until(lambda: fox.redis.pttl(fox.broker.keys.lease(UUIDS[1])) > 2 * LEASE_MS - 400, 5, "its renewal", every=0.01)


def test_blocked_by_a_concurrent_holder(start: Callable[[], Process]) -> None:
    holder, other = start(), start()
    holder.acquire(0, until=time.time() + 7200)
    error = refused(other, "leases.acquire(0, holder='train', timeout=0)")
    assert error.kind == "GpuAlreadyLeased"
    assert f'(pid {holder.pid}, "notebook") since' in error.text and ", until " in error.text
    assert other.ask("(error.gpu, error.holder.pid, error.holder.label)") == [UUIDS[0], holder.pid, "notebook"]
    began = time.monotonic()
    assert refused(other, "leases.acquire(0, timeout=0.5)").kind == "GpuAlreadyLeased"
    assert 0.5 <= time.monotonic() - began < 2
    other.acquire(1)  # the others are free to all
    assert refused(holder, "leases.acquire(0, timeout=0)").kind == "GpuAlreadyLeased"  # not twice by the same either


def test_release_on_exit(start: Callable[[], Process], fox: Client) -> None:
    """Leaving the block, an exception in it, sys.exit, SIGTERM and the end of the program each give it back."""
    process, other = start(), start()
    process.run("with leases.acquire(0, timeout=0) as lease:\n    inside = leases.active()[0].gpu")
    assert process.ask("inside") == UUIDS[0] and is_free(fox, 0)
    error = refused(process, "with leases.acquire(0, timeout=0): raise ValueError('mine')")
    assert (error.kind, error.text) == ("ValueError", "mine") and is_free(fox, 0)
    assert other.acquire(0)["uuid"] == UUIDS[0]
    for end in ("raise SystemExit(3)", "os.kill(os.getpid(), 15)"):
        leaving = start()
        leaving.acquire(1)
        with pytest.raises((ValueError, AssertionError)):  # it ends, and answers no more
            leaving.run(end)
        leaving.process.wait(10)
        until(lambda: is_free(fox, 1), 5, f"the release after {end}", every=0.005)
        assert other.acquire(1, name="again")["uuid"] == UUIDS[1]
        other.run("again.release()")
    end_of_input = start()
    end_of_input.acquire(1)
    assert end_of_input.process.stdin is not None
    end_of_input.process.stdin.close()
    assert end_of_input.process.wait(10) == 0
    assert is_free(fox, 1)  # told before the process was gone


def test_memory_query(start: Callable[[], Process], state: nvml_stub.State) -> None:
    process = start()
    free = process.ask("leases.memory(3)._asdict()")
    assert (
        free["total"] == TOTALS[3] and free["free"] + free["used"] + 500 == free["total"] and free["used"] == 0
    )  # 500 are the driver's
    assert abs(free["observed_at"] - time.time()) < 5
    state.hold(3, 3000)
    used = process.ask("leases.memory('gpu:3')._asdict()")
    assert (used["used"] - free["used"], free["free"] - used["free"]) == (3000, 3000)
    assert refused(process, "leases.memory(9)").kind == "GpuNotFound"
    text = state.path.read_text()
    state.write(*text.splitlines()[1:], "gpu 3 error nvmlDeviceGetMemoryInfo GPU_IS_LOST")
    error = refused(process, "leases.memory(3)")
    assert error.kind == "MemoryQueryFailed" and process.ask("error.gpu") == UUIDS[3]
    assert process.ask("leases.memory(0).total") == TOTALS[0]


def test_release_after_a_crash(start: Callable[[], Process], fox: Client) -> None:
    crashing, other = start(), start()
    fence = crashing.acquire(0)["fence"]
    assert refused(other, "leases.acquire(0, timeout=0)").kind == "GpuAlreadyLeased"
    other.run("import threading\ngot = []")
    other.run("thread = threading.Thread(target=lambda: got.append(leases.acquire(0, timeout=20)))\nthread.start()")
    until(lambda: in_line(fox, UUIDS[0]), 5, "a waiter")
    crashing.process.kill()
    crashing.process.wait()
    began = time.monotonic()
    until(lambda: other.ask("bool(got)"), 10, "the device")
    assert time.monotonic() - began < 1.0  # its helper gave it back: nobody waits for the lease to lapse
    assert other.ask("got[0].fence") > fence


def test_four_devices_at_once(start: Callable[[], Process], fox: Client) -> None:
    process, other = start(), start()
    process.run("lease = leases.acquire_many(4, timeout=0)")
    told = process.told()
    assert sorted(told["uuids"]) == sorted(UUIDS)
    assert sorted(told["env"]["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1", "2", "3"]
    assert [refused(other, f"leases.acquire({index}, timeout=0)").kind for index in range(4)] == [
        "GpuAlreadyLeased"
    ] * 4
    process.run("lease.release()")
    assert all(is_free(fox, index) for index in range(4))
    other.acquire(2)
    assert refused(process, "leases.acquire_many(4, timeout=0)").kind == "NoGpuAvailable"
    assert [is_free(fox, index) for index in range(4)] == [True, True, False, True]  # all or none
    assert refused(process, "leases.acquire_many(5, timeout=0)").kind == "Unsatisfiable"


def test_dynamic_choice(start: Callable[[], Process], state: nvml_stub.State) -> None:
    """Any free one; the ones that others hold are not given, nor is one that a stranger uses."""
    process, other = start(), start()
    other.acquire(1)
    stranger = state.hold(2, 2000, pid=os.getpid())
    got = []
    for name in ("a", "b"):
        process.run(f"{name} = leases.acquire_any(timeout=0)")
        got.append(process.told(name)["uuid"])
    assert sorted(got) == sorted([UUIDS[0], UUIDS[3]])
    error = refused(process, "leases.acquire_any(timeout=0)")
    assert error.kind == "NoGpuAvailable"
    assert (
        f"pid {other.pid}" in error.text and f"pid {process.pid}" in error.text and f"pid {os.getpid()}" in error.text
    )
    held = process.ask("{gpu: holder.pid for gpu, holder in error.holders.items()}")
    assert held == {UUIDS[0]: process.pid, UUIDS[1]: other.pid, UUIDS[3]: process.pid}
    assert sorted(process.ask("error.reasons")) == sorted(UUIDS)
    stranger.unlink()
    process.run("c = leases.acquire_any(timeout=5)")
    assert process.told("c")["uuid"] == UUIDS[2]


def test_invalid_id(start: Callable[[], Process], fox: Client) -> None:
    process = start()
    for gpu in ("7", "'gpu:4'", "'GPU-ffffffff-0000'", "'sim:0'", "'nonsense'"):
        error = refused(process, f"leases.acquire({gpu}, timeout=0)")
        assert error.kind == "GpuNotFound" and gpu in error.text, error
        assert all(uuid in error.text for uuid in UUIDS)
    for malformed in ("-1", "True", "''", "1.5", "None"):
        assert refused(process, f"leases.acquire({malformed}, timeout=0)").kind == "InvalidInput", malformed
    assert not fox.redis.exists(fox.broker.keys.granted, fox.broker.keys.lease_stats)


def test_explicit_release(start: Callable[[], Process], fox: Client) -> None:
    process, other = start(), start()
    process.acquire(0)
    error = refused(other, "leases.release(0, holder='notebook')")  # the wrong process
    assert error.kind == "NotLeaseHolder" and other.ask("(error.gpu, error.holder.pid)") == [UUIDS[0], process.pid]
    error = refused(process, "leases.release(0, holder='somebody else')")  # the wrong holder
    assert error.kind == "NotLeaseHolder" and process.ask("error.requested_by") == "somebody else"
    assert not is_free(fox, 0)
    process.run("leases.release(0, holder='notebook')")
    assert is_free(fox, 0) and process.ask("lease.released")
    for again in ("lease.release()", "leases.release(0, holder='notebook')", "lease.check()", "lease.apply()"):
        assert refused(process, again).kind == "LeaseReleased", again
    assert other.acquire(0)["uuid"] == UUIDS[0]
    assert refused(process, "lease.release()").kind == "LeaseReleased" and not is_free(fox, 0)


# --- many at once: processes of one that has imported, let go by one system call ----------------------------------


def race(
    environ: dict[str, str], folder: Path, server: RealServer, fox: Client, count: int, gpu: str | None, winners: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """So many processes ask at the same moment; who won and who was refused, when all have ended."""
    flag = folder / "flag"
    with Crowd(folder / "crowd", "lease_holders", environ=environ) as crowd:
        pids = [crowd.start("lease_holders:try_one", server.url, gpu, str(flag), barrier=True) for _ in range(count)]
        crowd.release()
        ended: set[int] = set()

        def losers_are_gone() -> bool:
            ended.update(pid for pid in pids if (folder / "crowd" / f"{pid}.json").exists())
            return len(ended) == count - winners

        until(losers_are_gone, 60, f"the end of {count - winners} of {count}")
        holding = [pid for pid in pids if pid not in ended]
        assert all(len(children(pid)) == 1 for pid in holding)  # each has its helper, and nobody else ever had one
        flag.touch()
        answers = [crowd.answer(pid) for pid in pids]
    won = [answer for answer in answers if answer["got"]]
    assert sorted(answer["pid"] for answer in won) == sorted(holding)
    assert all(is_free(fox, index) for index in range(GPUS))
    assert not fox.redis.keys("*lease_waiting*") and not fox.redis.keys("*waiter:*")
    return won, [answer for answer in answers if not answer["got"]]


def test_ten_concurrent_on_one_device(
    start: Callable[[], Process], environ: dict[str, str], tmp_path: Path, server: RealServer, fox: Client
) -> None:
    """One wins, nine are told who holds it."""
    won, lost = race(environ, tmp_path, server, fox, 10, UUIDS[0], 1)
    assert (len(won), len(lost)) == (1, 9)
    assert {answer["gpu"] for answer in lost} == {UUIDS[0]}
    assert [answer["by"] for answer in lost] == [[[won[0]["pid"], f"racer {won[0]['pid']}"]]] * 9
    assert all(f"pid {won[0]['pid']}" in answer["text"] for answer in lost)


def test_a_hundred_concurrent_on_four_devices(
    start: Callable[[], Process], environ: dict[str, str], tmp_path: Path, server: RealServer, fox: Client
) -> None:
    """Four win, 96 are refused, none is stuck."""
    won, lost = race(environ, tmp_path, server, fox, 100, None, 4)
    assert (len(won), len(lost)) == (4, 96)
    assert sorted(answer["got"] for answer in won) == sorted(UUIDS)
    assert len({answer["fence"] for answer in won}) == 4
    winners = {(answer["pid"], f"racer {answer['pid']}") for answer in won}
    for answer in lost:
        assert {tuple(named) for named in answer["by"]} <= winners, answer
    assert any(len(answer["by"]) == 4 for answer in lost)


# --- what is told ---------------------------------------------------------------------------------------------------


def test_list_of_active(start: Callable[[], Process], queue: Queue) -> None:
    process, other = start(), start()
    assert process.ask("leases.active()") == []
    process.acquire(0)
    process.run("two = leases.acquire_many(2, holder='sweep', timeout=0)")
    two = process.told("two")["uuids"]
    (left,) = set(UUIDS) - {UUIDS[0], *two}
    job = queue.enqueue()
    queue.worker(device=left).claim()
    fields = "[one.gpu, one.name, one.holder.pid, one.holder.label, one.holder.job]"
    listed = {found[0]: found[1:] for found in other.ask(f"[{fields} for one in leases.active()]")}
    assert listed == {
        UUIDS[0]: ["gpu:0", process.pid, "notebook", None],
        **{uuid: [f"gpu:{UUIDS.index(uuid)}", process.pid, "sweep", None] for uuid in two},
        left: [f"gpu:{UUIDS.index(left)}", None, "", job],
    }
    assert other.ask("leases.statistics()._asdict()") == {"total": 4, "leased": 4, "available": 0, "active_jobs": 3}
    process.run("two.release()")
    assert other.ask("leases.statistics()._asdict()") == {"total": 4, "leased": 2, "available": 2, "active_jobs": 2}
    assert other.ask("[one.gpu for one in leases.active()]") == [uuid for uuid in UUIDS if uuid in (UUIDS[0], left)]


def test_utilisation(start: Callable[[], Process], state: nvml_stub.State) -> None:
    process = start()
    assert [process.ask(f"leases.utilization({index})") for index in range(4)] == [5, 15, 25, 35]
    state.write(*state.path.read_text().splitlines()[1:], "gpu 1 error nvmlDeviceGetUtilizationRates NOT_SUPPORTED")
    error = refused(process, "leases.utilization(1)")
    assert error.kind == "UtilizationQueryFailed" and process.ask("error.gpu") == UUIDS[1]
    assert process.ask("leases.utilization(0)") == 5
    assert refused(process, "leases.utilization('gpu:9')").kind == "GpuNotFound"


def test_memory_threshold(start: Callable[[], Process], state: nvml_stub.State) -> None:
    """The smallest GPU that has the memory free is given; who asks for more than there is is told the figures."""
    process = start()
    process.run("lease = leases.acquire_any(memory='30G', timeout=0)")
    assert process.told()["uuid"] == UUIDS[3]
    process.run("big = leases.acquire_any(memory='30G', timeout=0)")
    assert process.told("big")["uuid"] == UUIDS[0]
    assert refused(process, "leases.acquire_any(memory='30G', timeout=0)").kind == "NoGpuAvailable"
    process.run("lease.release()\nbig.release()")
    held = state.hold(1, 250)  # less than what makes a device occupied
    error = refused(process, "leases.acquire(1, memory=24_000, timeout=0)")
    assert error.kind == "InsufficientMemory"
    required, available = process.ask("(error.required, error.available)")
    assert required == 24_000 and TOTALS[1] - 800 < available < 24_000
    held.unlink()
    assert process.acquire(1, memory=24_000)["uuid"] == UUIDS[1]
    never = refused(process, "leases.acquire_any(memory='100G', timeout=60)")
    assert never.kind == "InsufficientMemory" and process.ask("(error.required, error.available)") == [
        102_400,
        TOTALS[0],
    ]
    for malformed in ("0", "-5", "'0'", "'8Q'", "1.5"):
        assert refused(process, f"leases.acquire_any(memory={malformed}, timeout=0)").kind == "InvalidInput", malformed


def test_cleanup_of_all(start: Callable[[], Process], fox: Client) -> None:
    """One's own leases, and those of the dead; nobody else's."""
    process, other, dead = start(), start(), start()
    process.acquire(0)
    process.acquire(1, name="second")
    other.acquire(2)
    dead.acquire(3)
    dead.helper().send(signal.SIGSTOP)  # else it would give the lease back by itself
    stopped = dead.helper()
    dead.process.kill()
    dead.process.wait()
    try:
        assert not is_free(fox, 3)
        assert process.ask("leases.cleanup_all()") == 3
        assert [is_free(fox, index) for index in range(4)] == [True, True, False, True]
        assert process.ask("leases.cleanup_all()") == 0
        assert process.ask("lease.released and second.released")
        other.run("lease.check()")
    finally:
        stopped.send(signal.SIGKILL)
