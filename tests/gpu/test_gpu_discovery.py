"""Finding NVIDIA GPUs: order, names, CUDA_VISIBLE_DEVICES, and what is left out and why."""

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
    machine.child.run("a, b, slot = gpu.survey(None, 1, 'home', 'host', {}).devices")
    shown = "[[gpu.cuda_visible(device, how) for device in (a, b, slot)] for how in ('index', 'uuid')]"
    assert machine.child.ask(shown) == [["0", "1", ""], [UUIDS[0], UUIDS[1], ""]]
    assert "give index or uuid" in machine.refused("gpu.cuda_visible(a, 'name')").text


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("2,3", [2, 3]),
        (" 3 , 0 ", [0, 3]),
        (f"{UUIDS[3]},{UUIDS[1].lower()}", [1, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
    ],
)
def test_visible_devices_limit_what_is_found(
    nvml_state: State, machine: Machine, visible: str, indices: list[int]
) -> None:
    """F4: NVML ignores the variable, we do not; the devices keep their places among all GPUs."""
    nvml_state.write(*FOUR)
    assert machine.indices(CUDA_VISIBLE_DEVICES=visible) == indices
    found = machine.survey(CUDA_VISIBLE_DEVICES=visible)["devices"]
    assert [device["uuid"] for device in found] == [UUIDS[index] for index in indices]


@pytest.mark.parametrize("visible", ["", "-1", " "])
def test_empty_visible_devices_mean_no_gpu(nvml_state: State, machine: Machine, visible: str) -> None:
    """F4: none, not all."""
    nvml_state.write(*FOUR)
    assert [device["kind"] for device in machine.survey(1, CUDA_VISIBLE_DEVICES=visible)["devices"]] == ["cpu"]
    refused = machine.refused_discovery(CUDA_VISIBLE_DEVICES=visible)
    assert refused.kind == "NoDevice"
    assert "no device found: --simulate 2x24G or --cpu 2" in refused.text
    assert f"CUDA_VISIBLE_DEVICES is {visible!r}, which means no GPU" in refused.text


@pytest.mark.parametrize(
    ("visible", "says"),
    [
        ("7", "names 7, which is no index"),
        ("0,0", "names a GPU twice"),
        (f"{UUIDS[0]},{UUIDS[0].upper()}", "names a GPU twice"),
        (f"0,{UUIDS[1]}", "mixes indices and UUIDs"),
        ("GPU-00000000", "no whole UUID"),
        (UUIDS[0].replace("0-", "9-"), "no whole UUID"),
        ("MIG-00000000-0000-0000-0000-000000000000", "MIG instances cannot be leased yet"),
        ("0,-1,1", "'-1' is not understood"),
        ("0,", "'' is not understood"),
        ("1e0", "'1e0' is not understood"),
        ("²", "'²' is not understood"),
        ("9" * 5000, "is not understood"),
        ("all", "'all' is not understood"),
    ],
)
def test_unclear_visible_devices_are_refused_with_the_cure(
    nvml_state: State, machine: Machine, visible: str, says: str
) -> None:
    """F4: a prefix of a UUID too, which CUDA would take."""
    nvml_state.write(*FOUR)
    refused = machine.refused_discovery(CUDA_VISIBLE_DEVICES=visible)
    assert refused.kind == "InvalidInput"
    assert says in refused.text
    assert "write indices like 0,2 or whole UUIDs from nvidia-smi -L, or unset it" in refused.text


def test_indices_among_unlike_gpus_need_an_order(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*UNLIKE)
    unsaid = machine.survey(CUDA_VISIBLE_DEVICES="1")
    assert [device["name"] for device in unsaid["devices"]] == ["NVIDIA T4"]
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in unsaid["notes"][0]
    for clear in ("1", UUIDS[1]):
        said = machine.survey(CUDA_VISIBLE_DEVICES=clear, CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert said["notes"] == []
    refused = machine.refused_discovery(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert refused.kind == "InvalidInput" and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in refused.text
    for clear in ("1,0", UUIDS[1]):
        assert machine.indices(CUDA_VISIBLE_DEVICES=clear, CUDA_DEVICE_ORDER="FASTEST_FIRST")


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


def test_a_gpu_with_mig_is_left_out_with_the_reason(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*FOUR, "gpu 1 mig_mode 1", "mig 1 0 mem_total_mib 9984")
    found = machine.survey()
    assert [device["index"] for device in found["devices"]] == [0, 2, 3]
    assert "GPU 1 (NVIDIA H200" in found["notes"][0] and "MIG is enabled" in found["notes"][0]
    refused = machine.refused_discovery(CUDA_VISIBLE_DEVICES="1")
    assert refused.kind == "NoDevice" and "-mig 0" in refused.text


def test_a_gpu_that_hangs_costs_a_bounded_time_and_no_other_gpu(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*FOUR, "gpu 1 delay_ms nvmlDeviceGetUUID -1")
    machine.child.run(
        "import pynvml; nvml.GPU_TIMEOUT_S = 0.5; closed = []; pynvml.nvmlShutdown = lambda: closed.append(1)"
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
    names = "[device.name for device in gpu.discover(None, 0, 'home', 'host', {})]"
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
