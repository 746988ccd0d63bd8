"""A minute of eight processes on four devices, while any of them is killed or stopped and the server dies twice."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import pytest

from leases_history.scene import Scene


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_nobody_has_a_device_that_another_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = secrets.randbelow(10**6)
    figures = Scene(tmp_path, seed).run()
    shutil.rmtree(tmp_path, ignore_errors=True)  # kept when it failed
    with capsys.disabled():
        print(f"\nseed {seed}: {figures}")
