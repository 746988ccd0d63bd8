"""All GPUs in one go, and the figures of one."""

from __future__ import annotations

import pytest
from nvml_stub import State
from stub_machine import Machine
from wait import until

pytestmark = pytest.mark.nvml

UUIDS = [f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(8)]
EIGHT = [
    f"gpu {index} {line}"
    for index in range(8)
    for line in ("name NVIDIA H200", "mem_total_mib 10000", f"util {index} 0", f"proc {4200010 + index} {index}00")
]
CUT = ("gpu 8 mig_mode 1", "mig 8 0 uuid MIG-a", "mig 8 2 uuid MIG-c", "mig 8 2 proc 4200030 900")
TAKEN = "[(x.index, x.mig, x.uuid, x.fault) for x in snapshots.snapshot()]"
SILENT = "gpu 2 delay_ms nvmlDeviceGetUtilizationRates -1"


@pytest.fixture
def eight(nvml_state: State, machine: Machine) -> Machine:
    nvml_state.write(*EIGHT)
    return machine


def whole(fault: str = "", at: int = -1) -> list[list[object]]:
    return [[index, None, "" if index == at else UUIDS[index], fault if index == at else ""] for index in range(8)]


def test_all_gpus_in_pci_order(nvml_state: State, eight: Machine) -> None:
    assert eight.child.ask(TAKEN) == whole()
    third = eight.child.ask("snapshots.snapshot()[3]")
    assert (third["name"], third["detail"]) == ("NVIDIA H200", "")
    sample = third["sample"]
    assert [sample[name] for name in ("memory_total_mib", "memory_used_mib", "utilization")] == [10000, 300, 3]
    assert sample["processes"] == [{"pid": 4200013, "mib": 300, "compute": True}]
    nvml_state.write(*EIGHT, "gpu 7 bus 00000000:01:00.0")
    eight.child.run("snapshots._snapshots.close()")
    assert [x[2] for x in eight.child.ask(TAKEN)] == [UUIDS[7], *UUIDS[:7]]
    assert [x[0] for x in eight.child.ask(TAKEN)] == list(range(8))


def test_instances_stand_in_place_of_their_gpu(nvml_state: State, eight: Machine) -> None:
    nvml_state.write(*EIGHT, *CUT)
    assert eight.child.ask(TAKEN)[8:] == [[8, 0, "MIG-a", ""], [8, 2, "MIG-c", ""]]
    assert eight.child.ask("snapshots.snapshot()[9].sample.memory_used_mib") == 900
    nvml_state.write(*EIGHT, *CUT, "mig 8 1 uuid MIG-b")  # made while we look
    assert [x[1] for x in eight.child.ask(TAKEN)[8:]] == [0, 1, 2]
    nvml_state.write(*EIGHT, "gpu 8 uuid GPU-x")
    assert eight.child.ask(TAKEN)[8:] == [[8, None, "GPU-x", ""]]
    nvml_state.write(*EIGHT, *CUT[:1])
    assert len(eight.child.ask(TAKEN)) == 8


def test_a_fault_of_one_leaves_the_others(nvml_state: State, eight: Machine) -> None:
    assert eight.child.ask(TAKEN) == whole()
    for error, fault in (("nvmlDeviceGetMemoryInfo UNKNOWN", "unknown"), ("* GPU_IS_LOST", "lost")):
        nvml_state.write(*EIGHT, f"gpu 5 error {error}")
        assert eight.child.ask(TAKEN) == whole(fault, 5)
    assert "fell off the bus" in eight.child.ask("snapshots.snapshot()[5].detail")
    nvml_state.write(*EIGHT)
    assert eight.child.ask(TAKEN) == whole()


def test_without_nvml_it_says_why(nvml_state: State, eight: Machine) -> None:
    assert eight.child.ask(TAKEN) == whole()
    nvml_state.write(*EIGHT, "system error nvmlInit LIB_RM_VERSION_MISMATCH")
    refused = eight.refused("snapshots.snapshot()")
    assert refused.kind == "NvmlFault" and "driver upgraded, reboot" in refused.text
    nvml_state.write(*EIGHT, "system delay_ms nvmlInit -1")
    assert "has not answered" in eight.refused("snapshots.snapshot(0.2)").text
    assert eight.child.seconds < 2
    nvml_state.write(*EIGHT)
    until(lambda: eight.child.ask(TAKEN) == whole(), what="NVML answers again")


def test_one_that_hangs_costs_a_bounded_time_once(nvml_state: State, eight: Machine) -> None:
    """G7: the others are told, and the one that hangs is not asked again while it does."""
    nvml_state.write(*EIGHT, SILENT)
    taken = TAKEN.replace("snapshot()", "snapshot(0.4)")
    assert eight.child.ask(taken) == whole("hang", 2)
    assert 0.4 < eight.child.seconds < 3
    for _ in range(2):
        assert eight.child.ask(taken) == whole("hang", 2)
        assert eight.child.seconds < 0.3
    assert eight.child.ask("sum(t.name == 'nvml' for t in __import__('threading').enumerate())") == 2
    nvml_state.write(*EIGHT)
    until(lambda: eight.child.ask(taken) == whole(), what="the GPU answers again")
    threads = "sum(t.name == 'nvml' for t in __import__('threading').enumerate())"
    until(lambda: eight.child.ask(threads) == 1, what="the end of the thread that hung")


