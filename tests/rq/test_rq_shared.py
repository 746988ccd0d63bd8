"""Workers of RQ and of foxqueue on one device."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from queue_driver import Queue
from rq_place import Rq
from servers import RealServer
from wait import until

USE = """
import json, sys, time
began = time.monotonic(); time.sleep(0.3)
open(sys.argv[1], "a").write(json.dumps(["fox", began, time.monotonic()]) + "\\n")
"""


@pytest.mark.soak
def test_two_of_rq_and_one_of_foxqueue_never_use_a_device_at_once(
    server: RealServer, queue: Queue, version: str, tmp_path: Path
) -> None:
    home, log, script = tmp_path / "home", tmp_path / "log", tmp_path / "use.py"
    home.mkdir()
    script.write_text(USE)
    rq = Rq(server, home, version, {})
    fox = [sys.executable, "-c", "import sys; from foxqueue.cli import main; sys.exit(main())"]

    def submit() -> None:
        words = [*fox, "submit", "--", sys.executable, str(script), str(log)]
        subprocess.run(words, env=rq.environ, check=True, capture_output=True, cwd=tmp_path)

    def lines() -> list[list[Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    with (tmp_path / "up.log").open("wb") as out:
        up = subprocess.Popen([*fox, "up", "--simulate", "1x8G"], env=rq.environ, stdout=out, stderr=out)
        try:
            submit()
            until(lambda: len(lines()) == 1, 30, "foxqueue to serve the device")
            rq.worker()
            rq.worker()
            for _ in range(8):
                rq.enqueue("log_use", str(log), 0.3)
                submit()
            until(lambda: len(lines()) == 17, 40, f"all to run {rq.said()}")
        finally:
            up.terminate()
            up.wait(20)
            rq.close()
    uses = sorted(lines(), key=lambda use: float(use[1]))
    assert all(one[2] <= other[1] for one, other in pairwise(uses)), uses
    assert sum(one[0] != other[0] for one, other in pairwise(uses)) >= 2, uses  # they took turns
