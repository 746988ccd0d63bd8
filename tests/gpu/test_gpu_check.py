"""``make gpu-check`` on fake machines: what it says where there is no GPU, and that it finds what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import nvml_stub
import pytest
from nvml_stub import State

from foxqueue.locks import SHARED_PLACES

pytestmark = pytest.mark.nvml

ROOT = Path(__file__).parent.parent.parent
NOTHING = 3


class Machine:
    """Two GPUs, and CUDA."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.cuda = nvml_stub.build_cuda(state.root / "cuda")
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in range(2)]  # locks belong to the whole machine
        self.lines = [f"gpu {index} uuid {name}" for index, name in enumerate(self.uuids)]
        state.write(*self.lines)

    def check(self, *words: str, bare: bool = False) -> tuple[int, str]:
        """Run what ``make gpu-check`` runs, or some of it; ``bare`` without NVIDIA's libraries."""
        libraries = {} if bare else {"LD_LIBRARY_PATH": f"{self.state.library}{os.pathsep}{self.cuda}"}
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "LD_LIBRARY_PATH")}
        env = {**self.state.env(kept), **libraries}
        if bare:
            env["LD_LIBRARY_PATH"] = str(self.state.root)
        options = ["-m", "real_gpu", "-rs", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider"]
        options += [f"--basetemp={self.state.root / 'inner'}"]
        command = [sys.executable, "-m", "pytest", *(words or ("tests/real_gpu",)), *options]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def forget_locks(self) -> None:
        for place in SHARED_PLACES:
            for name in self.uuids:
                for file in place.glob(f"{name}*"):
                    file.unlink()


@pytest.fixture
def machine(nvml_state: State) -> Iterator[Machine]:
    made = Machine(nvml_state)
    yield made
    made.forget_locks()


def test_without_a_gpu_it_says_so_and_claims_no_success(machine: Machine) -> None:
    code, said = machine.check(bare=True)
    assert code == NOTHING and "NO GPU HERE: nothing was checked" in said and "libnvidia-ml.so.1 is absent" in said
    assert "passed" not in said


@pytest.mark.soak
def test_what_it_skips_is_told_with_the_reason(machine: Machine) -> None:
    code, said = machine.check("tests/real_gpu/test_real_devices.py")
    assert code == 0, said
    assert "no GPU here is cut into MIG instances" in said and "a snapshot of 2 devices takes" in said
    machine.state.write(*machine.lines, "gpu 1 mig_mode 1", f"mig 1 0 uuid MIG-{uuid.uuid4()}")
    code, said = machine.check("tests/real_gpu/test_real_devices.py")
    assert code == 0 and "there is only one GPU here" in said, said
    assert "SKIPPED [1]" in said and "cut into MIG" not in said


@pytest.mark.soak
def test_a_gpu_that_is_not_the_one_that_cuda_sees_is_found(machine: Machine) -> None:
    """The library of CUDA counts as NVML does here, whatever their places on the bus."""
    machine.state.write(*machine.lines, "gpu 0 bus 00000000:3B:00.0", "gpu 1 bus 00000000:1A:00.0")
    code, said = machine.check("tests/real_gpu/test_real_devices.py", "-k", "cuda_sees_the_device")
    assert code == 1 and "1 failed, 1 passed" in said, said


def test_a_machine_in_use_is_left_alone_and_that_is_no_success(machine: Machine) -> None:
    machine.state.write(*machine.lines, "gpu 0 mem_used_mib 5000", "gpu 1 error nvmlDeviceGetMemoryInfo UNKNOWN")
    code, said = machine.check("tests/real_gpu/test_use.py", "-k", "occupies")
    assert code == NOTHING and "NOTHING WAS CHECKED" in said, said
    assert "no device is free: gpu:0: occupied: 4.89G held" in said


@pytest.mark.soak
def test_the_whole_check_passes_on_a_machine_that_is_right(machine: Machine) -> None:
    code, said = machine.check()
    assert code == 0, said
    assert "1 skipped" in said
