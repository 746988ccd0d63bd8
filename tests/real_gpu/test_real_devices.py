"""Which devices there are and what one look tells, compared with what CUDA itself sees."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from real_gpu.gpu_check import cuda, digits, ms, say

from foxqueue.doctor import gpus
from foxqueue.gpu import Device, cuda_visible, find
from foxqueue.nvml import NvmlFault
from foxqueue.probing import Probe
from foxqueue.snapshots import memory_of, snapshot, utilization_of
from foxqueue.survey import Survey, survey

pytestmark = pytest.mark.real_gpu


def served(visible: str) -> list[str]:
    """UUIDs of the devices that CUDA_VISIBLE_DEVICES leaves."""
    environ = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return [device.uuid for device in survey(None, 0, "gpu-check", socket.gethostname(), environ).devices]


def test_driver_and_binding_are_good(found: Survey) -> None:
    for check in (gpus.binding(), gpus.driver("")):
        assert check.ok, check
        say(check.detail)
    for device in found.devices:
        say(f"{device.ref}: {device.name}, {device.uuid}, {device.memory_total_mib} MiB")
    for note in found.notes:
        say(f"note: {note}")


@pytest.mark.parametrize("how", ["index", "uuid"])
def test_cuda_sees_the_device_that_a_job_is_shown_and_no_other(found: Survey, how: str) -> None:
    """The index is CUDA's own only if our order is PCI's."""
    for device in found.devices:
        told = cuda("devices", CUDA_VISIBLE_DEVICES=cuda_visible(device, how), CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert told["devices"] == [digits(device.uuid)], device


def test_a_simulated_device_shows_a_job_no_gpu() -> None:
    simulated = survey("1x24G", 0, "gpu-check", "host", {}).devices[0]
    assert cuda("devices", CUDA_VISIBLE_DEVICES=cuda_visible(simulated, "index"))["devices"] == []


def test_uuids_and_their_beginnings_mean_what_the_driver_means(found: Survey) -> None:
    for device in found.devices:
        others = [one.uuid for one in found.devices if one.uuid != device.uuid]
        least = next(end for end in range(5, 99) if not any(uuid.startswith(device.uuid[:end]) for uuid in others))
        for visible in (device.uuid, device.uuid[: max(least, 12)]):
            assert served(visible) == [device.uuid]
            if device.mig is None:
                assert cuda("devices", CUDA_VISIBLE_DEVICES=visible)["devices"] == [digits(device.uuid)]
        assert find(found.devices, device.uuid[:least]) == find(found.devices, device.ref) == device


def test_several_gpus_are_told_apart(found: Survey) -> None:
    whole = [device for device in found.devices if device.mig is None]
    if len(whole) < 2:
        pytest.skip("there is only one GPU here")
    assert served(f"{whole[1].index},{whole[0].index}") == [whole[0].uuid, whole[1].uuid]


def test_mig_instances_are_devices(found: Survey) -> None:
    instances = [device for device in found.devices if device.mig is not None]
    if not instances:
        pytest.skip("no GPU here is cut into MIG instances")
    parents = {device.index for device in instances}
    assert not [device for device in found.devices if device.mig is None and device.index in parents]
    for device in instances:
        assert served(device.uuid) == [device.uuid] and utilization_of(device) is None


def test_a_look_tells_figures_that_can_be(found: Survey) -> None:
    for device in found.devices:
        probe = Probe(device)
        seen = probe.look(())
        assert seen.state in ("free", "occupied"), seen
        assert seen.utilization is None or 0 <= seen.utilization <= 100
        assert seen.ecc_uncorrected is None or seen.ecc_uncorrected >= 0
        figures = (seen.memory_total_mib, seen.memory_free_mib, seen.memory_used_mib)
        assert None not in figures or set(figures) == {None}, "all three are told, or none"
        say(f"{device.ref}: {seen.state}, {figures} MiB, ECC {seen.ecc_uncorrected}, pids known: {seen.pids_known}")
        say(f"{device.ref}: a look takes {ms(lambda probe=probe: probe.look(())):.2f} ms")  # type: ignore[misc]
        probe.close()


def test_a_snapshot_tells_of_every_device(found: Survey) -> None:
    taken = {state.uuid: state for state in snapshot()}
    for device in found.devices:
        state = taken[device.uuid]
        assert (state.index, state.mig, state.name, state.fault) == (device.index, device.mig, device.name, "")
    took = ms(snapshot)
    say(f"a snapshot of {len(taken)} devices takes {took:.2f} ms")
    assert took < 1000


def test_memory_and_utilization(device: Device) -> None:
    memory, utilization = memory_of(device), utilization_of(device)
    assert utilization is None or 0 <= utilization <= 100
    if memory is None:
        pytest.skip("the driver does not tell the memory of this device")
    assert 0 < memory.used_mib + memory.free_mib <= memory.total_mib + 1
    assert memory.total_mib == device.memory_total_mib


def test_a_device_that_is_not_there_is_a_fault_and_not_a_crash(device: Device) -> None:
    ghost = Device("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff", 99, "ghost", "nvml", None)
    seen = Probe(ghost).look(())
    assert (seen.state, seen.fault) == ("unavailable", "lost")
    with pytest.raises(NvmlFault):
        memory_of(ghost)


def test_looks_go_on_in_threads_and_after_a_fork(device: Device) -> None:
    threads = [threading.Thread(target=snapshot) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if any(state.uuid == device.uuid for state in snapshot()) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
