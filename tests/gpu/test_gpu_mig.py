"""G6, MIG: the instances are devices, the GPU that is cut into them is none."""

from __future__ import annotations

from typing import Any

import pytest
from nvml_stub import State
from stub_machine import Machine, held

pytestmark = pytest.mark.nvml

PARENT, WHOLE = "GPU-aa120000-0000-4000-8000-000000000001", "GPU-b0120000-0000-4000-8000-000000000000"
FIRST, THIRD = "MIG-0e1a0000-0000-5000-8000-000000000010", "MIG-0e1b0000-0000-5000-8000-000000000012"
CUT = (
    f"gpu 0 uuid {WHOLE}",
    "gpu 0 mem_total_mib 81920",
    f"gpu 1 uuid {PARENT}",
    "gpu 1 mig_mode 1",
    f"mig 1 0 uuid {FIRST}",
    "mig 1 0 name NVIDIA H200 MIG 1g.18gb",
    "mig 1 0 mem_total_mib 16384",
    f"mig 1 2 uuid {THIRD}",  # number 1 was removed
    "mig 1 2 mem_total_mib 33280",
    "mig 1 2 gi 5",
)


@pytest.fixture
def cut(nvml_state: State, machine: Machine) -> Machine:
    nvml_state.write(*CUT)
    return machine


def refs(found: dict[str, Any]) -> list[tuple[int, int | None]]:
    return [(device["index"], device["mig"]) for device in found["devices"]]


def test_each_instance_is_a_device_and_its_gpu_is_none(cut: Machine) -> None:
    found = cut.survey()
    assert refs(found) == [(0, None), (1, 0), (1, 2)]
    assert found["notes"] == [] and found["no_gpu"] is None
    _, first, third = found["devices"]
    assert (first["uuid"], first["name"], first["memory_total_mib"]) == (FIRST, "NVIDIA H200 MIG 1g.18gb", 16384)
    assert (third["uuid"], third["memory_total_mib"], third["kind"]) == (THIRD, 33280, "nvml")


def test_names_of_instances(cut: Machine) -> None:
    cut.child.run("devices = survey.discover(None, 0, 'home', 'host', {})")
    assert cut.child.ask("[device.ref for device in devices]") == ["gpu:0", "mig:1.0", "mig:1.2"]
    for ref in ("mig:1.2", "1.2", THIRD, THIRD.upper(), "MIG-0e1b"):
        assert cut.child.ask(f"gpu.find(devices, {ref!r}).uuid") == THIRD
    assert cut.child.ask("gpu.find(devices, '0').uuid") == WHOLE
    for ref in ("1", "gpu:1", "MIG-0e1"):
        refused = cut.refused(f"gpu.find(devices, {ref!r})")
        assert refused.kind == "InvalidInput"
        assert "mig:1.0 (" in refused.text and "mig:1.2 (" in refused.text and "gpu:0" not in refused.text
    for ref in ("mig:1.1", PARENT, "2"):
        assert cut.refused(f"gpu.find(devices, {ref!r})").kind == "NoDevice"


def test_a_job_is_shown_an_instance_by_its_uuid_whatever_was_asked_for(cut: Machine) -> None:
    cut.child.run("whole, first, _ = survey.discover(None, 0, 'home', 'host', {})")
    shown = cut.child.ask("[[gpu.cuda_visible(one, how) for how in ('index', 'uuid')] for one in (whole, first)]")
    assert shown == [["0", WHOLE], [FIRST, FIRST]]
    assert cut.child.ask("gpu.cuda_visible(first.as_slot(1), 'index')") == FIRST
    assert cut.child.ask("first.as_slot(1).ref") == "mig:1.0/1"


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (FIRST, [(1, 0)]),
        ("MIG-0E1B", [(1, 2)]),
        (f"{THIRD},{WHOLE}", [(0, None), (1, 2)]),
        (f"MIG-{PARENT}/5/0", [(1, 2)]),  # how drivers before 470 write it: ids of GPU and compute instance
        ("1", [(1, 0), (1, 2)]),
        ("GPU-aa12", [(1, 0), (1, 2)]),
        ("0", [(0, None)]),
    ],
)
def test_visible_devices_may_name_instances_or_the_gpu_of_all_of_them(
    cut: Machine, visible: str, devices: list[tuple[int, int | None]]
) -> None:
    assert refs(cut.survey(CUDA_VISIBLE_DEVICES=visible)) == devices


