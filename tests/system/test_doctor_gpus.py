"""What doctor says of NVIDIA's library, its driver, the Python binding and the GPUs, on a fake machine."""

from __future__ import annotations

from typing import Any

import pytest
from nvml_stub import State
from stub_fixtures import StartChild

pytestmark = pytest.mark.nvml

GPU = ("system driver 575.57.08", "system cuda 12090", "gpu 0 name NVIDIA H200", "gpu 0 mem_total_mib 143771")


class Looks:
    """doctor's looks at GPUs, in a process on the fake machine."""

    def __init__(self, start: StartChild) -> None:
        self.child = start()
        self.child.run("import os\nfrom foxqueue.doctor import gpus\nfrom foxqueue.doctor.check import make")

    def ask(self, look: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.child.ask(f"make('x', lambda: {look})")
        return found


def test_library_driver_and_binding_are_named_with_their_versions(nvml_state: State, start_child: StartChild) -> None:
    nvml_state.write(*GPU)
    looks = Looks(start_child)
    (driver,) = looks.ask("gpus.driver('')")
    assert driver["ok"] and "driver 575.57.08, CUDA up to 12.9" in driver["detail"]
    (binding,) = looks.ask("gpus.binding()")
    assert binding["ok"] and binding["detail"].startswith("nvidia-ml-py 1")
    devices = looks.ask("gpus.devices('', os.environ)")
    assert devices[0]["ok"] and "NVIDIA H200 (GPU-" in devices[0]["detail"]
    assert "locks" in [check["name"] for check in devices]


@pytest.mark.parametrize("line", ["x86_64 Kernel Module  570.1.2  Thu", "Open Kernel Module for x86_64  570.1.2  Rel"])
def test_a_driver_that_was_upgraded_says_reboot(nvml_state: State, start_child: StartChild, line: str) -> None:
    """G3: the library is newer than the module that is loaded, whose version is told too."""
    nvml_state.write(*GPU, "system error nvmlInit LIB_RM_VERSION_MISMATCH")
    looks = Looks(start_child)
    looks.child.run(
        "import pathlib, tempfile\n"
        "file = pathlib.Path(tempfile.mkstemp()[1])\n"
        f"file.write_text('NVRM version: NVIDIA UNIX {line} Jan\\nGCC version: 12.2\\n')\n"
        "told = gpus.loaded_module(file)\n"
        "file.unlink()\n"
        "gpus.loaded_module = lambda: told"
    )
    (driver,) = looks.ask("gpus.driver('')")
    assert not driver["ok"] and "driver upgraded, reboot" in driver["detail"]
    assert "kernel module: 570.1.2" in driver["detail"]
    (served,) = looks.ask("gpus.driver('simulated devices')")
    assert not served["ok"], "a driver that is there and broken matters even where it is not used yet"


def test_a_driver_that_hangs_costs_a_bounded_time(nvml_state: State, start_child: StartChild) -> None:
    nvml_state.write(*GPU, "system delay_ms nvmlInit -1")
    looks = Looks(start_child)
    looks.child.run("from foxqueue import nvml; old = nvml.versions; nvml.versions = lambda: old(0.3)")
    (driver,) = looks.ask("gpus.driver('')")
    assert not driver["ok"] and "has not answered" in driver["detail"] and looks.child.seconds < 5


def test_the_binding_that_is_foreign_is_named_with_the_cure(nvml_state: State, start_child: StartChild) -> None:
    """G5: the deprecated distribution pynvml, which lacks what nvidia-ml-py has."""
    site = nvml_state.root / "site"
    (site / "pynvml").mkdir(parents=True)
    (site / "pynvml" / "__init__.py").write_text("raise SystemError('its code must not run')")
    nvml_state.write(*GPU)
    child = start_child(PYTHONPATH=str(site))
    child.run("from foxqueue.doctor import gpus")
    found = child.ask("gpus.binding()")
    assert not found["ok"] and str(site) in found["detail"]
    assert found["cure"].startswith("pip uninstall pynvml") and "nvidia-ml-py" in found["cure"]


def test_memory_that_the_driver_does_not_tell_is_told(nvml_state: State, start_child: StartChild) -> None:
    """G1: jobs with a memory floor never run there."""
    nvml_state.write(*GPU, "gpu 0 error nvmlDeviceGetMemoryInfo NOT_SUPPORTED")
    found = {check["name"]: check for check in Looks(start_child).ask("gpus.devices('', os.environ)")}
    assert found["devices"]["ok"] and not found["gpu_memory"]["ok"]
    assert "--gpu-memory" in found["gpu_memory"]["cure"]
