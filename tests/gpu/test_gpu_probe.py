"""One look at a GPU: memory, strangers, faults, and that it neither raises nor hangs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from nvml_stub import State
from stub_machine import Machine, held
from wait import until

pytestmark = pytest.mark.nvml

GPU = ("gpu 0 name NVIDIA H200", "gpu 0 mem_total_mib 10000", "gpu 0 mem_reserved_mib 600")
# The numbers of processes are above the largest that a kernel gives, so that nobody has them.
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
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
        "memory_used_mib": 0,
        "ecc_uncorrected": 0,
        "fault": "",
        "pids_known": True,
        "ours": [],
        "ignored": [],
    }


@pytest.mark.parametrize("kind", ["proc", "gproc"])
@pytest.mark.parametrize(("mib", "state"), [(256, "free"), (257, "occupied")])
def test_a_stranger_occupies_it_over_256_mib(
    nvml_state: State, probed: Machine, kind: str, mib: int, state: str
) -> None:
    nvml_state.write(*GPU, f"gpu 0 {kind} 4204242 {mib}")
    seen = probed.look()
    assert (seen["state"], held(seen)) == (state, [[4204242, mib]])
    assert seen["memory_free_mib"] == 9400 - mib
    if state == "occupied":
        assert seen["detail"] == "257M held by processes that are not ours: pid 4204242 (257M)"


def test_strangers_are_added_up_and_one_in_two_lists_counts_once(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 proc 4200010 200", "gpu 0 gproc 4200010 200")
    seen = probed.look()
    assert (seen["state"], held(seen)) == ("free", [[4200010, 200]])
    nvml_state.write(*GPU, "gpu 0 proc 4200010 200", "gpu 0 gproc 4200011 100")
    assert probed.look()["state"] == "occupied"


def test_ours_do_not_count(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 proc 4200010 5000", "gpu 0 proc 4200011 3000", "gpu 0 gproc 4200012 100")
    seen = probed.look(4200010, 4200011, 99)
    assert (seen["state"], held(seen), seen["memory_free_mib"]) == ("free", [[4200012, 100]], 1300)
    assert probed.look(4200010)["state"] == "occupied"


def test_clients_of_mps_count(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 gproc 4200010 300")
    # the stub has no MPS: let the binding give that list from another one
    probed.child.run(
        "import pynvml\n"
        "pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3 = pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3\n"
        "pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3 = lambda handle: []"
    )
    assert held(probed.look()) == [[4200010, 300]]


def test_hidden_processes_show_by_the_memory_in_use(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 5600")
    seen = probed.look(99)
    assert (seen["state"], held(seen)) == ("occupied", [])
    assert seen["detail"] == "4.89G held by processes that are not ours: none that can be seen from here"
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 850")
    assert probed.look()["state"] == "free"
    nvml_state.write(*GPU, "gpu 0 proc 4200010 3000", "gpu 0 mem_used_mib 5600")
    assert probed.look(4200010)["state"] == "occupied"
    nvml_state.write(*GPU, "gpu 0 proc 4200010 4900", "gpu 0 mem_used_mib 5600")
    assert probed.look(4200010)["state"] == "free"


@pytest.mark.parametrize("word", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND"])
def test_without_process_lists_the_memory_in_use_tells(nvml_state: State, probed: Machine, word: str) -> None:
    silent = (
        f"gpu 0 error nvmlDeviceGetComputeRunningProcesses {word}",
        f"gpu 0 error nvmlDeviceGetGraphicsRunningProcesses {word}",
    )
    nvml_state.write(*GPU, *silent)
    assert probed.look()["state"] == "free"
    nvml_state.write(*GPU, *silent, "gpu 0 proc 4200010 3000")
    assert probed.look()["state"] == "occupied"


def test_a_process_without_figure_is_judged_by_the_memory_in_use(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 gproc 4200010 -", "gpu 0 mem_used_mib 700")
    seen = probed.look()
    assert (seen["state"], held(seen)) == ("free", [[4200010, None]])
    nvml_state.write(*GPU, "gpu 0 proc 4200010 -", "gpu 0 proc 4200011 2000", "gpu 0 mem_used_mib 4600")
    assert probed.look(4200011)["detail"] == "1.96G held by processes that are not ours: pid 4200010 (unknown)"
    # ours without a figure, and nobody else
    nvml_state.write(*GPU, "gpu 0 proc 4200010 -", "gpu 0 mem_used_mib 4600")
    assert probed.look(4200010)["state"] == "free"


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
        nvml_state.write(*GPU, unknown, "gpu 0 proc 4200010 300")
        assert probed.look()["state"] == "occupied"
        nvml_state.write(*GPU, unknown, "gpu 0 gproc 4200010 -")
        assert probed.look()["state"] == "free"
        nvml_state.write(*GPU, unknown, "gpu 0 proc 4200010 -")
        assert probed.look()["detail"] == "in use by processes that are not ours: pid 4200010 (unknown)"


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
        *GPU, old, "gpu 0 error nvmlDeviceGetComputeRunningProcesses_v3 FUNCTION_NOT_FOUND", "gpu 0 proc 4200010 200"
    )
    assert held(probed.look()) == [[4200010, 200]]
    nvml_state.write(*GPU, old, "gpu 0 mem_used_mib 1400")
    assert probed.look()["state"] == "occupied"


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("gpu 0 error * GPU_IS_LOST", "lost", "the GPU is lost"),
        ("gpu 0 error nvmlDeviceGetMemoryInfo UNKNOWN", "unknown", "nvmlDeviceGetMemoryInfo with: Unknown Error"),
        ("gpu 0 error nvmlDeviceGetTotalEccErrors UNKNOWN", "unknown", "nvmlDeviceGetTotalEccErrors"),
        ("gpu 0 error nvmlDeviceGetUtilizationRates RESET_REQUIRED", "lost", "needs a reset"),
        ("gpu 0 error nvmlDeviceGetComputeRunningProcesses TIMEOUT", "hang", "timed out"),
        ("gpu 0 error nvmlDeviceGetIndex IRQ_ISSUE", "other", "Interrupt Request Issue"),
        ("system error nvmlInit DRIVER_NOT_LOADED", "other", "modprobe nvidia"),
        ("system error nvmlInit LIB_RM_VERSION_MISMATCH", "mismatch", "driver upgraded, reboot"),
    ],
)
def test_a_fault_makes_it_unavailable_until_it_is_over(
    nvml_state: State, probed: Machine, line: str, kind: str, says: str
) -> None:
    nvml_state.write(*GPU, line)
    for _ in range(2):
        seen = probed.look()
        assert (seen["state"], seen["memory_total_mib"], seen["memory_free_mib"]) == ("unavailable", 10000, None)
        assert (seen["fault"], seen["ecc_uncorrected"]) == (kind, None)
        assert says in seen["detail"]
    nvml_state.write(*GPU)
    seen = probed.look()
    assert (seen["state"], seen["fault"]) == ("free", "")


def test_uncorrected_ecc_errors_are_counted(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 ecc 3", "gpu 0 ecc_corrected 70")
    assert probed.look()["ecc_uncorrected"] == 3
    nvml_state.write(*GPU, "gpu 0 ecc -")  # a GPU without ECC answers NOT_SUPPORTED
    seen = probed.look()
    assert (seen["ecc_uncorrected"], seen["state"]) == (None, "free")


def test_where_neither_memory_nor_processes_are_told_it_is_not_idle(nvml_state: State, probed: Machine) -> None:
    """G1: unknown is neither used nor free."""
    silent = [f"gpu 0 error {name} NOT_SUPPORTED" for name in ("nvmlDeviceGetMemoryInfo", f"{COMPUTE}")]
    nvml_state.write(*GPU, *silent)
    seen = probed.look()
    assert (seen["state"], seen["fault"]) == ("unavailable", "other")
    assert "neither its memory nor its processes" in seen["detail"]
    nvml_state.write(*GPU, silent[0])
    assert probed.look()["state"] == "free"


def test_memory_that_the_list_does_not_explain_is_somebodys(nvml_state: State, probed: Machine) -> None:
    """Processes of other containers hide behind one that can be seen."""
    nvml_state.write(*GPU, "gpu 0 proc 4200010 100", "gpu 0 mem_used_mib 5600")
    seen = probed.look()
    assert (seen["state"], held(seen)) == ("occupied", [[4200010, 100]])
    assert seen["detail"].startswith("4.89G held") and "some that cannot be seen from here" in seen["detail"]
    nvml_state.write(*GPU, "gpu 0 proc 4200010 100", "gpu 0 mem_used_mib 950")  # what a driver takes for itself
    assert probed.look()["state"] == "free"


def test_how_much_strangers_may_hold_can_be_told(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 proc 4200010 3000")
    assert probed.look(over_mib=3000)["state"] == "free"
    assert probed.look(over_mib=2999)["state"] == "occupied"
    nvml_state.write(*GPU, "gpu 0 gproc 4200010 -", "gpu 0 mem_used_mib 3600")
    assert probed.look(over_mib=3000)["state"] == "free"
    assert probed.look(over_mib=2999)["state"] == "occupied"


def test_what_ours_hold_is_told(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 proc 4200010 3000", "gpu 0 proc 4200011 2000", "gpu 0 gproc 4200012 100")
    seen = probed.look(4200010, 4200011)
    assert (seen["ours"], seen["memory_used_mib"]) == ([[4200010, 3000], [4200011, 2000]], 5100)
    assert probed.child.ask("probe.look([4200010, 4200011]).ours_mib") == 5000
    nvml_state.write(*GPU, "gpu 0 proc 4200010 -", "gpu 0 mem_used_mib 4600")
    assert probed.child.ask("probe.look([4200010]).ours_mib") is None


def test_a_slot_looks_at_its_whole_gpu(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*TWO, "gpu 1 proc 4200010 3000")
    machine.probe(1)
    whole = machine.look(4200010)
    machine.child.run("probe = probing.Probe(probe.device.as_slot(2))")
    assert machine.child.ask("probe.device.uuid") == "GPU-b/2"
    assert machine.look(4200010) == whole and whole["ours"] == [[4200010, 3000]]


def test_a_gpu_that_vanished_is_found_again_by_its_uuid(nvml_state: State, probed: Machine) -> None:
    assert probed.look()["state"] == "free"
    nvml_state.write()
    for says in ("the GPU is lost", "no longer knows a GPU with this UUID"):
        seen = probed.look()
        assert seen["fault"] == "lost" and says in seen["detail"]
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
    seen = machine.look()
    assert (seen["detail"], seen["fault"]) == ("its index changed from 1 to 0: restart the worker", "other")


def test_mig_enabled_later_makes_it_unavailable(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 mig_mode 1")
    seen = probed.look()
    assert (seen["state"], seen["fault"]) == ("unavailable", "other") and "MIG was enabled" in seen["detail"]


def test_a_call_that_hangs_costs_a_bounded_time(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*GPU)
    machine.probe(timeout_s=0.4)
    assert machine.look()["state"] == "free"
    nvml_state.write(*GPU, "gpu 0 delay_ms nvmlDeviceGetUtilizationRates -1")
    for _ in range(3):
        seen = machine.look()
        assert (seen["state"], seen["fault"]) == ("unavailable", "hang") and "has not answered for" in seen["detail"]
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
    memory = nvml_state.hold(0, 700, pid)
    assert held(probed.look()) == [[pid, 700]]
    assert probed.look(pid)["state"] == "free"
    memory.unlink()
    assert held(probed.look()) == []


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
    assert (seen["state"], seen["fault"]) == ("unavailable", "mismatch")
    assert seen["detail"].startswith("driver upgraded, reboot")


def test_closing_ends_the_thread(probed: Machine) -> None:
    probed.look()
    probed.child.run("probe.close(); import threading")
    until(
        lambda: not probed.child.ask("[t for t in threading.enumerate() if t.name == 'nvml']"),
        what="the thread's end",
    )
