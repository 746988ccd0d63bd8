"""Arguments and results of Python calls as bytes: msgpack with a few extension types, and nothing pickled.

Kept exactly: None, bool, int, float (NaN, infinities and -0.0 too), str (surrogates too), bytes, lists, dicts
with text or numbers for keys, datetime, NumPy arrays and scalars. Tuples come back as lists, a bytearray as bytes,
and what is derived from one of these types (an IntEnum, an OrderedDict) as the type itself.

The extension types, by their code; numbers are big-endian:

1  NumPy array: a msgpack list of three. ``dtype`` as NumPy spells it with its byte order (``"<f8"``), or for a
   structured one the list that its ``descr`` is, tuples as lists; ``shape``, a list of whole numbers; the elements in
   C order, as bytes.
2  NumPy scalar: a msgpack list of two, ``dtype`` and the bytes of the element.
3  datetime: an int64, microseconds of the wall clock since 1970-01-01 00:00. A naive one ends there; an aware one
   goes on with an int64, its offset from UTC in microseconds, and comes back with that fixed offset.
4  whole number beyond 64 bits: two's complement, as few bytes as it takes.

Imports nothing of foxqueue, so that it can be loaded by its path under another interpreter.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgpack

ARRAY, SCALAR, DATETIME, INTEGER = 1, 2, 3, 4
MAX_DEPTH = 200

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_KEYS = frozenset({bool, int, float, str})
_SPELT = re.compile(r"[<>|][?a-zA-Z][0-9]+(?:\[[0-9a-zA-Z/*]+\])?\Z")  # a dtype in NumPy's one exact spelling
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_CURE = (
    "give numbers, text, bytes, lists, dicts, datetime or NumPy arrays, or write it to a file and pass the file's path"
)


class Unpackable(TypeError):
    """Something cannot be packed. The text says where it stands, what it is and what can be given."""


def pack(value: Any, name: str = "result") -> bytes:
    """Pack a value.

    Args:
        value: plain data, as described above.
        name: what it is called in an error.

    Raises:
        Unpackable: it holds something else, is nested more than 200 deep, or holds itself.
    """
    plain = _plain(value, name, ())
    try:
        packed: bytes = msgpack.packb(plain, default=_integer, unicode_errors="surrogatepass")
    except ValueError as error:  # one piece of 4 GiB
        raise Unpackable(f"{name} is too large: {error}") from error
    return packed


def unpack(data: bytes) -> Any:
    """Unpack what :func:`pack` made.

    Raises:
        ValueError: the bytes cannot be read, or hold NumPy data and NumPy is not installed here.
    """
    try:
        return msgpack.unpackb(data, ext_hook=_read, strict_map_key=False, unicode_errors="surrogatepass")
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"cannot be read: {str(error) or 'it is no msgpack, or damaged'}") from error


# --- packing -----------------------------------------------------------------------------------------


def _plain(value: Any, where: str, above: tuple[int, ...]) -> Any:
    """The value in exact types that msgpack knows, itself where it is so already."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    numpy = sys.modules.get("numpy")  # without it nothing here is of NumPy
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _array(numpy, value, where)
    if isinstance(value, dict | list | tuple):
        if id(value) in above:
            raise Unpackable(f"{where} holds itself: such data cannot be packed")
        if len(above) >= MAX_DEPTH:
            raise Unpackable(f"{where[:60]}… is nested more than {MAX_DEPTH} deep")
        above = (*above, id(value))
        return _dict(value, where, above) if isinstance(value, dict) else _list(value, where, above)
    if kind is datetime:
        return _datetime(value)
    if isinstance(value, bytes | bytearray):
        return memoryview(value).tobytes()
    # the base's own method: a derived one may answer something else
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise Unpackable(f"{where} is {_name(kind)}: {_cure(value)}")


def _list(value: Any, where: str, above: tuple[int, ...]) -> list[Any]:
    if type(value) is list and _PLAIN.issuperset(map(type, value)):
        return value
    return [item if type(item) in _PLAIN else _plain(item, f"{where}[{at}]", above) for at, item in enumerate(value)]


def _dict(value: dict[Any, Any], where: str, above: tuple[int, ...]) -> dict[Any, Any]:
    plain = type(value) is dict and _KEYS.issuperset(map(type, value))
    if plain and _PLAIN.issuperset(map(type, value.values())):
        return value
    found = {}
    for key, item in value.items():
        known = key if type(key) in _KEYS else _key(key, where)
        found[known] = item if type(item) in _PLAIN else _plain(item, f"{where}[{_short(key)}]", above)
    return found


