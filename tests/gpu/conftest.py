"""Every device behaviour is shown through the stub, loaded by the genuine nvidia-ml-py in processes of its own."""

from __future__ import annotations

import pytest
from stub_fixtures import StartChild, nvml_library, nvml_state, start_child
from stub_machine import Machine

__all__ = ["nvml_library", "nvml_state", "start_child"]


@pytest.fixture
def machine(start_child: StartChild) -> Machine:
    return Machine(start_child)
