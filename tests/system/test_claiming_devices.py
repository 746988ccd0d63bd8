"""Claims of custom workers for a GPU that others use, on a fake machine, and the example of the documentation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from nvml_stub import State
from stack import Stack
from stub_fixtures import StartChild
from wait import until

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


@pytest.mark.soak
@pytest.mark.nvml
def test_the_settings_say_who_is_a_stranger_and_a_withheld_gpu_is_left_alone(
    fox: Client, nvml_state: State, start_child: StartChild
) -> None:
    device = f"GPU-{uuid.uuid4()}"
    gpu = [f"gpu 0 uuid {device}", "gpu 0 mem_total_mib 24576"]
    job = fox.submit(["a"], gpu_memory="20G")
    fox.broker.change_settings({"occupied_over_mib": "8192", "ignore_processes": "python3"}, "ann")
    child = start_child(cwd=Path(__file__).parent.parent.parent)
    nvml_state.write(*gpu, f"gpu 0 proc {os.getppid()} 6000")
    child.run("from foxqueue import Client")
    child.run(f"fox = Client({fox.broker.connection.url!r}, 'test', {str(fox.config.home)!r})")
    try:
        child.run("with fox.claim(0, timeout=1) as run: found = run")
        assert child.ask("found is None"), "18 of 24 GiB are free"
        nvml_state.write(*gpu, f"gpu 0 proc {os.getppid()} 3000")
        child.run("with fox.claim(0, timeout=15) as run: found = run.number")
        assert child.ask("found") == job.number
        behind = fox.submit(["b"])
        why = "3 runs in a row failed"
        withhold = fox.broker.withhold_call(device, "quarantined", "failures", why, "", "w1")
        assert fox.broker.send(withhold)[0].word == "ok"
        waiting = threading.Thread(
            target=child.run, args=("with fox.claim(0, timeout=30) as run: found = run.number, fox.gpus()[0]['state']",)
        )
        waiting.start()
        until(lambda: fox.redis.zcard(fox.broker.keys.idle_for(device)), 10, "the claim in line for the GPU")
        assert (fox.gpus()[0]["state"], fox.gpus()[0]["detail"]) == ("quarantined", why)
        assert fox.broker.clear(device, "ann") == "ok"
        waiting.join(3)
        assert not waiting.is_alive(), "it is woken, long before its next poll"
        assert child.ask("list(found)") == [behind.number, "leased"]
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
