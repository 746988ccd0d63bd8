"""Simulated devices and CPU slots: spelling, identity, naming them, looking at them."""

from __future__ import annotations

import pytest

from foxqueue import gpu, probing, survey
from foxqueue.errors import InvalidInput, NoDevice


def made(simulate: str | None, cpu: int = 0, identity: str = "home", host: str = "host") -> list[gpu.Device]:
    environ = {"CUDA_VISIBLE_DEVICES": ""}  # whatever this machine has, it stays out
    return survey.discover(simulate, cpu, identity, host, environ)


def test_simulated_devices_and_cpu_slots() -> None:
    devices = made("1x24G,2x512M", cpu=2)
    shown = [(device.ref, device.kind, device.name, device.memory_total_mib) for device in devices]
    assert shown == [
        ("sim:0", "simulated", "simulated GPU 24G", 24576),
        ("sim:1", "simulated", "simulated GPU 512M", 512),
        ("sim:2", "simulated", "simulated GPU 512M", 512),
        ("cpu:0", "cpu", "CPU slot 0", None),
        ("cpu:1", "cpu", "CPU slot 1", None),
    ]
    assert all(gpu.cuda_visible(device, how) == "" for device in devices for how in ("index", "uuid"))


def test_identity_is_stable_and_distinct_between_homes_and_hosts() -> None:
    uuids = [device.uuid for device in made("2x24G", cpu=2)]
    assert uuids == [device.uuid for device in made("2x24G", cpu=2)]
    # neither other sizes nor more devices change it
    assert uuids[:2] == [device.uuid for device in made("3x8G")][:2]
    assert uuids[2:] == [device.uuid for device in made(None, cpu=2)]
    # pinned: another value would orphan the locks and grants of every installation
    assert (
        uuids[0] == "SIM-2be0af9a-3c73-5594-9484-8f593c6c656b"
        and uuids[2] == "CPU-9dbf152b-ac7d-5e87-a50c-47af648e68f2"
    )
    everywhere = [
        device.uuid
        for identity in ("home", "other")
        for host in ("host", "other")
        for device in made("2x24G", 2, identity, host)
    ]
    assert len(set(everywhere)) == len(everywhere) == 16


