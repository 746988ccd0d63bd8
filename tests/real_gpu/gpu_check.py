"""What the checks on a real GPU share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CUDA = Path(__file__).with_name("cuda.py")
HELD_MIB = 1024
NO_CUDA = "libcuda.so.1 cannot be loaded"

Told = dict[str, Any]
Hold = Callable[..., tuple["subprocess.Popen[str]", Told]]

seen: list[str] = []


def cuda(*words: str, **environ: str) -> Told:
    """Run cuda.py to its end under these CUDA_* variables and no others."""
    done = subprocess.run(
        [sys.executable, str(CUDA), *words], env=without_cuda(environ), capture_output=True, text=True, timeout=60
    )
    told: Told = json.loads(done.stdout)
    if NO_CUDA in told.get("error", ""):
        pytest.skip(told["error"])
    return told


def without_cuda(environ: dict[str, str]) -> dict[str, str]:
    """Our environment, with these variables in place of all CUDA_*."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")} | environ


def digits(uuid: str) -> str:
    """Those of a UUID as cuda.py gives them."""
    return uuid.partition("-")[2].replace("-", "").lower()


def say(text: str) -> None:
    """A figure for whoever runs the check, shown at its end."""
    seen.append(text)


def ms(function: Callable[[], object], times: int = 20) -> float:
    """Median of how long a call takes."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        took.append((time.perf_counter() - began) * 1000)
    return sorted(took)[times // 2]