@pytest.mark.parametrize(
    ("visible", "says"),
    [
        ("MIG-0e1", "more than one has a UUID that begins so: mig:1.0 (MIG-0e1a"),
        ("MIG-0e1c", "there are 0 (GPU-b012"),
        (f"MIG-{PARENT}/6/0", "no beginning of a UUID"),
        (f"{PARENT},{FIRST}", f"names {FIRST} twice"),
        ("MIG-", "'MIG-' is not understood"),
        ("1,MIG-0e1a", "mixes indices and UUIDs"),
    ],
)
def test_unclear_names_of_instances_are_refused(cut: Machine, visible: str, says: str) -> None:
    refused = cut.refused_discovery(CUDA_VISIBLE_DEVICES=visible)
    assert refused.kind == "InvalidInput" and says in refused.text


def test_a_gpu_without_instances_is_left_out_with_the_cure(nvml_state: State, machine: Machine) -> None:
    nvml_state.write(*CUT[:4])
    found = machine.survey()
    assert refs(found) == [(0, None)]
    assert "MIG is enabled on it and it has no instance" in found["notes"][0] and "-mig 0" in found["notes"][0]
    refused = machine.refused_discovery(CUDA_VISIBLE_DEVICES="1")
    assert refused.kind == "NoDevice" and "-mig 0" in refused.text
    assert machine.survey(CUDA_VISIBLE_DEVICES="0")["notes"] == []


def test_instances_named_by_an_old_driver_are_left_out(nvml_state: State, machine: Machine) -> None:
    """Their names have slashes, which would be taken for slots."""
    old = f"MIG-{PARENT}/1/0"
    nvml_state.write(*CUT[:4], f"mig 1 0 uuid {old}")
    found = machine.survey()
    assert refs(found) == [(0, None)] and "driver before 470" in found["notes"][0]
    assert "driver before 470" in machine.refused_discovery(CUDA_VISIBLE_DEVICES=old).text


def test_memory_and_processes_are_those_of_the_instance(nvml_state: State, cut: Machine) -> None:
    """Utilization is told of none, and neither memory nor processes of the GPU."""
    cut.probe("mig:1.2")
    nvml_state.write(*CUT, "gpu 1 util 90 5", "mig 1 0 proc 4200010 9000", "mig 1 2 proc 4200011 200")
    seen = cut.look()
    assert (seen["state"], held(seen)) == ("free", [[4200011, 200]])
    assert (seen["memory_total_mib"], seen["memory_free_mib"], seen["memory_used_mib"]) == (33280, 33080, 200)
    assert seen["utilization"] is None
    nvml_state.write(*CUT, "mig 1 2 proc 4200011 2000")
    assert cut.look()["state"] == "occupied" and cut.look(4200011)["state"] == "free"
    cut.child.run("other = probing.Probe(gpu.find(survey.discover(None, 0, 'home', 'host', {}), 'mig:1.0'))")
    assert cut.child.ask("other.look(()).state") == "free"


def test_a_live_process_holds_memory_of_an_instance(nvml_state: State, cut: Machine) -> None:
    cut.probe("mig:1.0")
    pid = cut.child.process.pid
    memory = nvml_state.hold("1_0", 700, pid)
    assert held(cut.look()) == [[pid, 700]]
    memory.unlink()
    assert held(cut.look()) == []


def test_a_fault_of_one_instance_is_its_own(nvml_state: State, cut: Machine) -> None:
    cut.child.run("whole, one, two = (probing.Probe(x) for x in survey.discover(None, 0, 'home', 'host', {}))")
    faults = "[probe.look(()).fault for probe in (whole, one, two)]"
    nvml_state.write(*CUT, "mig 1 0 error nvmlDeviceGetMemoryInfo UNKNOWN")
    assert cut.child.ask(faults) == ["", "unknown", ""]
    nvml_state.write(*CUT, "gpu 1 error * GPU_IS_LOST")
    assert cut.child.ask(faults) == ["", "lost", "lost"]
    nvml_state.write(*CUT)
    assert cut.child.ask(faults) == ["", "", ""]


def test_an_instance_that_was_removed_is_lost_until_it_is_back(nvml_state: State, cut: Machine) -> None:
    cut.probe("mig:1.2")
    assert cut.look()["state"] == "free"
    nvml_state.write(*CUT[:7])
    for _ in range(2):
        seen = cut.look()
        assert (seen["state"], seen["fault"]) == ("unavailable", "lost")
        assert "no longer knows a GPU with this UUID" in seen["detail"]
    nvml_state.write(*CUT)
    assert cut.look()["state"] == "free"
    nvml_state.write(*(line for line in CUT if "mig_mode" not in line))
    assert cut.look()["fault"] == "lost"
