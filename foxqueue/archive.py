"""The file in which a namespace is moved: msgpack records, counted, and a checksum over all of it at the end.

Records are lists: a kind and its parts. First comes the header, last the trailer, whose last 32 bytes are the SHA-256
of all bytes before them. Data of Redis are bytes as they were found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO, Final

import msgpack

from foxqueue.codec import pack
from foxqueue.errors import InvalidInput

FORMAT: Final = 1
MAGIC: Final = "foxqueue export"
END: Final = "end"
IMPORT_FIELD: Final = b"import"  # of the settings: which file the namespace came from, and whether it has come whole
_START = pack([MAGIC, {}])[:-1]  # what the header begins with
_DIGEST = 32
_BLOCK = 1024 * 1024
_MOST_PARTS = 1_000_000  # of one list or map
_MOST_BYTES = 2**31 - 1  # of one record: a value in Redis has at most 512 MiB


@dataclass
class StoredJob:
    """One job as it was found, or as it is to be written; None stands for what cannot be read or is not there.

    Attributes:
        fields: of its hash.
        log: ids and data of what is kept of its output.
        history: how earlier runs ended.
        edges: the jobs that it waits for, or did -> the condition.
        notice: ms at which its end is to be told; None when it is not, or has been.
        since: ms since which it is blocked; None when it is not.
    """

    number: int
    fields: dict[bytes, bytes] | None
    spec: bytes | None = None
    result: bytes | None = None
    value: bytes | None = None
    log: list[list[bytes]] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    edges: dict[bytes, bytes] = field(default_factory=dict)
    notice: int | None = None
    since: int | None = None

    def parts(self) -> list[Any]:
        """As it stands in a record."""
        return [getattr(self, one.name) for one in fields(self)]

    def size(self) -> int:
        """Bytes of its data, roughly."""
        texts = [self.spec, self.result, self.value, *self.history]
        for pair in (*(self.fields or {}).items(), *self.edges.items(), *self.log):
            texts += pair
        return sum(len(text or b"") for text in texts)


class Writer:
    """Writes an archive.

    Args:
        stream: where it goes.
        header: facts about the namespace and the server.
    """

    def __init__(self, stream: BinaryIO, header: dict[str, Any]) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()
        self.size = 0
        self.put(MAGIC, {"format": FORMAT, **header})

    def put(self, kind: str, *parts: Any) -> None:
        """Write a record."""
        self._write(pack([kind, *parts]))

    def end(self, figures: dict[str, Any]) -> None:
        """Write the trailer: figures about the whole, and the checksum."""
        self._write(pack([END, figures, bytes(_DIGEST)])[:-_DIGEST])
        self._stream.write(self._sum.digest())
        self.size += _DIGEST

    def _write(self, data: bytes) -> None:
        self._sum.update(data)
        self._stream.write(data)
        self.size += len(data)


@dataclass(frozen=True)
class Archive:
    """An archive that was found whole.

    Attributes:
        header: its first record.
        token: hex digits of its checksum, which name it.
    """

    stream: BinaryIO
    header: dict[str, Any]
    token: str

    def records(self) -> Iterator[list[Any]]:
        """All records behind the header, the trailer too, from the beginning.

        Raises:
            InvalidInput: one is malformed.
        """
        self.stream.seek(0)
        found = _records(self.stream)
        next(found)
        last = ""
        for record in found:
            last = record[0]
            yield record
        if last != END:
            raise InvalidInput("it has no end")


def open_archive(stream: BinaryIO, name: str) -> Archive:
    """Look whether an archive is whole and can be read.

    Args:
        stream: a file that can be read more than once.
        name: of it, for messages.

    Raises:
        InvalidInput: it is none, is cut or damaged, or was written by a newer foxqueue.
    """
    stream.seek(0)
    if stream.read(len(_START)) != _START:
        raise InvalidInput(f"{name} is no export of foxqueue: give a file that foxqueue export wrote")
    stream.seek(0)
    told, counted = _sums(stream)
    if told != counted:
        raise InvalidInput(f"{name} is cut or damaged (its checksum is wrong): nothing was imported; copy it again")
    stream.seek(0)
    header = next(_records(stream))[1]
    found = header.get("format")
    if found != FORMAT:
        raise InvalidInput(f"{name} has format {found!r:.20}, this foxqueue reads {FORMAT}: upgrade this machine")
    return Archive(stream, header, told.hex()[:32])


def _sums(stream: BinaryIO) -> tuple[bytes, bytes]:
    """The checksum that stands at the end, and that of all before it."""
    counted, tail = hashlib.sha256(), b""
    while block := stream.read(_BLOCK):
        tail += block
        counted.update(tail[:-_DIGEST])
        tail = tail[-_DIGEST:]
    return tail, counted.digest()


def _records(stream: BinaryIO) -> Iterator[list[Any]]:
    unpacker = msgpack.Unpacker(
        stream,
        read_size=_BLOCK,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=_MOST_BYTES,
        max_array_len=_MOST_PARTS,
        max_map_len=_MOST_PARTS,
    )
    try:
        for record in unpacker:
            if not isinstance(record, list) or not record or not isinstance(record[0], str):
                raise ValueError("a record that is no list")
            yield record
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        raise InvalidInput(f"a record cannot be read: {error}") from error
