"""What arguments and results survive, exactly; what is refused, with its place; and no bytes that do harm."""

from __future__ import annotations

import contextlib
import enum
import math
import random
import subprocess
import sys
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pytest

from foxqueue import payload
from foxqueue.payload import Unpackable, pack, unpack


def there_and_back(value: Any) -> Any:
    return unpack(pack(value))


SAME: list[Any] = [
    None,
    True,
    0,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**5000,
    -(10**400),
    0.1,
    math.inf,
    -math.inf,
    "ä\0\u2028",
    "\udcff",
    "\ud800",
    "\udcc3\udca4",  # would be ä, were it written as the bytes that it stands for
    b"\0\xff",
    [],
    [1, ["a", [None]], {"b": {}}],
    {"a": 1, 2: 3, -1.5: [], "": None},
    datetime(2026, 11, 30, 16, 25, 1, 123456),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime.min,
    datetime.max,
    datetime(2026, 11, 30, tzinfo=UTC),
    datetime(2026, 11, 30, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=-3, minutes=-30, microseconds=5))),
]


@pytest.mark.parametrize("value", SAME, ids=[str(at) for at in range(len(SAME))])
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    found = there_and_back(value)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, datetime):
        assert found.utcoffset() == value.utcoffset()


def test_numbers_that_are_not_equal_to_themselves_come_back_too() -> None:
    assert math.isnan(there_and_back(math.nan))
    assert math.copysign(1, there_and_back(-0.0)) == -1
    assert list(there_and_back({math.nan: 1}).values()) == [1]


def test_what_is_derived_from_plain_types_comes_back_plain() -> None:
    class Colour(enum.StrEnum):
        RED = "r"

    class Number(enum.IntEnum):
        THREE = 3

    point = namedtuple("point", "x y")
    given = [(1, (2,)), point(1, 2), Colour.RED, Number.THREE, bytearray(b"b"), OrderedDict(a=(1,)), {Colour.RED: 1}]
    found = there_and_back(given)
    assert found == [[1, [2]], [1, 2], "r", 3, b"b", {"a": [1]}, {"r": 1}]
    assert [type(part) for part in found] == [list, list, str, int, bytes, dict, dict]


ARRAYS = [
    numpy.arange(6).reshape(2, 3),
    numpy.arange(6).reshape(2, 3).T,
    numpy.arange(10)[::-2],
    numpy.array(3.5),
    numpy.zeros((0, 3)),
    numpy.zeros((3, 0), "f4"),
    numpy.array([True, False]),
    numpy.array([1], ">i4"),
    numpy.array(["a", "bcä"]),
    numpy.array([b"x", b""]),
    numpy.array([1 + 2j]),
    numpy.array(["2026-11-30"], "M8[ns]"),
    numpy.array([3], "m8[25s]"),
    numpy.array([1.5], "f2"),
    numpy.array([1.5], "g"),
    numpy.zeros(2, [("a", "<f8"), ("b", "<i4", (2,))]),
    numpy.zeros(2, [("inner", [("x", "f4")])]),
    numpy.zeros(2, numpy.dtype([("a", "i1"), ("b", "f8")], align=True)),
    numpy.array([math.nan, math.inf, -0.0]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}"[:30])
def test_arrays_come_back_as_they_were(array: Any) -> None:
    found = there_and_back({"a": [array]})["a"][0]
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert found.flags.writeable


SCALARS = [
    numpy.float64(1.5),
    numpy.float32(0.1),
    numpy.int64(-3),
    numpy.bool_(True),
    numpy.str_("ab"),
    numpy.bytes_(b"x"),
    numpy.datetime64("2026-11-30"),
    numpy.zeros(1, [("a", "f8")])[0],
]


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_numpy_scalars_keep_their_type(scalar: Any) -> None:
    found = there_and_back([scalar])[0]
    assert type(found) is type(scalar)
    assert found == scalar


def test_numpy_numbers_as_keys_come_back_as_numbers() -> None:
    found = there_and_back({numpy.int64(3): 1, numpy.float64(0.5): 2, numpy.str_("a"): 3})
    assert found == {3: 1, 0.5: 2, "a": 3}


def itself() -> list[Any]:
    found: list[Any] = [{}]
    found[0]["again"] = found
    return found


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth - 1):
        found = [found]
    return found


class Model:
    """Something that is no data."""


