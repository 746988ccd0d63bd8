"""One look at a GPU: memory, strangers, faults, and that it neither raises nor hangs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from nvml_stub import State
from stub_machine import Machine
from wait import until

pytestmark = pytest.mark.nvml

GPU = ("gpu 0 name NVIDIA H200", "gpu 0 mem_total_mib 10000", "gpu 0 mem_reserved_mib 600")
TWO = (*GPU, "gpu 1 uuid GPU-b", "gpu 1 name NVIDIA H200")


@pytest.fixture
def probed(nvml_state: State, machine: Machine) -> Machine:
    nvml_state.write(*GPU)
    machine.probe()
    return machine


def test_a_free_gpu(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 util 37 12")
    assert probed.look() == {
        "memory_total_mib": 10000,
        "memory_free_mib": 9400,
        "utilization": 37,
        "state": "free",
        "detail": "",
        "strangers": [],
    }


@pytest.mark.parametrize("kind", ["proc", "gproc"])
@pytest.mark.parametrize(("mib", "state"), [(256, "free"), (257, "occupied")])
def test_a_stranger_occupies_it_over_256_mib(
    nvml_state: State, probed: Machine, kind: str, mib: int, state: str
) -> None:
    nvml_state.write(*GPU, f"gpu 0 {kind} 4242 {mib}")
    seen = probed.look()
    assert (seen["state"], seen["strangers"]) == (state, [[4242, mib]])
    assert seen["memory_free_mib"] == 9400 - mib
    if state == "occupied":
        assert seen["detail"] == "257M held by processes that are not ours: pid 4242 (257M)"


def test_strangers_are_added_up_and_one_in_two_lists_counts_once(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 proc 10 200", "gpu 0 gproc 10 200")
    seen = probed.look()
    assert (seen["state"], seen["strangers"]) == ("free", [[10, 200]])
    nvml_state.write(*GPU, "gpu 0 proc 10 200", "gpu 0 gproc 11 100")
    assert probed.look()["state"] == "occupied"


def test_ours_do_not_count(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 proc 10 5000", "gpu 0 proc 11 3000", "gpu 0 gproc 12 100")
    seen = probed.look(10, 11, 99)
    assert (seen["state"], seen["strangers"], seen["memory_free_mib"]) == ("free", [[12, 100]], 1300)
    assert probed.look(10)["state"] == "occupied"


def test_clients_of_mps_count(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 gproc 10 300")
    # the stub has no MPS: let the binding give that list from another one
    probed.child.run(
        "import pynvml\n"
        "pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3 = pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3\n"
        "pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3 = lambda handle: []"
    )
    assert probed.look()["strangers"] == [[10, 300]]


def test_hidden_processes_show_by_the_memory_in_use(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 5600")
    seen = probed.look(99)
    assert (seen["state"], seen["strangers"]) == ("occupied", [])
    assert seen["detail"] == "4.89G held by processes that are not ours: none that can be seen from here"
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 850")
    assert probed.look()["state"] == "free"
    nvml_state.write(*GPU, "gpu 0 proc 10 3000", "gpu 0 mem_used_mib 5600")
    assert probed.look(10)["state"] == "occupied"
    nvml_state.write(*GPU, "gpu 0 proc 10 4900", "gpu 0 mem_used_mib 5600")
    assert probed.look(10)["state"] == "free"


@pytest.mark.parametrize("word", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND"])
def test_without_process_lists_the_memory_in_use_tells(nvml_state: State, probed: Machine, word: str) -> None:
    silent = (
        f"gpu 0 error nvmlDeviceGetComputeRunningProcesses {word}",
        f"gpu 0 error nvmlDeviceGetGraphicsRunningProcesses {word}",
    )
    nvml_state.write(*GPU, *silent)
    assert probed.look()["state"] == "free"
    nvml_state.write(*GPU, *silent, "gpu 0 proc 10 3000")
    assert probed.look()["state"] == "occupied"


def test_a_process_without_figure_is_judged_by_the_memory_in_use(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 gproc 10 -", "gpu 0 mem_used_mib 700")
    seen = probed.look()
    assert (seen["state"], seen["strangers"]) == ("free", [[10, None]])
    nvml_state.write(*GPU, "gpu 0 proc 10 -", "gpu 0 proc 11 2000", "gpu 0 mem_used_mib 4600")
    assert probed.look(11)["detail"] == "1.96G held by processes that are not ours: pid 10 (unknown)"
    # ours without a figure, and nobody else
    nvml_state.write(*GPU, "gpu 0 proc 10 -", "gpu 0 mem_used_mib 4600")
    assert probed.look(10)["state"] == "free"


def test_unknown_memory_is_neither_none_nor_all(nvml_state: State, probed: Machine) -> None:
    """G1: not supported, 0 of 0, and unified memory: what the whole machine uses is no stranger's."""
    system_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    unified = f"gpu 0 mem_total_mib {system_mib}"
    for unknown in ("gpu 0 error nvmlDeviceGetMemoryInfo NOT_SUPPORTED", "gpu 0 mem_total_mib 0", unified):
        if unknown is unified:
            nvml_state.write(*GPU, unified, f"gpu 0 mem_used_mib {system_mib // 2}")
            assert probed.look()["state"] == "free"
        nvml_state.write(*GPU, unknown)
        seen = probed.look()
        assert (seen["memory_total_mib"], seen["memory_free_mib"], seen["state"]) == (None, None, "free")
        nvml_state.write(*GPU, unknown, "gpu 0 proc 10 300")
        assert probed.look()["state"] == "occupied"
        nvml_state.write(*GPU, unknown, "gpu 0 gproc 10 -")
        assert probed.look()["state"] == "free"
        nvml_state.write(*GPU, unknown, "gpu 0 proc 10 -")
        assert probed.look()["detail"] == "in use by processes that are not ours: pid 10 (unknown)"


