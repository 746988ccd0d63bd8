"""G5: which module `pynvml` is: nvidia-ml-py's own, none, or one that stands in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvml_stub import State
from stub_machine import Machine

pytestmark = pytest.mark.nvml

CURE = "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"


@pytest.fixture
def site(tmp_path: Path, nvml_state: State, machine: Machine) -> Path:
    """A folder that Python searches before the installed packages."""
    nvml_state.write("gpu 0 name NVIDIA H200")
    folder = tmp_path / "site"
    folder.mkdir()
    machine.options = {"PYTHONPATH": str(folder)}
    return folder


def test_the_deprecated_distribution_is_named_with_the_cure(site: Path, machine: Machine) -> None:
    (site / "pynvml").mkdir()
    (site / "pynvml" / "__init__.py").write_text("raise SystemError('its code must not run')")
    refused = machine.refused_discovery()
    assert refused.kind == "NoDevice"
    assert str(site / "pynvml") in refused.text and CURE in refused.text


def test_it_is_detected_when_it_wrote_over_the_same_file(site: Path, machine: Machine) -> None:
    info = site / "pynvml-11.5.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 11.5.3\n")
    genuine = machine.child.ask("__import__('pynvml').__file__")
    (info / "RECORD").write_text(f"{genuine},,\n")
    assert CURE in machine.refused_discovery().text


def test_the_wrapper_that_only_depends_on_nvidia_ml_py_is_fine(site: Path, machine: Machine) -> None:
    info = site / "pynvml-13.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 13.0.1\n")
    (info / "RECORD").write_text("pynvml_utils/__init__.py,,\n")
    assert machine.indices() == [0]


def test_one_that_lacks_what_nvidia_ml_py_has_is_foreign(site: Path, machine: Machine) -> None:
    """Installed as nvidia-ml-py, and older than what we ask for."""
    machine.child.run("import pynvml; del pynvml.nvmlMemory_v2")
    assert CURE in machine.refused_discovery().text


def test_somebodys_own_file_is_detected(site: Path, machine: Machine) -> None:
    (site / "pynvml.py").write_text("raise SystemError('its code must not run')")
    assert str(site / "pynvml.py") in machine.refused_discovery().text
    assert len(machine.survey(cpu=2)["devices"]) == 2


def test_a_missing_binding_is_named(site: Path, machine: Machine) -> None:
    machine.child.run("import importlib.util; importlib.util.find_spec = lambda name: None")
    assert "pip install nvidia-ml-py" in machine.refused_discovery().text


def test_importing_gpu_does_not_import_the_binding(site: Path, machine: Machine) -> None:
    assert machine.child.ask("'pynvml' in __import__('sys').modules") is False