BAD: list[tuple[Any, str]] = [
    ({"model": Model()}, r"result\['model'\] is a .*test_payload\.Model: give numbers"),
    ([0, {"a": (1, {2})}], r"result\[1\]\['a'\]\[1\] is a set: make it a list"),
    (lambda: 0, "result is a function"),
    (math, "result is a module"),
    (object(), "result is an object"),
    (1j, "result is a complex"),
    (range(3), "result is a range"),
    (date(2026, 11, 30), "result is a datetime.date"),
    (timedelta(1), "result is a datetime.timedelta"),
    (Path("/"), "result is a pathlib"),
    (ValueError("x"), "result is a ValueError"),
    ({(1, 2): 3}, r"result has the key \(1, 2\), a tuple"),
    ({b"a": 1}, r"result has the key b'a', a bytes"),
    ({None: 1}, "result has the key None"),
    ({"x": {Model: 1}}, r"result\['x'\] has the key"),
    ({numpy.complex64(1): 1}, "result has the key"),
    ({numpy.longdouble(1): 1}, "result has the key"),
    (itself(), r"result\[0\]\['again'\] holds itself"),
    (nested(201), "nested more than 200 deep"),
    ([numpy.array([Model()])], r"result\[0\] is NumPy data of Python objects"),
    (numpy.zeros(2, [("a", "O")]), "Python objects"),
    (numpy.ma.array([1]), "numpy.asarray"),
    (numpy.rec.array([(1, 2.0)]), "numpy.asarray"),
    (numpy.array(["a"], numpy.dtypes.StringDType()), "NumPy data of"),
    (numpy.zeros(1, {"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [0, 0]}), "would not come back"),
]


@pytest.mark.parametrize(("value", "text"), BAD, ids=[text for _, text in BAD])
def test_what_cannot_be_packed_is_refused_with_its_place(value: Any, text: str) -> None:
    with pytest.raises(Unpackable, match=text):
        pack(value)


def test_the_deepest_nesting_comes_back() -> None:
    assert there_and_back(nested(200)) == nested(200)


def test_the_same_list_twice_is_not_a_list_in_itself() -> None:
    part = [1]
    assert there_and_back([part, part, {"a": part}]) == [[1], [1], {"a": [1]}]


def test_an_error_of_a_key_s_own_repr_does_not_hide_what_is_wrong() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(Unpackable, match="has the key …"):
        pack({Odd(): 1})


# Reading


def packed(code: int, *parts: Any) -> bytes:
    data: bytes = msgpack.packb(msgpack.ExtType(code, msgpack.packb(list(parts))))
    return data


DAMAGED = [
    (b"", "cannot be read"),
    (b"\xc1", "damaged"),
    (b"\x01\x02", "extra data"),
    (b"\x92\x01", "incomplete"),
    (b"\xa2\xff\xfe", "decode"),
    (b"\x81\x90\x01", "unhashable"),
    (b"\x91" * 5000 + b"\x01", "damaged"),
    (b"\xc7\x0c\xff" + b"\xff" * 12, "cannot be read"),
    (msgpack.packb(msgpack.ExtType(99, b"")), "extension type 99"),
    (msgpack.packb(msgpack.ExtType(payload.DATETIME, b"123")), "3 bytes"),
    (msgpack.packb(msgpack.ExtType(payload.DATETIME, b"\x7f" + b"\xff" * 7)), "out of range"),
    (msgpack.packb(msgpack.ExtType(payload.DATETIME, b"\0" * 8 + b"\x7f" + b"\xff" * 7)), "offset"),
    (msgpack.packb(msgpack.ExtType(payload.ARRAY, b"")), "cannot be read"),
    (packed(payload.ARRAY, "<f8", [1]), "malformed"),
    (packed(payload.ARRAY, "|O8", [1], b"\1" * 8), "type object"),
    (packed(payload.ARRAY, [["a", "|O8"]], [1], b"\1" * 8), "bytes are not"),
    (packed(payload.ARRAY, "<f8", [-1], b""), "malformed shape"),
    (packed(payload.ARRAY, "<f8", ["1"], b""), "malformed shape"),
    (packed(payload.ARRAY, "<f8", [2**62, 2**62], b""), "bytes are not"),
    (packed(payload.ARRAY, "<f8", [2**63, 0], b""), "cannot be read"),
    (packed(payload.ARRAY, "<f8", [1] * 100, b"\0" * 8), "cannot be read"),
    (packed(payload.ARRAY, "f8,O", [1], b"\0" * 16), "NumPy type"),
    (packed(payload.ARRAY, 8, [1], b"\0" * 8), "malformed"),
    (packed(payload.ARRAY, [["a"]], [1], b"\0" * 8), "malformed"),
    (packed(payload.ARRAY, [["a", "<f8", 3]], [1], b"\0" * 8), "cannot be read"),
    (packed(payload.SCALAR, "<f8", b"123"), "bytes are not"),
]


@pytest.mark.parametrize(("data", "text"), DAMAGED, ids=[str(at) for at in range(len(DAMAGED))])
def test_damaged_bytes_are_a_value_error(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        unpack(data)


def test_no_bytes_do_worse_than_a_value_error() -> None:
    chance = random.Random(3)
    good = [pack([{"a": numpy.zeros(3, [("a", "f4")]), "b": numpy.float32(2)}, 2**70, "x"]), pack(datetime.now(UTC))]
    for _ in range(5000):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with contextlib.suppress(ValueError):
            unpack(bytes(data))


WITHOUT_NUMPY = """
import importlib.util, sys
sys.modules["numpy"] = None
spec = importlib.util.spec_from_file_location("payload", sys.argv[1])
payload = importlib.util.module_from_spec(spec)
spec.loader.exec_module(payload)
assert payload.unpack(payload.pack({"a": (1, 2**70)})) == {"a": [1, 2**70]}
try:
    payload.unpack(bytes.fromhex(sys.argv[2]))
except ValueError as error:
    print(error)
print([name for name in sys.modules if name.startswith("foxqueue")])
"""


def test_it_is_loaded_by_its_path_alone_and_says_when_numpy_is_missing() -> None:
    command = [sys.executable, "-c", WITHOUT_NUMPY, str(payload.__file__), pack(numpy.zeros(2)).hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.stdout == "cannot be read: it holds NumPy data: install numpy here to read it\n[]\n", done.stderr


@pytest.mark.parametrize("kind", ["U", "S", "V"])
def test_an_empty_numpy_text_comes_back(kind: str) -> None:
    for value in (numpy.zeros((), f"<{kind}0")[()] if kind != "V" else numpy.void(b""), numpy.zeros(2, f"{kind}5")[0]):
        found = payload.unpack(payload.pack({"a": [value]}))["a"][0]
        assert found == value and type(found) is type(value)
