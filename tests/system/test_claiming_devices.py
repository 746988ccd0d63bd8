"""Claims of custom workers for a GPU that others use, on a fake machine, and the example of the documentation."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from nvml_stub import State
from stack import Stack
from stub_fixtures import StartChild

from foxqueue import Client
from foxqueue.locks import SHARED_PLACES


@pytest.mark.nvml
def test_a_gpu_that_others_use_is_waited_for(fox: Client, nvml_state: State, start_child: StartChild) -> None:
    device = f"GPU-{uuid.uuid4()}"
    gpu = [f"gpu 0 uuid {device}", "gpu 0 name NVIDIA H200", "gpu 0 bus 00000000:3B:00.0", "gpu 0 mem_total_mib 143771"]
    job = fox.submit(["a"])
    child = start_child(cwd=Path(__file__).parent.parent.parent)
    ours = int(child.ask("__import__('os').getpid()"))
    nvml_state.write(*gpu, "gpu 0 proc 1 2000")
    child.run("from foxqueue import Client")
    child.run(f"fox = Client({fox.broker.connection.url!r}, 'test', {str(fox.config.home)!r})")
    try:
        child.run("with fox.claim('gpu:0', timeout=0.5) as run: found = run")
        assert child.ask("found is None")
        assert [(seen["uuid"], seen["state"]) for seen in fox.gpus()] == [(device, "unavailable")]
        nvml_state.write(*gpu, f"gpu 0 proc {ours} 2000")
        child.run("with fox.claim(0, timeout=5) as run: found = run.env()['CUDA_VISIBLE_DEVICES'], run.number")
        assert child.ask("list(found)") == ["0", job.number]
    finally:
        for place in SHARED_PLACES:
            for file in place.glob(f"{device}.*"):
                file.unlink()


def test_the_example_serves_until_nothing_comes(fox: Client, stack: Stack) -> None:
    environ = {"FOXQUEUE_URL": fox.broker.connection.url, "FOXQUEUE_NAMESPACE": "test"}
    good, bad = (
        fox.submit(["evaluate"], config={"steps": 3}),
        fox.submit(["evaluate"], config={"steps": "x"}, retries=5),
    )
    program = Path(__file__).parent.parent.parent / "examples" / "custom_worker.py"
    done = subprocess.run(
        [sys.executable, str(program), "sim:0", "--simulate", "1x24G", "--idle", "0.5"],
        env={**stack.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"job {good.number}: succeeded" in done.stdout and "steps is 'x'" in done.stdout
    assert good.result() == {"loss": 1 / 3} and good.logs().count(b"step") == 3
    assert bad.refresh().state == "failed" and bad.attempts == 1