def test_unknown_utilization_is_none(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 error nvmlDeviceGetUtilizationRates NOT_SUPPORTED")
    seen = probed.look()
    assert (seen["utilization"], seen["state"]) == (None, "free")


def test_old_drivers_count_their_own_part_as_used(nvml_state: State, probed: Machine) -> None:
    old = "gpu 0 error nvmlDeviceGetMemoryInfo_v2 FUNCTION_NOT_FOUND"
    nvml_state.write(*GPU, old, "gpu 0 error nvmlDeviceGetComputeRunningProcesses_v3 FUNCTION_NOT_FOUND")
    seen = probed.look()
    assert (seen["memory_total_mib"], seen["memory_free_mib"], seen["state"]) == (10000, 9400, "free")
    nvml_state.write(
        *GPU, old, "gpu 0 error nvmlDeviceGetComputeRunningProcesses_v3 FUNCTION_NOT_FOUND", "gpu 0 proc 10 200"
    )
    assert probed.look()["strangers"] == [[10, 200]]
    nvml_state.write(*GPU, old, "gpu 0 mem_used_mib 1400")
    assert probed.look()["state"] == "occupied"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("gpu 0 error * GPU_IS_LOST", "the GPU is lost"),
        ("gpu 0 error nvmlDeviceGetMemoryInfo UNKNOWN", "nvmlDeviceGetMemoryInfo with: Unknown Error"),
        ("gpu 0 error nvmlDeviceGetUtilizationRates RESET_REQUIRED", "needs a reset"),
        ("gpu 0 error nvmlDeviceGetComputeRunningProcesses TIMEOUT", "timed out"),
    ],
)
def test_a_fault_makes_it_unavailable_until_it_is_over(
    nvml_state: State, probed: Machine, line: str, says: str
) -> None:
    nvml_state.write(*GPU, line)
    for _ in range(2):
        seen = probed.look()
        assert (seen["state"], seen["memory_total_mib"], seen["memory_free_mib"]) == ("unavailable", 10000, None)
        assert says in seen["detail"]
    nvml_state.write(*GPU)
    assert probed.look()["state"] == "free"


def test_a_gpu_that_vanished_is_found_again_by_its_uuid(nvml_state: State, probed: Machine) -> None:
    assert probed.look()["state"] == "free"
    nvml_state.write()
    assert "lost" in probed.look()["detail"]
    assert "no longer knows a GPU with this UUID" in probed.look()["detail"]
    nvml_state.write(*GPU)
    assert probed.look()["state"] == "free"


