"""System tests run whole foxqueues; nothing of one is left when its test ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import Stack
from stub_fixtures import nvml_library, nvml_state, start_child

__all__ = ["nvml_library", "nvml_state", "start_child"]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A home of its own; the test starts what it needs."""
    made = Stack(tmp_path)
    yield made
    made.end()
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def running(stack: Stack) -> Stack:
    """Two simulated devices, served."""
    stack.up()
    return stack


@pytest.fixture
def quick(stack: Stack) -> Stack:
    """Two simulated devices under short leases: what takes 30 s takes 4."""
    stack.up("--simulate", "2x24G", "--lease-ttl", "2s")
    return stack
