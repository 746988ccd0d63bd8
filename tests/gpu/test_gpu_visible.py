"""What CUDA_VISIBLE_DEVICES leaves of the GPUs of a machine."""

from __future__ import annotations

import pytest
from nvml_stub import State
from stub_machine import Machine

pytestmark = pytest.mark.nvml

UUIDS = [
    f"GPU-{begin}0000-0000-4000-8000-00000000000{index}" for index, begin in enumerate(("aa12", "aa1f", "b012", "cc12"))
]
FOUR = tuple(f"gpu {index} uuid {uuid}" for index, uuid in enumerate(UUIDS))
UNLIKE = (
    *FOUR[:2],
    "gpu 0 name NVIDIA A100",
    "gpu 0 mem_total_mib 40960",
    "gpu 1 name NVIDIA T4",
    "gpu 1 mem_total_mib 15360",
)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("2,3", [2, 3]),
        (" 3 , 0 ", [0, 3]),
        (f"{UUIDS[3]},{UUIDS[1].lower()}", [1, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("GPU-aa12,GPU-b", [0, 2]),
        ("gpu-AA1F", [1]),
        ("GPU-c", [3]),
        ("GPU-cc", [3]),
    ],
)
def test_visible_devices_limit_what_is_found(
    nvml_state: State, machine: Machine, visible: str, indices: list[int]
) -> None:
    """F4: NVML ignores the variable, we do not; the devices keep their places among all GPUs.

    The beginning of a UUID is enough if no other GPU has it, as for the driver.
    """
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
        (f"{UUIDS[0]},GPU-aa12", f"names {UUIDS[0]} twice"),
        (f"0,{UUIDS[1]}", "mixes indices and UUIDs"),
        ("0,GPU-b", "mixes indices and UUIDs"),
        ("GPU-", "'GPU-' is not understood"),
        ("GPU-aa13", "no beginning of a UUID of a GPU here; there are 0 (GPU-aa12"),
        (UUIDS[0] + "0", "no beginning of a UUID"),
        ("SIM-aa12", "'SIM-aa12' is not understood"),
        ("MIG-00000000-0000-0000-0000-000000000000", "no beginning of a UUID"),
        ("MIG-GPU-aa12/1/0", "no beginning of a UUID"),
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
    nvml_state.write(*FOUR)
    refused = machine.refused_discovery(CUDA_VISIBLE_DEVICES=visible)
    assert refused.kind == "InvalidInput"
    assert says in refused.text
    assert "write indices like 0,2 or UUIDs from nvidia-smi -L, or unset it" in refused.text
    assert len(refused.text) < 1000


def test_a_beginning_that_two_gpus_have_is_refused_with_both(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*FOUR)
    refused = machine.refused_discovery(CUDA_VISIBLE_DEVICES="GPU-AA1")
    assert refused.kind == "InvalidInput" and "names gpu-aa1, and more than one" in refused.text
    assert UUIDS[0] in refused.text and UUIDS[1] in refused.text and UUIDS[2] not in refused.text
    assert refused.text.endswith("give more of it")
    # one that is the beginning of another means itself
    nvml_state.write(*FOUR, f"gpu 4 uuid {UUIDS[3]}0")
    assert machine.indices(CUDA_VISIBLE_DEVICES=UUIDS[3]) == [3]


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
