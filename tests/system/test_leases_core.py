"""Leases of devices on a real server, in this process and in others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from leases_place import HOST, gpus, is_free, is_unlocked, leases, lock_of, start
from nvml_stub import Child
from pretend import register
from queue_driver import Queue
from servers import RealServer
from wait import until

from foxqueue.errors import (
    GpuAlreadyLeased,
    GpuNotFound,
    InsufficientMemory,
    InvalidInput,
    LeaseForked,
    LeaseLost,
    LeaseReleased,
    NoGpuAvailable,
    NotLeaseHolder,
    Unsatisfiable,
)
from foxqueue.gpu import Device
from foxqueue.holding import left_lease
from foxqueue.leases import GpuLeases, Lease
from foxqueue.processes import ProcessId

__all__ = ["gpus", "leases", "start"]


def grant_of(queue: Queue, device: str) -> str:
    return (queue.broker.redis.hget(queue.broker.keys.granted, device) or b"").decode()


# --- having one ------------------------------------------------------------------------------------------------


def test_a_device_is_acquired_held_and_released(
    leases: GpuLeases, queue: Queue, gpus: list[str], tmp_path: Path
) -> None:
    lease = leases.acquire("sim:1", holder="notebook", lasting="2h")
    assert (lease.gpu_uuid, lease.gpu_uuids, lease.index) == (gpus[1], (gpus[1],), 1)
    assert grant_of(queue, gpus[1]) == f"{lease.fence} lease:{lease.token}"
    lease.check()
    record = lock_of(tmp_path, gpus[1]).read() or {}
    assert left_lease(record, gpus[1]) == (lease.token, str(lease.fence), gpus[1])
    assert record["label"] == "notebook" and ProcessId.named(record, "worker") == ProcessId.of()
    [one] = leases.active()
    assert (one.gpu, one.holder.pid, one.holder.label) == (gpus[1], os.getpid(), "notebook")
    assert one.holder.until_ms is not None and abs(one.holder.until_ms / 1000 - time.time() - 7200) < 60
    assert leases.statistics() == (3, 1, 2, 1)
    lease.release()
    assert is_free(queue, gpus[1]) and leases.active() == [] and is_unlocked(tmp_path, gpus[1])
    assert "lease" not in (lock_of(tmp_path, gpus[1]).read() or {})


def test_the_environment_shows_the_device_and_nothing_else(leases: GpuLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    with leases.acquire(0) as lease:
        assert lease.env() == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ""}
        lease.apply()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_used_after_its_release_is_a_clear_error(leases: GpuLeases) -> None:
    lease = leases.acquire(0)
    lease.release()
    for use in (lease.release, lease.check, lease.apply):
        with pytest.raises(LeaseReleased, match="was released: acquire another"):
            use()
    assert lease.released


def test_leaving_the_block_releases_whatever_happens(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), leases.acquire(0):
        1 / 0  # noqa: B018
    assert is_free(queue, gpus[0])
    with leases.acquire(0) as lease:
        lease.release()  # by hand, before the end
    with leases:
        leases.acquire(0)
        leases.acquire(1)
    assert is_free(queue, gpus[0]) and is_free(queue, gpus[1])


def test_the_fence_grows_with_every_grant(leases: GpuLeases) -> None:
    fences = []
    for _ in range(5):
        with leases.acquire(0) as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))


def test_a_decorated_function_runs_under_a_lease(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    @leases.leased(memory="8G", holder="evaluation")
    def evaluate(number: int, lease: Lease | None = None) -> tuple[int, str | None]:
        assert lease is not None
        lease.check()
        return number + 1, lease.gpu_uuid

    @leases.leased(1)
    def plain() -> bool:
        return is_free(queue, gpus[1])

    assert evaluate(1) == (2, gpus[0])
    assert evaluate(number=2) == (3, gpus[0])
    assert plain() is False and is_free(queue, gpus[1])
    assert evaluate.__name__ == "evaluate"


def test_what_goes_on_after_its_return_cannot_be_decorated(leases: GpuLeases) -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    with pytest.raises(InvalidInput, match="generator"):
        leases.leased()(generator)
    with pytest.raises(InvalidInput, match="AsyncGpuLeases"):
        leases.leased()(coroutine)
    with pytest.raises(InvalidInput, match="no function"):
        leases.leased()(7)  # type: ignore[type-var]


# --- refusals --------------------------------------------------------------------------------------------------


def test_who_has_it_is_told_with_all_that_is_known(
    leases: GpuLeases, start: Callable[..., Child], gpus: list[str]
) -> None:
    child = start()
    child.run("lease = leases.acquire('sim:0', holder='training', lasting='1h')")
    with pytest.raises(GpuAlreadyLeased) as caught:
        leases.acquire(gpus[0], timeout=0)
    holder = caught.value.holder
    assert holder is not None and caught.value.gpu == gpus[0] and caught.value.exit_code == 75
    assert (holder.host, holder.pid, holder.label, holder.job) == (HOST, child.process.pid, "training", None)
    assert holder.user and holder.until_ms and holder.since_ms
    assert f'(pid {child.process.pid}, "training")' in str(caught.value) and "until" in str(caught.value)


def test_a_job_that_has_it_is_told(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    number = queue.enqueue(user="ann")
    queue.worker("w9", gpus[0]).claim()
    with pytest.raises(GpuAlreadyLeased, match=f"job {number} of ann") as caught:
        leases.acquire(0, timeout=0)
    assert caught.value.holder is not None and caught.value.holder.job == number


def test_none_free_says_why_of_each(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    leases.acquire(0)
    queue.broker.pause(gpus[1], "repair", "root")
    queue.broker.send(queue.broker.withhold_call(gpus[2], "quarantined", "ecc", "3 errors", "", "w2"))
    with pytest.raises(NoGpuAvailable) as caught:
        leases.acquire_any(timeout=0)
    error = caught.value
    assert set(error.reasons) == set(gpus) and set(error.holders) == {gpus[0]}
    assert "root: repair" in error.reasons[gpus[1]] and "3 errors" in error.reasons[gpus[2]]
    with pytest.raises(NoGpuAvailable, match="paused"):
        leases.acquire(1, timeout=0)
    queue.broker.pause("*", "the whole queue", "root")
    queue.broker.resume(gpus[1], "root")
    leases.acquire(1, timeout=0)  # a paused namespace holds back jobs, not leases


def test_a_device_that_is_not_there(leases: GpuLeases, server: RealServer, gpus: list[str], tmp_path: Path) -> None:
    with pytest.raises(GpuNotFound, match="sim:0"):
        leases.acquire(7, timeout=0)
    with pytest.raises(InvalidInput, match="not understood"):
        leases.acquire(0.5, timeout=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="name the same device"):
        GpuLeases(server.url, "test", [0, gpus[0]], home=tmp_path).acquire_any()
    with GpuLeases(server.url, "test", [1], home=tmp_path) as some, pytest.raises(GpuNotFound):
        some.acquire(0, timeout=0)
    with GpuLeases(server.url, "test", home=tmp_path / "other") as other, pytest.raises(GpuNotFound):
        other.acquire_any(timeout=0)  # simulated devices belong to a home


def test_a_name_that_may_mean_several_is_refused(server: RealServer, queue: Queue, tmp_path: Path) -> None:
    twins = [Device(f"SIM-abcdefg{number}", number, "simulated GPU 24G", "simulated", 24576) for number in range(2)]
    with GpuLeases(server.url, "test", twins, home=tmp_path) as leases:
        with pytest.raises(InvalidInput, match="may mean more than one device"):
            leases.acquire("SIM-abcdef")
        assert leases.acquire("sim-abcdefg1").gpu_uuid == "SIM-abcdefg1"


def test_memory_chooses_and_refuses(leases: GpuLeases, gpus: list[str]) -> None:
    with pytest.raises(InsufficientMemory) as caught:
        leases.acquire(0, memory="9G")
    error = caught.value
    assert (error.gpu, error.required, error.available, error.exit_code) == (gpus[0], 9216, 8192, 69)
    with pytest.raises(InsufficientMemory):
        leases.acquire_any(memory="25G")
    assert leases.acquire_any(memory="1G").gpu_uuid == gpus[0]  # the smallest that will do
    assert leases.acquire_any(memory="9G").gpu_uuid == gpus[1]


def test_many_are_had_all_or_none(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    with leases.acquire_many(2, memory="9G") as lease:
        assert lease.gpu_uuids == (gpus[1], gpus[2]) and lease.indices == (1, 2)
        with pytest.raises(NoGpuAvailable):
            leases.acquire_many(2, timeout=0)
        assert is_free(queue, gpus[0])
        leases.acquire(0, timeout=0).release()
    assert all(is_free(queue, gpu) for gpu in gpus)
    with pytest.raises(Unsatisfiable, match="4 devices are asked for"):
        leases.acquire_many(4)


def test_devices_that_were_chosen_are_an_order(server: RealServer, gpus: list[str], tmp_path: Path) -> None:
    with GpuLeases(server.url, "test", ["sim:2", 0], home=tmp_path) as leases:
        assert [leases.acquire_any().gpu_uuid for _ in range(2)] == [gpus[2], gpus[0]]
        with pytest.raises(NoGpuAvailable):
            leases.acquire_any(timeout=0)


def test_a_momentary_look_refuses_nobody(leases: GpuLeases, gpus: list[str], tmp_path: Path) -> None:
    lock = lock_of(tmp_path, gpus[0])
    assert lock.acquire()
    lock.write({"home": str(tmp_path), "namespace": "test"})
    threading.Timer(0.02, lock.release).start()
    leases.acquire(0, timeout=0).release()


def test_a_lock_that_nobody_explains_is_no_device_to_have(leases: GpuLeases, gpus: list[str], tmp_path: Path) -> None:
    lock = lock_of(tmp_path, gpus[0])
    assert lock.acquire()
    began = time.monotonic()
    with pytest.raises(GpuAlreadyLeased) as caught:
        leases.acquire(0, timeout=0)
    assert caught.value.holder is None and time.monotonic() - began < 5
    lock.release()


def test_without_a_gpu_it_may_do_without(server: RealServer, queue: Queue, tmp_path: Path) -> None:
    with GpuLeases(server.url, "test", home=tmp_path) as leases:
        with pytest.raises(GpuNotFound, match="no device to lease"):
            leases.acquire_any()
        with leases.acquire_any(no_gpu_ok=True) as lease:
            assert lease.gpu_uuid is None and lease.gpu_uuids == () and lease.index is None and lease.fence == 0
            assert lease.env()["CUDA_VISIBLE_DEVICES"] == ""
            lease.check()
        with pytest.raises(LeaseReleased):
            lease.check()


def test_a_device_may_be_given_itself(server: RealServer, queue: Queue, tmp_path: Path) -> None:
    device = Device("SIM-of-nobody", 5, "simulated GPU 24G", "simulated", 24576)
    with GpuLeases(server.url, "test", [device], home=tmp_path) as leases, leases.acquire(device) as lease:
        assert lease.gpu_uuid == "SIM-of-nobody" and lease.index == 5


# --- others' leases --------------------------------------------------------------------------------------------


def test_another_holder_releases_nothing(
    leases: GpuLeases, start: Callable[..., Child], queue: Queue, gpus: list[str]
) -> None:
    child = start()
    child.run("lease = leases.acquire('sim:0', holder='training')")
    for holder in ("training", "me"):
        with pytest.raises(NotLeaseHolder) as caught:
            leases.release(0, holder)
        assert caught.value.requested_by == holder and caught.value.holder is not None
        assert caught.value.holder.pid == child.process.pid
    assert not is_free(queue, gpus[0])
    leases.acquire(1, holder="mine")
    with pytest.raises(NotLeaseHolder):
        leases.release(1, "yours")
    leases.release(1, "mine")
    assert is_free(queue, gpus[1])
    with pytest.raises(LeaseReleased):
        leases.release(1, "mine")
    with pytest.raises(NotLeaseHolder, match="nobody has it"):
        leases.release(2, "mine")


def test_an_operator_takes_a_device(
    leases: GpuLeases, start: Callable[..., Child], queue: Queue, gpus: list[str]
) -> None:
    child = start()
    child.run("heard = []\nlease = leases.acquire('sim:0', holder='training', lost=heard.append)")
    queue.broker.redis.hset(queue.broker.keys.settings, "beat_ms", 100)
    other = start()
    other.run("heard = []\nlease = leases.acquire('sim:1', holder='training', lost=heard.append)")
    taken = leases.force_release(1, by="root")
    assert taken is not None and taken.pid == other.process.pid
    until(lambda: other.ask("[str(error) for error in heard]"), 10, "the loss")
    assert "taken away by root" in other.ask("str(heard[0])")
    with pytest.raises(Exception, match="LeaseLost"):
        other.run("lease.check()")
    assert not is_free(queue, gpus[1])  # until it says so
    other.run("lease.release()")
    assert is_free(queue, gpus[1]) and not is_free(queue, gpus[0])
    assert leases.force_release(1) is None
    events = [fields for _, fields in queue.broker.redis.xrange(queue.broker.keys.events)]
    assert any(one[b"event"] == b"force_release" and one[b"by"] == b"root" for one in events)


def test_a_forked_process_has_no_lease(leases: GpuLeases, queue: Queue, gpus: list[str]) -> None:
    with leases.acquire(0) as lease:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for use in (lease.check, lease.release, lease.apply):
                    with pytest.raises(LeaseForked, match=str(os.getppid())):
                        use()
                lease.__exit__(None, None, None)
                assert leases.leases() == []
                leases.acquire(1, timeout=0).release()
                with pytest.raises(GpuAlreadyLeased):
                    leases.acquire(0, timeout=0)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lease.check()
        assert not is_free(queue, gpus[0])


def test_cleaning_up_releases_all_of_this_process_and_of_the_dead(
    leases: GpuLeases, start: Callable[..., Child], queue: Queue, gpus: list[str]
) -> None:
    alive, dead = start(), start()
    alive.run("lease = leases.acquire(0)")
    dead.run("lease = leases.acquire(1)")
    helper = dead.ask("leases._renewing.helper")
    os.kill(helper, 9)
    dead.process.kill()
    dead.process.wait()
    leases.acquire(2)
    assert leases.cleanup_all() == 2
    assert [is_free(queue, gpu) for gpu in gpus] == [False, True, True]


def test_devices_of_other_machines_only_when_asked(
    server: RealServer, queue: Queue, gpus: list[str], tmp_path: Path
) -> None:
    register(queue, "GPU-far", "far", kind="nvml", host="far", index=3, name="H200", memory_total_mib=1000)
    with GpuLeases(server.url, "test", home=tmp_path) as here, pytest.raises(GpuNotFound):
        here.acquire("GPU-far", timeout=0)
    with GpuLeases(server.url, "test", host="far", home=tmp_path) as far:
        with far.acquire("gpu:3 on far", timeout=0) as lease:
            assert lease.gpu_uuid == "GPU-far" and lease.lock_fds == []
            assert lease.env()["CUDA_VISIBLE_DEVICES"] == "3"
        with pytest.raises(GpuNotFound):
            far.acquire("sim:0", timeout=0)
    with GpuLeases(server.url, "test", host="any", home=tmp_path) as every:
        assert every.statistics().total == 4
        every.acquire("sim:0", timeout=0)


def test_a_lease_that_somebody_else_has_by_now_is_lost(
    start: Callable[..., Child], queue: Queue, gpus: list[str]
) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, "beat_ms", 100)
    child = start()
    child.run("lease = leases.acquire(0)")
    queue.broker.redis.hset(queue.broker.keys.granted, gpus[0], "9999999999999999 lease:00ff")
    queue.broker.redis.set(queue.broker.keys.lease(gpus[0]), "9999999999999999")
    until(lambda: child.ask("lease.lost is not None"), 10, "the loss")
    child.run("lease.release()")  # it is over all the same, and takes nothing from the other
    assert queue.broker.redis.get(queue.broker.keys.lease(gpus[0])) == b"9999999999999999"


def test_a_lease_shorter_than_two_beats_is_refused(leases: GpuLeases, queue: Queue) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 900, "beat_ms": 500})
    with pytest.raises(InvalidInput, match="two beats at least"):
        leases.acquire(0)
    with pytest.raises(InvalidInput, match="300ms to 10m"):
        queue.broker.configure(100)
    queue.broker.redis.hset(queue.broker.keys.settings, mapping={"ttl_ms": 900, "beat_ms": 300})
    leases.acquire(0)


def test_a_failing_callback_harms_nothing(leases: GpuLeases, queue: Queue) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, "beat_ms", 100)

    def fail(error: LeaseLost) -> None:
        raise ZeroDivisionError

    lease, other = leases.acquire(0, lost=fail), leases.acquire(1, lost=(heard := []).append)
    leases.force_release(0)
    until(lambda: lease.lost, 10, "the loss")
    leases.force_release(1, by="root")
    until(lambda: heard, 10, "the other one")
    assert other.lost is heard[0]


def test_slots_that_are_not_served_any_more_are_neither_leased_nor_counted(
    leases: GpuLeases, queue: Queue, gpus: list[str]
) -> None:
    register(queue, f"{gpus[0]}/0", "s0", index=0, slot=0, memory_total_mib=8192, memory_free_mib=8192)
    queue.broker.redis.zrem(queue.broker.keys.workers, "s0")
    assert leases.statistics().total == 3
    with leases.acquire_any(memory="1G", timeout=0) as lease:
        assert lease.gpu_uuid in gpus
