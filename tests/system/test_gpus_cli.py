"""`foxqueue gpus` and what else shows devices: who has them, what is on them, why they are withheld; its commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pretend import register, silence
from queue_driver import Queue
from shell import Shell

from foxqueue import health
from foxqueue.holders import holder_text

TOKEN = "00ff00ff00ff00ff"


def lease(queue: Queue, *devices: str, label: str = "notebook", until_ms: int | None = None) -> str:
    """A lease of these devices, as another host's process would have it; its fence."""
    call = queue.broker.lease_acquire_call(TOKEN, devices, holder_text("ann", "box", 4711, until_ms, label))
    reply = queue.broker.send(call)[0]
    while reply.word == "shapes":
        version = reply.rest[0].decode()
        holder = holder_text("ann", "box", 4711, until_ms, label)
        reply = queue.broker.send(queue.broker.lease_acquire_call(TOKEN, devices, holder, version=version))[0]
    assert reply.word == "ok", reply
    return str(reply.rest[0].decode())


def withhold(queue: Queue, device: str, word: str = "quarantined", kind: str = "ecc") -> None:
    text = "3 uncorrectable errors more; replace it, then foxqueue gpus --clear"
    call = queue.broker.withhold_call(device, word, kind, text, "b00t", "w1")
    assert queue.broker.send(call)[0].word == "ok"


def gpus(shell: Shell) -> dict[str, Any]:
    return {device["uuid"]: device for device in shell.json("gpus")}


def test_a_leased_device_stands_there_with_holder_and_time(shell: Shell, queue: Queue) -> None:
    register(queue, "SIM-1")
    register(queue, "SIM-2", "w2", index=1)
    fence = lease(queue, "SIM-1", until_ms=1796090600000)
    found = gpus(shell)
    assert (found["SIM-1"]["state"], found["SIM-2"]["state"]) == ("leased", "free")
    assert found["SIM-1"]["holder"] == {
        "user": "ann",
        "host": "box",
        "pid": 4711,
        "label": "notebook",
        "since": found["SIM-1"]["holder"]["since"],
        "until": "2026-12-01T02:03:20.000Z",
        "fence": fence,
        "taken_by": None,
    }
    assert found["SIM-2"]["holder"] is None
    text, _ = shell.fox("gpus")
    assert 'by ann on box (pid 4711, "notebook") since' in text
    assert shell.json("stats")["leased"] == 1
    queue.broker.redis.delete(queue.broker.keys.lease("SIM-1"))  # unheard of for as long as a lease
    assert gpus(shell)["SIM-1"]["state"] == "free"
    assert json.loads(shell.fox("lease", "ls", "--json")[0]) == {"leases": [], "waiting": []}


def test_a_device_that_nobody_serves_is_shown_while_it_is_leased(shell: Shell, queue: Queue) -> None:
    lease(queue, "GPU-0123456789", label="service")
    found = gpus(shell)["GPU-0123456789"]
    assert (found["state"], found["name"], found["ref"]) == ("leased", "", "GPU-0123456789")
    assert "no worker serves it" in "".join(shell.fox("gpus"))
    assert "service" in "".join(shell.fox("lease", "ls"))
    assert shell.json("stats")["total_gpu_slots"] == 0
    assert shell.json("gpus", "--release", "gpu-0123")["holder"]["label"] == "service"
    assert gpus(shell)["GPU-0123456789"]["holder"]["taken_by"]


def test_strangers_slots_and_instances_have_names(shell: Shell, queue: Queue) -> None:
    strangers = [[4242, 9000, "eve", "python"]]
    register(queue, "GPU-1", kind="nvml", ref="gpu:0", state="occupied", detail="9000M by eve", strangers=strangers)
    register(queue, "GPU-2/1", "w2", kind="nvml", index=1, ref="gpu:1/1")
    register(queue, "GPU-2/0", "w3", kind="nvml", index=1, ref="gpu:1/0")
    register(queue, "MIG-3", "w4", kind="nvml", index=1, ref="mig:1.0")
    shown = shell.json("gpus")
    assert [device["ref"] for device in shown] == ["gpu:0", "gpu:1/0", "mig:1.0", "gpu:1/1"]
    assert shown[0]["strangers"] == [{"pid": 4242, "mib": 9000, "user": "eve", "command": "python"}]
    assert [device["slot"] for device in shown] == [None, 0, None, 1]
    lease(queue, "GPU-2/1")
    found = gpus(shell)
    assert (found["GPU-2/1"]["state"], found["GPU-2/0"]["state"]) == ("leased", "free")


