"""500 jobs, four workers, and something killed or stopped every second."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import pytest

from chaos.scene import Scene


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_done_twice_whatever_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = Scene(tmp_path, jobs=500, seed=secrets.randbelow(10**6), pace_s=0.5, kill_s=180).run()
    shutil.rmtree(tmp_path, ignore_errors=True)  # kept when it failed
    with capsys.disabled():
        print(f"\n{figures}")
