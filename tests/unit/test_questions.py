"""What a worker asks for: the shapes that its device can take now, and what the jobs of a slot declare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foxqueue import codec, questions
from foxqueue.broker import Reply
from foxqueue.errors import ServerUnavailable
from foxqueue.gpu import Device
from foxqueue.probing import Observation
from foxqueue.questions import Questions

GPU = Device("GPU-1", 0, "NVIDIA H200", "nvml", 24576)
SLOT = GPU.as_slot(1)
CPU = Device("CPU-1", 0, "CPU slot 0", "cpu", None)
SHAPES = ["g0", "g1", "g1.m8192", "g1.m24576@lr", "g1.m30000", "g1.m4096.c1", "g1.x5"]


class Server:
    """Takes down what is asked, and answers what is looked up."""

    def __init__(self) -> None:
        self.claims: list[dict[str, Any]] = []
        self.gpus: dict[bytes, bytes] = {}
        self.heard: dict[bytes, float] = {}
        self.away = False
        self.looks = 0
        self.keys = SimpleNamespace(gpus="gpus", workers="workers")
        self.connection = self

    def settings(self) -> Any:
        return SimpleNamespace(beat_ms=5000, ttl_ms=15000)

    def answers(self, commands: Sequence[tuple[Any, ...]], what: str) -> list[Any]:
        self.looks += 1
        if self.away:
            raise ServerUnavailable("away")
        return [self.gpus, self.heard, [b"1000", b"0"]]

    def claim_call(self, *given: Any, **more: Any) -> Any:
        names = ("worker", "question", "device", "host", "version", "woken", "fitting")
        self.claims.append({**dict(zip(names, given, strict=True)), **more})
        return self.claims[-1]

    def serve(self, device: Device, *, ago_s: float = 0.0, state: str = "idle") -> None:
        look = codec.pack({"kind": device.kind, "worker_state": state, "host": "box", "index": 0})
        self.gpus[device.uuid.encode()] = b"w-" + device.uuid.encode() + b" 1 " + look
        self.heard[b"w-" + device.uuid.encode()] = (1000 - ago_s) * 1000


@pytest.fixture
def server() -> Server:
    return Server()


def asks(server: Server, device: Device, shapes: Sequence[str] = SHAPES) -> Questions:
    made = Questions(server, "w", device, "box")  # type: ignore[arg-type]
    made.learn(Reply("shapes", "life", (b"7", *(shape.encode() for shape in shapes))))
    return made


def seen(free_mib: int | None, total_mib: int | None = 24576) -> Observation:
    return Observation(total_mib, free_mib, None, "free")


@pytest.mark.parametrize(
    ("free_mib", "fitting"),
    [
        (24576, ["g1", "g1.m8192", "g1.m24576@lr", "g1.m4096.c1"]),
        (8192, ["g1", "g1.m8192", "g1.m4096.c1"]),
        (None, ["g1"]),
    ],
)
def test_a_gpu_asks_for_what_fits_its_free_memory(server: Server, free_mib: int | None, fitting: list[str]) -> None:
    asks(server, GPU).ask(seen(free_mib))
    assert server.claims[0]["fitting"] == fitting
    assert (server.claims[0]["declares"], server.claims[0]["room"]) == ((), 0)
    assert server.looks == 0


def test_a_slot_says_what_each_job_would_declare(server: Server) -> None:
    """A job that names no memory declares the whole device."""
    asks(server, SLOT).ask(seen(24576))
    (claim,) = server.claims
    assert (claim["device"], claim["room"]) == ("GPU-1/1", 24576)
    declares = dict(zip(claim["fitting"], claim["declares"], strict=True))
    assert declares == {"g1": 24576, "g1.m8192": 8192, "g1.m24576@lr": 24576, "g1.m4096.c1": 4096}


def test_what_fits_when_the_other_slots_are_empty_is_named_too(server: Server) -> None:
    """Given siblings that have 18000 MiB and a stranger that has 2576: what waits for the siblings declares 0, what
    waits for the stranger is left out.
    """
    look = replace(seen(4000), ours=((7, 17000), (8, 1000)))
    asks(server, SLOT).ask(look)
    (claim,) = server.claims
    assert dict(zip(claim["fitting"], claim["declares"], strict=True)) == {
        "g1": 24576,
        "g1.m8192": 0,
        "g1.m4096.c1": 0,
    }
    asks(server, SLOT).ask(replace(look, ours=((7, None),)))  # how much they have is not told
    assert server.claims[1]["fitting"] == ["g1"]


@pytest.mark.parametrize(
    ("device", "shape", "mib"),
    [(GPU, "g1", 24576), (GPU, "g1.m8192@x", 8192), (SLOT, "g1.m1", 1), (CPU, "g0", None), (SLOT, "g1.x5", 24576)],
)
def test_what_a_job_declares(server: Server, device: Device, shape: str, mib: int | None) -> None:
    assert asks(server, device).declared(shape) == mib


def test_who_stands_by_asks_for_nothing_and_waits(server: Server) -> None:
    made = asks(server, GPU)
    made.woken_for(["g1"])
    assert made.unanswered is None
    call = made.stand_by()
    assert made.unanswered is call
    assert (server.claims[0]["fitting"], server.claims[0]["waits"], server.claims[0]["woken"]) == ([], True, ["g1"])
    made.decline()
    assert (server.claims[1]["waits"], server.claims[1]["woken"], made.unanswered) == (False, [], call)


# --- CPU slots instead of GPUs ------------------------------------------------------------------------


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "SETTLED_S", 0.0)


def fitting(server: Server) -> list[str]:
    asks(server, CPU).ask(seen(None, None))
    return list(server.claims[-1]["fitting"])


def test_a_cpu_slot_takes_what_may_do_without_a_gpu(server: Server, settled: None) -> None:
    server.serve(CPU)
    assert fitting(server) == ["g0", "g1.m4096.c1"]
    server.serve(GPU)
    assert fitting(server) == ["g0"]
    server.serve(GPU, ago_s=16)
    assert fitting(server) == ["g0", "g1.m4096.c1"]
    server.serve(GPU.as_slot(0))
    assert fitting(server) == ["g0"]
    server.serve(GPU.as_slot(0), state="lost")  # it was told to stop
    assert fitting(server) == ["g0", "g1.m4096.c1"]


def test_unknown_is_a_gpu(server: Server, settled: None) -> None:
    server.away = True
    assert fitting(server) == ["g0"]


def test_gpus_that_start_together_with_a_cpu_slot_are_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asks(server, CPU)
    made.ask(seen(None, None))
    assert server.claims[-1]["fitting"] == ["g0"]
    monkeypatch.setattr(questions, "SETTLED_S", 0.0)
    made.ask(seen(None, None))
    assert server.claims[-1]["fitting"] == ["g0", "g1.m4096.c1"]
    assert server.looks == 1  # a look is good for a second


def test_nobody_is_asked_where_no_job_may_do_without(server: Server, settled: None) -> None:
    asks(server, CPU, ["g0", "g1", "g1.m1"]).ask(seen(None, None))
    asks(server, GPU).ask(seen(None))
    assert server.looks == 0