@pytest.mark.parametrize("word", ["dirty", "quarantined"])
def test_a_withheld_device_is_cleared_once_and_then_taken(shell: Shell, queue: Queue, word: str) -> None:
    register(queue, "SIM-1")
    withhold(queue, "SIM-1", word, "memory" if word == "dirty" else "ecc")
    found = gpus(shell)["SIM-1"]
    assert (found["state"], found["withheld"]["word"]) == (word, word)
    assert found["withheld"]["text"] == found["detail"] and found["withheld"]["since"]
    assert "3 uncorrectable errors more" in "".join(shell.fox("gpus"))
    assert shell.json("stats")["withheld"] == 1
    job = queue.enqueue()
    waits = shell.json("show", str(job))
    assert waits["waiting_for"] == ("occupied" if word == "dirty" else "quarantined")
    assert "3 uncorrectable errors more" in waits["detail"]
    assert shell.json("gpus", "--clear", "SIM:0") == {"device": "SIM-1", "cleared": True}
    assert gpus(shell)["SIM-1"]["state"] == "free"
    assert "neither dirty nor quarantined" in "".join(shell.fox("gpus", "--clear", "SIM:0", code=1))
    events = [event for event in shell.json("events") if event["event"] == "clear"]
    assert [event["device"] for event in events] == ["SIM-1"] and events[0]["by"]


def test_all_withheld_is_red(shell: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AGAIN_S", 0.05)
    register(queue, "SIM-1")
    withhold(queue, "SIM-1")
    job = queue.enqueue()
    tick = (queue.broker.server_time_ms() - 300_000) * 1000
    queue.broker.redis.hset(queue.broker.keys.job(job), "tick", tick)
    report = shell.json("health", code=1)
    failed = {check["name"]: check["detail"] for check in report["checks"] if not check["ok"]}
    assert set(failed) == {"queue"} and "is quarantined: 3 uncorrectable" in failed["queue"]
    shell.fox("gpus", "--clear", "SIM:0")
    lease(queue, "SIM-1")
    assert shell.json("health")["healthy"]  # a device that is leased is only busy


def test_a_device_is_forgotten_when_nobody_has_it(shell: Shell, queue: Queue) -> None:
    register(queue, "SIM-1")
    withhold(queue, "SIM-1")
    assert "is not forgotten" in "".join(shell.fox("gpus", "--forget", "SIM:0", code=1))  # its worker lives
    silence(queue, "w1")
    redis = queue.broker.redis
    redis.hdel(queue.broker.keys.withheld, "SIM-1")
    lease(queue, "SIM-1")
    assert "is not forgotten" in "".join(shell.fox("gpus", "--forget", "SIM:0", code=1))
    redis.delete(queue.broker.keys.lease("SIM-1"))
    withhold(queue, "SIM-1")
    assert shell.json("gpus", "--forget", "SIM:0") == {"device": "SIM-1", "forgotten": True, "why": None}
    assert shell.json("gpus") == []
    assert redis.hget(queue.broker.keys.withheld, "SIM-1") is None
    shell.fox("gpus", "--forget", "SIM:0", code=1)


def test_one_thing_at_a_time(shell: Shell, queue: Queue) -> None:
    register(queue, "SIM-1")
    said = "".join(shell.fox("gpus", "--clear", "SIM:0", "--release", "SIM:0", code=2))
    assert "--release and --clear were given" in said
    assert "is given twice" in "".join(shell.fox("gpus", "--clear", "SIM:0", "--clear", "SIM:0", code=2))
    assert "nobody has" in "".join(shell.fox("gpus", "--release", "SIM:0", code=1))


def test_a_drain_of_a_device_waits_for_its_lease(shell: Shell, queue: Queue) -> None:
    """Given a lease, when its device is drained, then that waits for the lease; a drain of the queue does not."""
    register(queue, "SIM-1")
    lease(queue, "SIM-1")
    assert "nothing of the queue runs" in "".join(shell.fox("drain"))
    shell.fox("resume")
    said = "".join(shell.fox("drain", "--device", "SIM-1", "--timeout", "100ms", code=124))
    assert 'the lease of ann on box (pid 4711, "notebook")' in said
    queue.broker.redis.delete(queue.broker.keys.lease("SIM-1"))
    shell.fox("drain", "--device", "SIM-1", "--timeout", "5s")