def test_it_works_in_threads_and_in_a_forked_process(eight: Machine) -> None:
    eight.child.run(
        "import os, threading\n"
        "good = [x.uuid for x in snapshots.snapshot()]; same = []\n"
        "def look():\n"
        "    for _ in range(20): same.append([x.uuid for x in snapshots.snapshot()] == good)\n"
        "threads = [threading.Thread(target=look) for _ in range(4)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
    )
    assert eight.child.ask("(len(same), all(same))") == [80, True]
    eight.child.run(
        "device = survey.discover(None, 0, 'home', 'host', {})[3]; snapshots.memory_of(device)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    fine = False\n"
        "    try:\n"
        "        fine = [x.uuid for x in snapshots.snapshot(2)] == good\n"
        "        fine = fine and snapshots.memory_of(device, 2).used_mib == 300\n"
        "    finally: os._exit(0 if fine else 1)\n"
    )
    assert eight.child.ask("os.waitpid(pid, 0)[1]") == 0


def test_a_snapshot_of_eight_devices_is_quick(eight: Machine) -> None:
    """Two milliseconds through the stub, whose every call reads a file; twice that is allowed for here."""
    eight.child.run(
        "import time; snapshots.snapshot(); took = []\n"
        "for _ in range(200):\n"
        "    began = time.perf_counter(); snapshots.snapshot(); took.append(time.perf_counter() - began)\n"
    )
    assert eight.child.ask("sorted(took)[len(took) // 4] * 1000") < 4


def test_a_look_asks_little(nvml_state: State, eight: Machine) -> None:
    """Not one call more than are needed, however many processes are there."""
    calls = "len([call for call in asked if call != 'nvmlShutdown'])"
    eight.child.run(
        "import pynvml; asked = []; real = pynvml._nvmlGetFunctionPointer\n"
        "pynvml._nvmlGetFunctionPointer = lambda name: (asked.append(name), real(name))[1]\n"
        "snapshots.snapshot()"
    )
    eight.child.run("asked.clear(); snapshots.snapshot()")
    assert eight.child.ask(calls) <= 2 + 8 * 7
    eight.probe(3)
    eight.look()
    eight.child.run("asked.clear(); probe.look(())")
    assert eight.child.ask(calls) <= 9


def test_memory_and_utilization_of_one(nvml_state: State, eight: Machine) -> None:
    nvml_state.write(*EIGHT, *CUT)
    eight.child.run(
        "devices = survey.discover(None, 1, 'home', 'host', {}); fourth, mig, cpu = devices[4], devices[9], devices[-1]"
    )
    memory = eight.child.ask("snapshots.memory_of(fourth)")
    assert [memory[name] for name in ("total_mib", "used_mib", "free_mib")] == [10000, 400, 9600]
    assert eight.child.ask("abs(__import__('time').time() - snapshots.memory_of(fourth).observed_at)") < 5
    assert eight.child.ask("snapshots.memory_of(fourth.as_slot(1)).used_mib") == 400
    assert eight.child.ask("[snapshots.utilization_of(x) for x in (fourth, mig, cpu)]") == [4, None, None]
    assert eight.child.ask("(mig.ref, snapshots.memory_of(mig).used_mib)") == ["mig:8.2", 900]
    assert eight.child.ask("snapshots.memory_of(cpu)") is None
    eight.child.run("sim = survey.discover('1x24G', 0, 'home', 'host', {})[0]")
    simulated = eight.child.ask("snapshots.memory_of(sim)")
    assert [simulated[name] for name in ("total_mib", "used_mib", "free_mib")] == [24576, 0, 24576]
    assert eight.child.ask("snapshots.utilization_of(sim)") is None


def test_figures_that_are_not_told_are_none_and_faults_are_raised(nvml_state: State, eight: Machine) -> None:
    eight.child.run("device = survey.discover(None, 0, 'home', 'host', {})[4]")
    both = ("snapshots.memory_of(device, 0.3)", "snapshots.utilization_of(device, 0.3)")
    unknown = [
        f"gpu 4 error {name} NOT_SUPPORTED" for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates")
    ]
    nvml_state.write(*EIGHT, *unknown)
    assert [eight.child.ask(source) for source in both] == [None, None]
    nvml_state.write(*EIGHT, "gpu 4 error * GPU_IS_LOST")
    for source in both:
        refused = eight.refused(source)
        assert refused.kind == "NvmlFault" and "lost" in refused.text
    nvml_state.write(*EIGHT, "gpu 4 delay_ms nvmlDeviceGetMemoryInfo -1")
    for source in both:
        assert "has not answered" in eight.refused(source).text and eight.child.seconds < 2
    nvml_state.write(*EIGHT)
    until(lambda: eight.child.ask(both[1]) == 4, what="the GPU answers again")