@pytest.mark.parametrize("text", ["2x24G", "2X24g", " 1x24G , 1x24GiB ", "02x24G"])
def test_spellings(text: str) -> None:
    assert gpu.parse_simulate(text) == [24576, 24576]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write COUNTxMEMORY, like 2x24G or 1x24G,1x8G"),
        ("24G", "write COUNTxMEMORY"),
        ("2*24G", "write COUNTxMEMORY"),
        ("-1x24G", "write COUNTxMEMORY"),
        ("2x", "write COUNTxMEMORY"),
        ("1x24G,", "write COUNTxMEMORY"),
        ("²x24G", "write COUNTxMEMORY"),
        ("2x24", "write a number and M, G or T, like 8G"),
        ("2x24Q", "memory size '24Q' is not understood"),
        ("0x24G", "count and memory must be above 0"),
        ("2x0", "count and memory must be above 0"),
        ("2x0G", "count and memory must be above 0"),
        ("65x1G", "too many: at most 64"),
        ("60x1G,5x1G", "too many: at most 64"),
        ("999999999x1G", "too many: at most 64"),
    ],
)
def test_what_is_malformed_is_refused_with_the_cure(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        gpu.parse_simulate(text)
    assert says in str(refused.value)
    assert text in str(refused.value) or text.partition("x")[2] in str(refused.value)


@pytest.mark.parametrize(("simulate", "cpu"), [(None, -1), (None, 65), ("60x1G", 5)])
def test_bounds_of_cpu_slots(simulate: str | None, cpu: int) -> None:
    with pytest.raises(InvalidInput, match="0 to 64 in all"):
        made(simulate, cpu)
    assert len(made("60x1G", 4)) == 64


def test_no_device_names_the_cures() -> None:
    with pytest.raises(NoDevice, match="no device found: --simulate 2x24G or --cpu 2"):
        made(None)


def test_find() -> None:
    devices = made("2x24G", cpu=1)
    first, second, slot = devices
    for ref in ("1", "sim:1", "gpu:1", " SIM:1 ", second.uuid, second.uuid.upper()):
        assert gpu.find(devices, ref) is second
    assert gpu.find(devices, "cpu:0") is slot
    assert gpu.find(devices, "0") is first
    for ref in ("2", "cpu:1", "", "SIM-", "00", "0/1", first.uuid[4:], first.uuid + "0"):
        with pytest.raises(NoDevice) as refused:
            gpu.find(devices, ref)
        assert f"no device {ref!r} here" in str(refused.value)
        assert all(device.ref in str(refused.value) and device.uuid in str(refused.value) for device in devices)
    with pytest.raises(NoDevice):  # a GPU job never takes a CPU slot, so neither does an index
        gpu.find([slot], "0")


def test_find_by_the_beginning_of_a_uuid() -> None:
    one, other = (gpu.Device(f"GPU-aa1{last}", index, "T4", "nvml", 1) for index, last in enumerate("2f"))
    assert gpu.find([one, other], "GPU-aa12") is one and gpu.find([one, other], "gpu-AA1F") is other
    assert gpu.find([one], "GPU-a") is one
    with pytest.raises(InvalidInput) as refused:
        gpu.find([one, other], "GPU-aa1")
    assert "'GPU-aa1' may mean more than one device" in str(refused.value)
    assert "gpu:0 (T4, GPU-aa12), gpu:1 (T4, GPU-aa1f)" in str(refused.value)
    longer = gpu.Device("GPU-aa12b", 2, "T4", "nvml", 1)
    assert gpu.find([longer, one], "GPU-aa12") is one, "a whole UUID means itself"


def test_find_several() -> None:
    devices = made("3x24G", cpu=1)
    assert gpu.find_all(devices, ["sim:2", "0", "cpu:0"]) == [devices[2], devices[0], devices[3]]
    assert gpu.find_all(devices, []) == []
    with pytest.raises(InvalidInput) as refused:
        gpu.find_all(devices, ["1", "cpu:0", devices[1].uuid])
    assert f"'1' and '{devices[1].uuid}' name the same device" in str(refused.value)
    with pytest.raises(NoDevice, match="no device '7' here"):
        gpu.find_all(devices, ["0", "7"])


def test_slots_of_a_device() -> None:
    real = gpu.Device("GPU-b", 1, "T4", "nvml", 15360)
    slots = [real.as_slot(number) for number in range(3)]
    assert [(slot.ref, slot.uuid, slot.whole, slot.slot) for slot in slots[:2]] == [
        ("gpu:1/0", "GPU-b/0", "GPU-b", 0),
        ("gpu:1/1", "GPU-b/1", "GPU-b", 1),
    ]
    assert (real.whole, real.of_slot, real.slot) == ("GPU-b", real, None)
    assert slots[2].of_slot == real and slots[2].as_slot(1) == slots[1]
    assert slots[0].memory_total_mib == 15360
    for ref in ("gpu:1/2", "1/2", "GPU-b/2", "gpu-B/2"):
        assert gpu.find(slots, ref) is slots[2]
    with pytest.raises(InvalidInput) as refused:
        gpu.find(slots, "gpu:1")
    assert "gpu:1/0 (" in str(refused.value) and "gpu:1/2 (" in str(refused.value)
    # the job sees the whole GPU, however it is shown
    assert [gpu.cuda_visible(slots[2], how) for how in ("index", "uuid")] == ["1", "GPU-b"]
    assert made("1x24G")[0].as_slot(1).ref == "sim:0/1"


def test_a_slot_of_a_simulated_device_looks_like_the_whole() -> None:
    device = made("1x24G")[0]
    assert probing.Probe(device.as_slot(1)).look(()) == probing.Probe(device).look(())


def test_looks_are_always_free() -> None:
    device, slot = made("1x24G", cpu=1)
    assert probing.Probe(device).look(()) == probing.Observation(24576, 24576, None, "free", memory_used_mib=0)
    assert probing.Probe(slot).look(()) == probing.Observation(None, None, None, "free")
