"""Strangers that come and go while a run is on a device, memory that runs out, and whose processes are whose."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from foxqueue.gpu import Device
from foxqueue.nvml import GpuProcess, Sample
from foxqueue.probing import Observation
from foxqueue.snapshots import GpuState
from foxqueue.strangers import Stranger
from foxqueue.withheld import Withheld, read_withheld
from workers.guests import Guests, Memory
from workers.sampling import Tree, elsewhere_of

ANN = Stranger(11, 5000, "ann", "python train.py")
HIDDEN = Stranger(11, 5000)


def look(*strangers: Stranger, state: str | None = None, free: int = 10_000, **more: Any) -> Observation:
    word: Any = state or ("occupied" if strangers else "free")
    detail = ", ".join(stranger.shown for stranger in strangers)
    return Observation(24_000, free, 0, word, detail, strangers, **more)


def told(guests: Guests, *looks: Observation) -> list[str]:
    return [note.name if (note := guests.see(seen)) else "" for seen in looks]


def test_a_stranger_is_told_at_once_and_gone_after_three_looks() -> None:
    guests = Guests()
    assert told(guests, look(), look(ANN), look(ANN)) == ["", "occupied", ""]
    assert guests.text == ANN.shown
    assert told(guests, look(), look(), look(), look()) == ["", "", "vacated", ""]
    assert guests.text == ""


def test_one_that_comes_and_goes_is_told_once() -> None:
    guests = Guests()
    assert told(guests, look(ANN), look(), look(ANN), look(), look(), look(ANN)) == ["occupied", *[""] * 5]


def test_memory_that_nobody_is_seen_to_hold_must_stay() -> None:
    """A process of ours that ends is off the list before its memory is back."""
    guests = Guests()
    hidden = look(state="occupied")
    assert told(guests, hidden, hidden, look(), hidden, hidden, hidden) == [*[""] * 5, "occupied"]


def test_where_numbers_of_processes_mean_nothing_nothing_is_concluded() -> None:
    guests = Guests()
    foreign = look(HIDDEN, pids_known=False)
    assert told(guests, *[foreign] * 5) == [""] * 5
    assert told(guests, look(state="unavailable")) == [""]


def test_low_memory_is_told_once_a_run() -> None:
    memory = Memory()
    looks = [look(free=1200), look(free=1199), look(free=10)]
    notes = [memory.see(seen) for seen in looks]
    assert [note and note.text for note in notes] == [None, "1.18G of 23.44G free", None]
    assert Memory().see(Observation(None, None, None, "free")) is None


def test_a_tree_has_all_that_descends_from_its_roots() -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '30']).pid, flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdin is not None
    grandchild = int(child.stdout.readline())
    try:
        tree = Tree([child.pid])
        assert child.pid in tree and grandchild in tree
        assert os.getpid() not in tree and 1 not in tree and os.getppid() not in tree
        assert grandchild in Tree([os.getpid()]) and grandchild not in Tree()
        assert 2**22 + 1 not in tree, "no such process"
    finally:
        os.kill(grandchild, 9)
        child.communicate()


def state_of(uuid: str, index: int, *pids: int, mig: int | None = None) -> GpuState:
    processes = tuple(GpuProcess(pid, 100, True) for pid in pids)
    sample = Sample(index, 24_000, 1, 1, 0, 0, False, processes, True)
    return GpuState(uuid, index, mig, "x", sample, "", "")


def test_processes_of_a_run_on_other_gpus_are_found() -> None:
    device = Device("GPU-1", 0, "x", "nvml", 24_000)
    me = os.getpid()
    states = [state_of("GPU-1", 0, me), state_of("GPU-2", 1, me, 1), GpuState("GPU-3", 2, None, "x", None, "lost", "")]
    assert elsewhere_of(Tree([me]), device, states) == ((me, "GPU 1 (GPU-2)"),)
    assert elsewhere_of(Tree([me]), device.as_slot(1), states[:1]) == ()
    instance = Device("MIG-1", 0, "x", "nvml", 9_000, mig=1)
    assert elsewhere_of(Tree([me]), instance, [state_of("GPU-1", 0, me), state_of("MIG-1", 0, me, mig=1)]) == ()


def test_a_withheld_device_is_read() -> None:
    read = read_withheld("dirty\t1700000000000\tabcd1234\tmemory\t2G are\tmissing")
    assert read == Withheld("dirty", 1700000000000, "abcd1234", "memory", "2G are\tmissing")
    assert read_withheld(None) is None and read_withheld("") is None
    odd = read_withheld("what is this")
    assert odd is not None and (odd.word, odd.text) == ("quarantined", "what is this")
    assert read_withheld("quarantined\tx\t\tecc\tt") == Withheld("quarantined", 0, "", "ecc", "t")