def _key(key: Any, where: str) -> Any:
    numpy = sys.modules.get("numpy")
    plain = key
    if numpy is not None and isinstance(key, numpy.number | numpy.str_):
        plain = key.item()  # equal, and of the same hash
    elif isinstance(key, str | int | float):
        plain = _plain(key, where, ())
    if type(plain) not in _KEYS:
        raise Unpackable(f"{where} has the key {_short(key)}, {_name(type(key))}: give text or numbers as keys")
    return plain


def _datetime(value: datetime) -> msgpack.ExtType:
    offset = value.utcoffset()
    wall = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    parts = (wall,) if offset is None else (wall, offset // _MICROSECOND)
    return msgpack.ExtType(DATETIME, struct.pack(f">{len(parts)}q", *parts))


def _integer(value: Any) -> msgpack.ExtType:
    """What msgpack hands back: all else was made plain before."""
    return msgpack.ExtType(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _array(numpy: Any, value: Any, where: str) -> msgpack.ExtType:
    kind = type(value)
    if isinstance(value, numpy.ndarray) and kind is not numpy.ndarray:
        raise Unpackable(f"{where} is {_name(kind)}: make it a plain array with numpy.asarray(…)")
    dtype = value.dtype
    if dtype.hasobject:
        raise Unpackable(f"{where} is NumPy data of Python objects: make it a list, or give it a type of numbers")
    try:
        spelt = _listed(dtype.descr) if dtype.names else dtype.str
        same = _dtype(numpy, spelt) == dtype
    except (TypeError, ValueError):
        same = False
    if not same:
        raise Unpackable(f"{where} is NumPy data of the type {dtype}, which would not come back: convert it first")
    if isinstance(value, numpy.generic):
        # An empty text has no bytes, and NumPy gives a character of them all the same.
        return msgpack.ExtType(SCALAR, msgpack.packb([spelt, value.tobytes()[: dtype.itemsize]]))
    return msgpack.ExtType(ARRAY, msgpack.packb([spelt, list(value.shape), value.tobytes()]))


def _listed(descr: Any) -> Any:
    return [_listed(part) for part in descr] if isinstance(descr, list | tuple) else descr


def _name(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # noqa: BLE001 - whatever somebody's __repr__ does, the error to tell is another
        text = "…"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _cure(value: Any) -> str:
    if isinstance(value, set | frozenset):
        return "make it a list, like sorted(…)"
    return _CURE


# --- unpacking ---------------------------------------------------------------------------------------


def _read(code: int, data: bytes) -> Any:
    if code == INTEGER:
        return int.from_bytes(data, "big", signed=True)
    if code == DATETIME:
        return _read_datetime(data)
    if code not in (ARRAY, SCALAR):
        raise ValueError(f"it holds the extension type {code}, which this version of foxqueue does not know")
    try:
        import numpy
    except ImportError as error:
        raise ValueError("it holds NumPy data: install numpy here to read it") from error
    return _read_array(numpy, msgpack.unpackb(data), code == SCALAR)


def _read_datetime(data: bytes) -> datetime:
    if len(data) not in (8, 16):
        raise ValueError(f"a datetime of {len(data)} bytes")
    wall, *offset = struct.unpack(f">{len(data) // 8}q", data)
    moment: datetime = _EPOCH + wall * _MICROSECOND
    if not offset:
        return moment
    return moment.replace(tzinfo=timezone(offset[0] * _MICROSECOND) if offset[0] else UTC)


def _read_array(numpy: Any, parts: Any, scalar: bool) -> Any:
    if not isinstance(parts, list) or len(parts) != (2 if scalar else 3) or not isinstance(parts[-1], bytes):
        raise ValueError("malformed NumPy data")
    shape = [] if scalar else parts[1]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("NumPy data of a malformed shape")
    dtype = _dtype(numpy, parts[0])
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(parts[-1]):
        raise ValueError(f"NumPy data whose bytes are not what type {dtype} and shape {shape} take")
    found = numpy.ndarray(tuple(shape), dtype, bytearray(parts[-1]))  # a bytearray: it can be written to
    return found[()] if scalar else found


def _dtype(numpy: Any, spelt: Any) -> Any:
    """A dtype from its spelling; in a structured one nameless fields are padding."""
    return numpy.lib.format.descr_to_dtype(_spelling(spelt))


def _spelling(spelt: Any) -> Any:
    """As NumPy takes it: fields are tuples of a name, a spelling and perhaps a shape."""
    if isinstance(spelt, str):
        if not _SPELT.match(spelt):
            raise ValueError(f"the NumPy type {spelt!r:.60}")
        return spelt
    if not isinstance(spelt, list):
        raise ValueError("a malformed NumPy type")
    fields = []
    for field in spelt:
        if not isinstance(field, list) or len(field) not in (2, 3):
            raise ValueError("a malformed NumPy type")
        name, kind, *shape = field
        name = tuple(name) if isinstance(name, list) else name  # with a title
        fields.append((name, _spelling(kind), *(tuple(sizes) for sizes in shape)))
    return fields