def test_a_driver_upgraded_under_a_running_worker_is_seen_until_it_fits_again(
    nvml_state: State, probed: Machine
) -> None:
    """What is open goes on working; only opening NVML anew tells."""
    assert probed.look()["state"] == "free"
    nvml_state.write(*GPU, "system error nvmlInit LIB_RM_VERSION_MISMATCH")
    for _ in range(2):
        seen = probed.look()
        assert seen["state"] == "unavailable" and seen["detail"].startswith("driver upgraded, reboot")
    nvml_state.write(*GPU)
    assert probed.look()["state"] == "free"


def test_a_gpu_that_came_back_with_another_index_is_not_used(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*TWO)
    machine.probe(1)
    assert machine.look()["state"] == "free"
    nvml_state.write(*TWO, "gpu 1 error * GPU_IS_LOST")
    assert machine.look()["state"] == "unavailable"
    nvml_state.write("gpu 0 uuid GPU-b")
    assert machine.look()["detail"] == "its index changed from 1 to 0: restart the worker"


def test_mig_enabled_later_makes_it_unavailable(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 mig_mode 1")
    seen = probed.look()
    assert seen["state"] == "unavailable" and "MIG was enabled" in seen["detail"]


def test_a_call_that_hangs_costs_a_bounded_time(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*GPU)
    machine.probe(timeout_s=0.4)
    assert machine.look()["state"] == "free"
    nvml_state.write(*GPU, "gpu 0 delay_ms nvmlDeviceGetUtilizationRates -1")
    for _ in range(3):
        seen = machine.look()
        assert seen["state"] == "unavailable" and "has not answered for" in seen["detail"]
        assert 0.3 < machine.child.seconds < 3
    silent_s = float(seen["detail"].split(" for ")[1].split()[0])
    assert silent_s > 1.1, "the silence is counted from the first call: the later looks began no other"
    assert machine.child.ask("sum(t.name == 'nvml' for t in __import__('threading').enumerate())") == 1
    nvml_state.write(*GPU)
    until(lambda: machine.look()["state"] == "free", what="the GPU answers again")


def test_a_probe_can_start_on_a_driver_that_hangs(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*GPU)
    machine.probe(timeout_s=0.3)
    nvml_state.write(*GPU, "system delay_ms nvmlInit -1")
    assert machine.look()["state"] == "unavailable"
    nvml_state.write(*GPU)
    until(lambda: machine.look()["state"] == "free", what="the GPU answers")


def test_a_live_process_holds_it_until_it_ends(nvml_state: State, probed: Machine) -> None:
    pid = probed.child.process.pid
    held = nvml_state.hold(0, 700, pid)
    assert probed.look()["strangers"] == [[pid, 700]]
    assert probed.look(pid)["state"] == "free"
    held.unlink()
    assert probed.look()["strangers"] == []


def test_a_hanging_call_does_not_keep_the_process_from_ending(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*GPU)
    machine.probe(timeout_s=0.2)
    nvml_state.write(*GPU, "system delay_ms * -1")
    assert machine.look()["state"] == "unavailable"
    process = machine.child.process
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=10) == 0


def test_a_library_that_was_replaced_is_a_driver_upgrade(nvml_state: State, machine: Machine, tmp_path: Path) -> None:
    nvml_state.write(*GPU)
    own = tmp_path / "library"
    shutil.copytree(nvml_state.library, own)
    nvml_state.library = own
    machine.probe()
    assert machine.look()["state"] == "free"
    for file in own.glob("libnvidia-ml.so*"):
        fresh = Path(shutil.copy(file, own / "fresh"))
        fresh.replace(file)
    seen = machine.look()
    assert seen["state"] == "unavailable" and seen["detail"].startswith("driver upgraded, reboot")


def test_closing_ends_the_thread(probed: Machine) -> None:
    probed.look()
    probed.child.run("probe.close(); import threading")
    until(
        lambda: not probed.child.ask("[t for t in threading.enumerate() if t.name == 'nvml']"),
        what="the thread's end",
    )
