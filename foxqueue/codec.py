"""msgpack for specs, results and observations: opaque bytes to Redis and Lua."""

from __future__ import annotations

from typing import Any

import msgpack


def pack(value: Any) -> bytes:
    """Pack plain data. Text that is not UTF-8 (an argument, a path) survives as surrogates.

    Raises:
        TypeError: the value holds something that is not plain data.
    """
    packed: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return packed


def unpack(data: bytes) -> Any:
    """Unpack what :func:`pack` made; lists stay lists.

    Raises:
        ValueError: the bytes are not msgpack.
    """
    try:
        return msgpack.unpackb(data, unicode_errors="surrogateescape", strict_map_key=False)
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        raise ValueError(f"not msgpack: {error}") from error
