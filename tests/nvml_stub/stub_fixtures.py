"""Fixtures around the NVML stub. A conftest.py imports those that its tests use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import nvml_stub
import pytest

StartChild = Callable[..., nvml_stub.Child]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled library, for LD_LIBRARY_PATH."""
    try:
        return nvml_stub.build(tmp_path_factory.getbasetemp() / "nvml_library")
    except nvml_stub.NoCompiler as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def nvml_state(tmp_path: Path, nvml_library: Path) -> nvml_stub.State:
    """A fake machine with no GPU yet."""
    return nvml_stub.State(tmp_path / "nvml", nvml_library)


@pytest.fixture
def start_child(nvml_state: nvml_stub.State) -> Iterator[StartChild]:
    """Start a process on the fake machine; ``cwd``, words before its command and more environment by keyword."""
    children: list[nvml_stub.Child] = []

    def start(cwd: Path | None = None, prefix: Sequence[str] = (), **more: str) -> nvml_stub.Child:
        children.append(nvml_stub.Child(nvml_state.env(os.environ, **more), cwd, prefix))
        return children[-1]

    yield start
    for child in children:
        child.close()
