"""msgpack: what goes in comes out, and what is not plain data does not go in."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from foxqueue.codec import pack, unpack

NOT_UTF8 = os.fsdecode(b"caf\xe9-\xff")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**63,
        1.5,
        "",
        "text",
        "ünïcode 🦊",
        NOT_UTF8,
        "a\0b\n",
        b"\x00\xff",
        [],
        ["python", "train.py", "--lr", "0.1", NOT_UTF8],
        {},
        {"v": 1, "argv": ["a"], "env": {"K": NOT_UTF8}, "tags": {}, "none": None},
        {1: "a key that is no text"},
        {"deep": [[{"x": [1, [2]]}]]},
    ],
)
def test_what_goes_in_comes_out(value: Any) -> None:
    assert unpack(pack(value)) == value


def test_a_name_that_is_not_utf8_is_the_same_file() -> None:
    assert os.fsencode(unpack(pack(NOT_UTF8))) == b"caf\xe9-\xff"


def test_the_same_data_are_the_same_bytes() -> None:
    """Environments are stored under the hash of theirs."""
    assert pack({"A": "1", "B": "2"}) == pack({"A": "1", "B": "2"})


@pytest.mark.parametrize("value", [object(), Path("/x"), {1, 2}, datetime.datetime(2026, 1, 1), print, [lambda: 0]])
def test_other_than_plain_data_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        pack(value)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\xa5ab", pack(1) + b"x", pack("a") + pack("b")])
def test_damaged_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not msgpack"):
        unpack(data)


def test_bytes_of_another_kind_run_nothing() -> None:
    """An extension type is data, never an object to be built."""
    extension = b"\xd4\x2a\x00"
    assert type(unpack(extension)).__name__ == "ExtType"
