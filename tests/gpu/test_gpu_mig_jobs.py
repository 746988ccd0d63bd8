"""G6 as users see it: workers serve MIG instances, and a job is shown its instance and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_stub import State
from stack import Stack, ended, until_exists
from wait import until

from foxqueue.locks import SHARED_PLACES

pytestmark = pytest.mark.nvml

SHOW = 'echo "$CUDA_DEVICE_ORDER|$CUDA_VISIBLE_DEVICES|$FOXQUEUE_GPUS"'


class Machine:
    """A GPU that is cut into a small and a large instance."""

    def __init__(self, root: Path, state: State) -> None:
        self.state = state
        self.parent = f"GPU-{uuid.uuid4()}"  # locks belong to the whole machine
        self.small, self.large = (f"MIG-{uuid.uuid4()}" for _ in range(2))
        self.lines = [
            f"gpu 0 uuid {self.parent}",
            "gpu 0 mig_mode 1",
            f"mig 0 0 uuid {self.small}",
            "mig 0 0 mem_total_mib 10240",
            f"mig 0 3 uuid {self.large}",
            "mig 0 3 mem_total_mib 40960",
        ]
        state.write(*self.lines)
        self.stack = Stack(root, state.env({}, LD_LIBRARY_PATH=str(state.library)))

    def told(self, number: int) -> list[str]:
        """What a job that ran SHOW was told."""
        self.stack.await_state(number, "succeeded")
        return self.stack.api.job(number).logs().decode().strip().split("|")

    def forget_locks(self) -> None:
        for place in SHARED_PLACES:
            for device in (self.parent, self.small, self.large):
                for file in place.glob(f"{device}*"):
                    file.unlink()


@pytest.fixture
def machine(tmp_path: Path, nvml_state: State) -> Iterator[Machine]:
    made = Machine(tmp_path / "stack", nvml_state)
    with ended(made.stack):
        yield made
    made.forget_locks()


def test_jobs_run_on_instances(machine: Machine) -> None:
    stack, small, large = machine.stack, machine.small, machine.large
    stack.environ["CUDA_VISIBLE_DEVICES"] = "0"  # the GPU of both
    stack.up("--lease-ttl", "2s", workers=2)
    devices = stack.devices()
    assert {name: found["memory_total_mib"] for name, found in devices.items()} == {small: 10240, large: 40960}
    assert "mig:0.0" in stack.fox("gpus").stdout and "mig:0.3" in stack.fox("gpus").stdout
    assert {found["utilization"] for found in devices.values()} == {None}
    for visible in ("index", "uuid"):  # an instance has no index
        number = stack.queue("sh", "-c", SHOW, gpu_memory="20G", visible=visible)
        assert machine.told(number) == ["PCI_BUS_ID", large, large]
    flag = stack.root / "flag"
    holding = stack.queue(*until_exists(flag), gpu_memory="20G")
    stack.await_state(holding, "running")
    assert machine.told(stack.queue("sh", "-c", SHOW))[1] == small
    # a stranger on one of them leaves the other alone
    memory = machine.state.hold("0_0", 3000)
    until(lambda: stack.devices()[small]["state"] == "occupied", 15, "the stranger seen")
    flag.touch()
    stack.await_state(holding, "succeeded")
    assert machine.told(stack.queue("sh", "-c", SHOW))[1] == large
    memory.unlink()


@pytest.mark.soak
def test_a_worker_serves_an_instance_by_its_name(machine: Machine) -> None:
    stack = machine.stack
    stack.serve()
    stack.start("worker", "--gpu", "mig:0.3")
    until(lambda: list(stack.devices()) == [machine.large], 20, "the worker")
    assert machine.told(stack.queue("sh", "-c", SHOW))[2] == machine.large
    refused = stack.fox("worker", "--gpu", "gpu:0", check=False)
    assert refused.returncode == 2 and "mig:0.0 (" in refused.stderr and "mig:0.3 (" in refused.stderr
    assert stack.fox("worker", "--gpu", machine.parent, check=False).returncode == 1


@pytest.mark.soak
def test_an_instance_is_leased(machine: Machine) -> None:
    machine.stack.serve()
    for name in ("mig:0.0", machine.small[:16]):
        done = machine.stack.fox("lease", "--gpu", name, "--", "sh", "-c", SHOW)
        assert done.stdout.split("|")[1] == machine.small, done
    refused = machine.stack.fox("lease", "--gpu", "0", "--", "true", check=False)
    assert refused.returncode in (1, 2) and "mig:0.0" in refused.stderr and "mig:0.3" in refused.stderr
