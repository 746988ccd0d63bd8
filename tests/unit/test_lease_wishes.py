"""What may be asked of a lease, and what is refused before anything is done."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foxqueue.config import load_config
from foxqueue.errors import InvalidInput
from foxqueue.gpu import Device
from foxqueue.leases.places import Places
from foxqueue.leases.wish import default_label, wish


def test_a_wish_is_read() -> None:
    found = wish("gpu:0", holder=" notebook ", timeout="1m", priority="high", memory="8G", lasting="2h")
    assert (found.label, found.timeout_s, found.priority, found.memory_mib) == ("notebook", 60.0, 8, 8192)
    assert found.lasting_s == 7200 and found.count == 1
    assert wish(None, timeout=None).timeout_s is None
    assert wish(None, timeout=0).timeout_s == 0
    assert wish(None, memory=300).memory_mib == 300  # a number is MiB, not rounded


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"memory": 0}, "MiB above 0"),
        ({"memory": -1}, "MiB above 0"),
        ({"memory": "0"}, "MiB above 0"),
        ({"memory": "lots"}, "write a number and M, G or T"),
        ({"memory": True}, "not understood"),
        ({"memory": 1.5}, "not understood"),
        ({"timeout": -1}, "timeout -1"),
        ({"timeout": float("nan")}, "timeout nan"),
        ({"timeout": "soon"}, "time 'soon'"),
        ({"priority": 10}, "0 to 9"),
        ({"holder": ""}, "1 to 60 characters"),
        ({"holder": "x" * 61}, "1 to 60 characters"),
        ({"holder": 7}, "1 to 60 characters"),
        ({"until": 1.0}, "within a year from now"),
        ({"until": float("nan")}, "within a year from now"),
        ({"until": 2e9 * 1000}, "within a year from now"),
        ({"lasting": 0}, "above 0"),
        ({"lasting": 5, "until": time.time() + 86400}, "give the one or the other"),
        ({"on_wait": 7}, "cannot be called"),
        ({"lost": "me"}, "cannot be called"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        wish("gpu:0", **options)
    assert part in str(caught.value)


@pytest.mark.parametrize("gpu", [True, -1, 1.0, "", "  ", b"gpu:0", []])
def test_what_cannot_name_a_device(gpu: Any) -> None:
    with pytest.raises(InvalidInput, match="not understood"):
        wish(gpu)


@pytest.mark.parametrize("count", [0, -1, 65, 1.0, True, "2"])
def test_how_many_devices(count: Any) -> None:
    with pytest.raises(InvalidInput, match="1 to 64"):
        wish(None, count)


def test_the_label_is_the_program_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/ann/" + "t" * 80 + ".py", "--lr", "1"])
    assert default_label() == "t" * 60
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert default_label().startswith("python")
    monkeypatch.setattr(sys, "argv", [])
    assert default_label()


DEVICE = Device("SIM-1", 0, "simulated GPU 24G", "simulated", 24576)


@pytest.mark.parametrize(
    ("gpus", "part"),
    [
        ([], "at least one device"),
        ("", "not understood"),
        ("0,,1", "not understood"),
        ([0, 0], "names 0 twice"),
        ([DEVICE, DEVICE], "names sim:0 twice"),
        ([None], "not understood"),
        (1.5, "no list of devices"),
        ([True], "not understood"),
    ],
)
def test_devices_that_cannot_be_chosen(tmp_path: Path, gpus: Any, part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Places(load_config(home=tmp_path), gpus, "this")
    assert part in str(caught.value)


@pytest.mark.parametrize("host", ["", None, 7])
def test_hosts_that_cannot_be_meant(tmp_path: Path, host: Any) -> None:
    with pytest.raises(InvalidInput, match="'this', 'any'"):
        Places(load_config(home=tmp_path), None, host)
