"""In a container NVML counts processes as the host does, or lists none: then the memory decides."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest
from nvml_stub import State
from stub_machine import Machine, held

pytestmark = pytest.mark.nvml

GPU = ("gpu 0 name NVIDIA H200", "gpu 0 mem_total_mib 10000", "gpu 0 mem_reserved_mib 600")
HOSTS = 4_200_010  # the host's number of a process: there is none such inside


@cache
def _unshare() -> tuple[str, ...]:
    """Words in front of a command that runs in a pid namespace of its own; none where they cannot be made."""
    users = () if os.getuid() == 0 else ("--user", "--map-root-user")
    words = ("unshare", *users, "--pid", "--fork", "--kill-child", "--mount-proc")
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        return ()
    return words


@pytest.fixture
def inside(nvml_state: State, machine: Machine) -> Machine:
    """A probe in a container."""
    if not _unshare():
        pytest.skip("pid namespaces cannot be made here")
    nvml_state.write(*GPU)
    machine.options, machine.in_container = {"prefix": _unshare()}, True
    machine.probe()
    machine.child.run("import os, subprocess, sys")
    return machine


def test_numbers_of_the_host_mean_nothing(nvml_state: State, inside: Machine) -> None:
    nvml_state.write(*GPU, f"gpu 0 proc {HOSTS} 3000")
    for ours in ((), (HOSTS,)):
        seen = inside.look(*ours)
        assert (seen["state"], held(seen), seen["pids_known"]) == ("occupied", [[HOSTS, 3000]], False)
        assert (seen["ours"], seen["strangers"][0]["user"]) == ([], "")
    assert seen["detail"].endswith(f"pid {HOSTS} (2.93G), as the host counts")
    nvml_state.write(*GPU, f"gpu 0 proc {HOSTS} 200")
    assert inside.look()["state"] == "free"


def test_a_number_of_the_host_may_be_that_of_one_of_ours(nvml_state: State, inside: Machine) -> None:
    own = inside.child.ask("os.getpid()")
    assert own < 100, "not in a container"
    nvml_state.write(*GPU, f"gpu 0 proc {own} 3000", f"gpu 0 proc {HOSTS} 10")
    seen = inside.look(own)
    assert (seen["state"], seen["ours"], seen["pids_known"]) == ("occupied", [], False)
    assert inside.look(own, ignore=("python", "python3"))["ignored"] == []


def test_without_a_list_the_memory_in_use_tells(nvml_state: State, inside: Machine) -> None:
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 5600")
    own = inside.child.ask("os.getpid()")
    for ours in ((), (own,)):
        seen = inside.look(*ours)
        assert (seen["state"], seen["strangers"]) == ("occupied", [])
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 800")
    assert inside.look()["state"] == "free"


def test_numbers_that_the_driver_translated_come_without_a_figure(nvml_state: State, inside: Machine) -> None:
    own = inside.child.ask("os.getpid()")
    nvml_state.write(*GPU, f"gpu 0 proc {own} 0", "gpu 0 mem_used_mib 4600")
    seen = inside.look(own)
    assert (seen["state"], seen["ours"], seen["pids_known"]) == ("free", [[own, None]], True)
    seen = inside.look()
    assert (seen["state"], held(seen)) == ("occupied", [[own, None]])
    assert seen["strangers"][0]["command"].startswith("python")


def test_memory_may_be_declared_ours_where_numbers_mean_nothing(nvml_state: State, inside: Machine) -> None:
    """A slot's siblings: they have declared how much they use."""
    nvml_state.write(*GPU, f"gpu 0 proc {HOSTS} 3000")
    assert inside.look(allowed_mib=3000)["state"] == "free"
    assert inside.look(allowed_mib=2700)["state"] == "occupied"
    own = inside.child.ask("os.getpid()")
    nvml_state.write(*GPU, f"gpu 0 proc {own} 3000")
    assert inside.look(allowed_mib=3000)["state"] == "occupied", "one that can be seen and is not ours"


def test_a_process_that_ended_does_not_make_the_list_the_hosts(nvml_state: State, inside: Machine) -> None:
    inside.child.run("child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)")
    own, child = inside.child.ask("(os.getpid(), child.pid)")
    nvml_state.write(*GPU, f"gpu 0 proc {own} 3000", f"gpu 0 proc {child} 10")
    assert inside.look(own)["state"] == "free"
    inside.child.run("child.kill(); child.wait()")
    seen = inside.look(own)
    assert (seen["state"], seen["pids_known"], seen["ours"]) == ("free", True, [[own, 3000]])
    nvml_state.write(*GPU, f"gpu 0 proc {own} 3000", f"gpu 0 proc {HOSTS} 10")
    assert inside.look(own)["pids_known"] is False
