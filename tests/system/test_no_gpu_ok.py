"""--no-gpu-ok: jobs that take a CPU slot as long as no GPU is served."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from queue_driver import Queue
from shell import Shell
from stack import Stack, until_exists
from wait import until

from foxqueue import Client
from foxqueue.errors import InvalidInput

SHOW = 'echo "[$CUDA_VISIBLE_DEVICES][$FOXQUEUE_GPUS]"'


def test_without_a_gpu_it_takes_a_cpu_slot(stack: Stack) -> None:
    stack.up("--cpu", "1", "--lease-ttl", "2s", workers=1)
    plain = stack.queue("sh", "-c", SHOW)
    done = stack.fox("submit", "--quiet", "--no-gpu-ok", "--gpu-memory", "8G", "--", "sh", "-c", SHOW)
    assert "no GPU is served now: the job takes a CPU slot" in done.stderr
    job = stack.await_state(int(done.stdout), "succeeded")
    assert stack.api.job(job["number"]).logs() == b"[][]\n"
    assert job["no_gpu_ok"] is True and job["gpu_uuids"][0].startswith("CPU-")
    assert "1 GPU, 8G or more, a CPU slot while there is no GPU" in stack.fox("show", done.stdout.strip()).stdout
    assert (stack.job(plain)["state"], stack.job(plain)["waiting_for"]) == ("pending", "no_matching_device")


@pytest.mark.soak
def test_where_a_gpu_is_served_it_waits_for_that_and_falls_back_when_it_goes(stack: Stack) -> None:
    """Given a GPU that is busy and a CPU slot that is free, then the job waits; when the GPU's worker is gone, it runs
    on the CPU slot; and when that worker is back, the next one runs on the GPU again.
    """
    stack.serve()
    gpu = stack.start_worker("sim:0", "--simulate", "1x8G")
    until(lambda: len(stack.api.workers()) == 1, 15, "the GPU's worker")
    stack.start_worker("cpu:0", "--simulate", "1x8G", "--cpu", "1")
    until(lambda: len(stack.api.workers()) == 2, 15, "the CPU slot's worker")
    flag = stack.root / "flag"
    busy = stack.queue(*until_exists(flag))
    stack.await_state(busy, "running")
    job = stack.queue("sh", "-c", SHOW, no_gpu_ok=True)
    stack.await_state(stack.queue("true", gpus=0), "succeeded")  # the CPU slot looks, and leaves it
    assert (stack.job(job)["state"], stack.job(job)["waiting_for"]) == ("pending", "devices_busy")
    flag.touch()
    assert stack.await_state(job, "succeeded")["gpu_uuids"][0].startswith("SIM-")
    gpu.send_signal(signal.SIGTERM)
    stack.exit_status(gpu.pid)
    job = stack.queue("sh", "-c", SHOW, no_gpu_ok=True)
    assert stack.await_state(job, "succeeded")["gpu_uuids"][0].startswith("CPU-")
    stack.start_worker("sim:0", "--simulate", "1x8G")
    until(lambda: len(stack.api.workers()) == 2, 15, "the GPU's worker again")
    job = stack.queue("sh", "-c", SHOW, no_gpu_ok=True)
    assert stack.await_state(job, "succeeded")["gpu_uuids"][0].startswith("SIM-")


def test_every_way_to_submit_one(fox: Client, shell: Shell, queue: Queue, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#FOX --no-gpu-ok --gpu-memory 2G\ntrue\n")
    script.chmod(0o755)
    by_line = int(shell.fox("submit", "--quiet", str(script))[0])
    by_flag = int(shell.fox("submit", "--quiet", "--no-gpu-ok", "--", "true")[0])
    by_call = fox.submit(["true"], no_gpu_ok=True).number
    shell.fox("sweep", "--param", "lr=1", "--group", "a", "--no-gpu-ok", "--", "true", "{lr}")
    swept = fox.sweep(["true", "{lr}"], {"lr": [1]}, group="b", no_gpu_ok=True)
    in_groups = [*(job["number"] for job in shell.json("ls", "--group", "a")), swept.jobs()[0].number]
    assert len(in_groups) == 2
    for number in (by_line, by_flag, by_call, *in_groups):
        assert fox.job(number).to_dict()["no_gpu_ok"] is True
    assert fox.job(by_line).shape == "g1.m2048.c1"
    assert fox.submit(["true"]).to_dict()["no_gpu_ok"] is False
    for verb in (("submit",), ("sweep", "--param", "lr=1")):
        err = shell.fox(*verb, "--no-gpu-ok", "--gpus", "0", "--", "echo", "{lr}", code=2)[1]
        assert "leave one out" in err
    with pytest.raises(InvalidInput, match="no_gpu_ok 'yes'"):
        fox.submit(["true"], no_gpu_ok="yes")  # type: ignore[arg-type]
