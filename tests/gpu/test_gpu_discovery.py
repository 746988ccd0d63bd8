"""Finding NVIDIA GPUs: order, names, and what is left out and why."""

from __future__ import annotations

import os

import pytest
from nvml_stub import State
from stub_machine import Machine

pytestmark = pytest.mark.nvml

SYSTEM_MIB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
FOUR = tuple(f"gpu {index} name NVIDIA H200" for index in range(4))
UUIDS = [f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(4)]
UNLIKE = ("gpu 0 name NVIDIA A100", "gpu 0 mem_total_mib 40960", "gpu 1 name NVIDIA T4", "gpu 1 mem_total_mib 15360")


def test_each_gpu_is_a_device(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*UNLIKE)
    found = machine.survey(cpu=1)
    assert found["notes"] == [] and found["no_gpu"] is None
    first, second, slot = found["devices"]
    assert first == {
        "uuid": UUIDS[0],
        "index": 0,
        "name": "NVIDIA A100",
        "kind": "nvml",
        "memory_total_mib": 40960,
        "mig": None,
        "slot": None,
    }
    assert (second["uuid"], second["index"], second["memory_total_mib"]) == (UUIDS[1], 1, 15360)
    assert (slot["kind"], slot["index"], slot["memory_total_mib"]) == ("cpu", 0, None)


def test_indices_follow_pci_order_as_cuda_does(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*UNLIKE, "gpu 0 bus 00000000:3B:00.0", "gpu 1 bus 00000000:1A:00.0")
    names = [(device["index"], device["name"]) for device in machine.survey()["devices"]]
    assert names == [(0, "NVIDIA T4"), (1, "NVIDIA A100")]
    # and CUDA_VISIBLE_DEVICES is read in the same order
    only = machine.survey(CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")["devices"]
    assert [device["name"] for device in only] == ["NVIDIA T4"]


def test_jobs_are_shown_the_device_by_index_or_uuid(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*UNLIKE)
    machine.child.run("a, b, slot = survey.survey(None, 1, 'home', 'host', {}).devices")
    shown = "[[gpu.cuda_visible(device, how) for device in (a, b, slot)] for how in ('index', 'uuid')]"
    assert machine.child.ask(shown) == [["0", "1", ""], [UUIDS[0], UUIDS[1], ""]]
    assert "give index or uuid" in machine.refused("gpu.cuda_visible(a, 'name')").text


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("nvmlInit DRIVER_NOT_LOADED", "the NVIDIA driver is not loaded"),
        ("nvmlInit LIB_RM_VERSION_MISMATCH", "driver upgraded, reboot"),
        ("nvmlInit NO_PERMISSION", "let this user open /dev/nvidia*"),
        ("nvmlInit FUNCTION_NOT_FOUND", "too old"),
        ("nvmlDeviceGetCount UNKNOWN", "nvmlDeviceGetCount with: Unknown Error"),
    ],
)
def test_says_why_nvml_gave_nothing(nvml_state: State, machine: Machine, error: str, says: str) -> None:
    nvml_state.write(*FOUR, f"system error {error}")
    refused = machine.refused_discovery()
    assert refused.kind == "NoDevice"
    assert says in refused.text
    assert len(machine.survey(cpu=2)["devices"]) == 2


def test_says_that_there_is_no_library(nvml_state: State, machine: Machine) -> None:
    machine.options = {"LD_LIBRARY_PATH": str(nvml_state.root)}
    assert "libnvidia-ml.so.1 is absent" in machine.refused_discovery().text


def test_a_driver_without_gpus_says_so(machine: Machine) -> None:
    assert "the NVIDIA driver finds no GPU" in machine.refused_discovery().text


def test_a_lost_gpu_is_left_out_and_the_others_keep_their_indices(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*FOUR, "gpu 1 error * GPU_IS_LOST")
    found = machine.survey()
    assert [device["index"] for device in found["devices"]] == [0, 2, 3]
    assert found["notes"] == ["GPU 1 is left out: the GPU is lost (fell off the bus): reset it or reboot"]
    assert machine.indices(CUDA_VISIBLE_DEVICES="1,2") == [2]
    assert "GPU 1 is left out" in machine.refused_discovery(CUDA_VISIBLE_DEVICES="1").text


def test_a_gpu_that_hangs_costs_a_bounded_time_and_no_other_gpu(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*FOUR, "gpu 1 delay_ms nvmlDeviceGetUUID -1")
    machine.child.run(
        "import pynvml; nvml.facts.GPU_TIMEOUT_S = 0.5; closed = []; pynvml.nvmlShutdown = lambda: closed.append(1)"
    )
    found = machine.survey()
    assert machine.child.seconds < 5
    assert [device["index"] for device in found["devices"]] == [0, 2, 3]
    assert "GPU 1 is left out: the NVIDIA driver has not answered for 0.5 s" in found["notes"][0]
    assert machine.child.ask("closed") == [], "NVML was shut down under a call"


def test_a_driver_that_hangs_costs_a_bounded_time(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*FOUR, "system delay_ms nvmlInit -1")
    assert "has not answered for 0.3 s" in machine.refused("nvml.inventory(timeout_s=0.3)").text
    assert machine.child.seconds < 5


def test_unknown_memory_is_unknown(nvml_state: State, machine: Machine) -> None:
    """G1: not supported, 0 of 0, and unified memory, whose total is the machine's own."""
    nvml_state.write(
        *FOUR,
        "gpu 0 error nvmlDeviceGetMemoryInfo NOT_SUPPORTED",
        "gpu 1 mem_total_mib 0",
        f"gpu 2 mem_total_mib {SYSTEM_MIB}",
        f"gpu 3 mem_total_mib {SYSTEM_MIB + 2}",
    )
    sizes = [device["memory_total_mib"] for device in machine.survey()["devices"]]
    assert sizes == [None, None, None, SYSTEM_MIB + 2]


def test_names_are_text_whatever_the_binding_gives(nvml_state: State, machine: Machine) -> None:
    """G5: bytes and text, and names that are no UTF-8."""
    nvml_state.write(b"gpu 0 name caf\xe9", "gpu 1 name NVIDIA H200", "gpu 2 error nvmlDeviceGetName NOT_SUPPORTED")
    names = "[device.name for device in survey.discover(None, 0, 'home', 'host', {})]"
    assert machine.child.ask(names) == ["unnamed NVIDIA GPU", "NVIDIA H200", "unnamed NVIDIA GPU"]
    # without its decorator the binding answers with bytes and takes nothing else, as old ones do
    machine.child.run(
        "import pynvml\n"
        "for name in ('nvmlDeviceGetName', 'nvmlDeviceGetUUID', 'nvmlDeviceGetHandleByUUID'):\n"
        "    setattr(pynvml, name, getattr(pynvml, name).__wrapped__)\n"
        "pynvml.nvmlInit()"
    )
    assert machine.child.ask("repr(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)))") == "b'NVIDIA H200'"
    assert machine.child.ask(names) == ["caf\ufffd", "NVIDIA H200", "unnamed NVIDIA GPU"]
    machine.probe(1)
    assert machine.look()["state"] == "free"
