"""GPUs that do not tell their memory: unified memory of small boards, some virtual GPUs."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_stub import State
from stack import Stack, ended, until_exists
from wait import until

from foxqueue.locks import SHARED_PLACES

pytestmark = pytest.mark.nvml

SYSTEM_MIB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


@pytest.fixture
def device() -> Iterator[str]:
    """UUID of a GPU, whose locks belong to the whole machine."""
    made = f"GPU-{uuid.uuid4()}"
    yield made
    for place in SHARED_PLACES:
        for file in place.glob(f"{made}.*"):
            file.unlink()


@pytest.mark.parametrize(
    "told",
    [
        ("gpu 0 error nvmlDeviceGetMemoryInfo NOT_SUPPORTED",),
        ("gpu 0 mem_total_mib 0",),
        (f"gpu 0 mem_total_mib {SYSTEM_MIB}", f"gpu 0 mem_used_mib {SYSTEM_MIB // 2}"),
    ],
    ids=["not supported", "0 of 0", "the machine's own"],
)
def test_unknown_memory_is_unknown_everywhere(
    tmp_path: Path, nvml_state: State, device: str, told: tuple[str, ...]
) -> None:
    """G1: nothing crashes, the GPU is used, unknown is shown as unknown, and no floor is met by it."""
    lines = (f"gpu 0 uuid {device}", "gpu 0 name NVIDIA GB10", *told)
    nvml_state.write(*lines)
    environ = nvml_state.env({}, LD_LIBRARY_PATH=str(nvml_state.library))
    with ended(Stack(tmp_path / "stack", environ)) as stack:
        stack.serve()
        early = stack.queue("true", gpu_memory="1G")
        stack.up("--lease-ttl", "2s", workers=1)
        (seen,) = json.loads(stack.fox("gpus", "--json").stdout)
        assert (seen["memory_total_mib"], seen["memory_free_mib"], seen["state"]) == (None, None, "free")
        assert "unknown/unknown" in stack.fox("gpus").stdout
        refused = stack.fox("submit", "--gpu-memory", "1G", "--", "true", check=False)
        assert refused.returncode == 69 and "no registered device can tell how much it has" in refused.stderr
        waits = stack.job(early)
        assert (waits["state"], waits["waiting_for"]) == ("pending", "unsatisfiable")
        flag = stack.root / "flag"
        number = stack.queue(*until_exists(flag))
        stack.await_state(number, "running")
        nvml_state.hold(0, 4000, until(lambda: stack.processes_of(number), 10, "its processes")[0])
        until(lambda: json.loads(stack.fox("gpus", "--json").stdout)[0]["state"] == "leased", 10, "a lease shown")
        flag.touch()
        assert stack.await_state(number, "succeeded")["attempts"] == 1
        checks = {check["name"]: check for check in json.loads(stack.fox("doctor", "--json").stdout)["checks"]}
        assert not checks["gpu_memory"]["ok"] and "gpu:0" in checks["gpu_memory"]["detail"]
        assert "GB10" in checks["devices"]["detail"] and checks["nvml"]["ok"]
        assert stack.job(early)["state"] == "pending"
