"""Simulated devices and CPU slots: spelling, identity, naming them, looking at them."""

from __future__ import annotations

import pytest

from foxqueue import gpu
from foxqueue.errors import InvalidInput, NoDevice


def made(simulate: str | None, cpu: int = 0, identity: str = "home", host: str = "host") -> list[gpu.Device]:
    environ = {"CUDA_VISIBLE_DEVICES": ""}  # whatever this machine has, it stays out
    return gpu.discover(simulate, cpu, identity, host, environ)


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
    for ref in ("2", "cpu:1", "", "SIM-", "00", first.uuid[:-1]):
        with pytest.raises(NoDevice) as refused:
            gpu.find(devices, ref)
        assert f"no device {ref!r} here" in str(refused.value)
        assert all(device.ref in str(refused.value) and device.uuid in str(refused.value) for device in devices)
    with pytest.raises(NoDevice):  # a GPU job never takes a CPU slot, so neither does an index
        gpu.find([slot], "0")


def test_looks_are_always_free() -> None:
    device, slot = made("1x24G", cpu=1)
    assert gpu.Probe(device).look(()) == gpu.Observation(24576, 24576, None, "free")
    assert gpu.Probe(slot).look(()) == gpu.Observation(None, None, None, "free")
