"""Puts a namespace back from a file, into one that has never had a job.

The file is looked through before anything is written. Then it goes in pieces, each in one step: the namespace is paused
by the first and resumed by the last, and the same import may be begun again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from foxqueue.archive import END, IMPORT_FIELD, Archive, StoredJob, open_archive
from foxqueue.broker import CHUNK_BYTES, CHUNK_JOBS, SCHEMA, Broker
from foxqueue.errors import FoxqueueError, InvalidInput, ServerError, ServerRefused
from foxqueue.replies import text
from foxqueue.requirement import group_of
from foxqueue.restoring import MOST, place, put_back
from foxqueue.scripts import Value
from foxqueue.settings import PRIORITY_FIELD, SETTINGS

_CHUNK_WORDS = 20_000  # of records in one step
_LEASE = frozenset({"ttl_ms", "beat_ms", "margin_ms"})
_GROUP = ("created_at", "by", "paused", "max_concurrent", "max_fails", "streak", "streak_reason")


class ImportStopped(FoxqueueError):
    """An import has come to a stop half way, by an error or by Ctrl-C. The text says what to do."""

    def __init__(self, namespace: str, done: int, total: int, cause: FoxqueueError | None) -> None:
        super().__init__(
            f"the import stopped after {done:,} of {total:,} jobs{f': {cause}' if cause else ''}. Namespace "
            f"{namespace!r} stays paused and half full: run the same import again, it goes on where it stopped"
        )
        self.exit_code = 130 if cause is None else cause.exit_code


@dataclass
class Imported:
    """What an import wrote.

    Attributes:
        jobs: how many.
        given_back: of them ran when they were exported, and wait again.
        source: namespace and instance that they come from.
        instance: their new one.
        before: the whole file had been imported before, and nothing was done.
        paused: by whom and why the namespace is paused now, "" when it is not.
        said: sentences for people about what was put aside or left out.
    """

    jobs: int = 0
    given_back: int = 0
    source: tuple[str, str] = ("", "")
    instance: str = ""
    before: bool = False
    paused: str = ""
    said: list[str] = field(default_factory=list)


def import_namespace(broker: Broker, stream: BinaryIO, name: str, by: str) -> Imported:
    """Put the namespace of a file into that of a broker.

    Args:
        broker: of a namespace that has never had a job, or of one that an earlier try left half full.
        stream: the file; it is read more than once.
        name: of the file, for messages.
        by: who asks.

    Raises:
        InvalidInput: the file is none, is cut or damaged, or was written by a newer foxqueue.
        ServerRefused: the namespace has had jobs; nothing was changed.
        ImportStopped: something else went wrong after the first step.
    """
    return _Import(broker, open_archive(stream, name), name, by).run()


class _Import:
    def __init__(self, broker: Broker, archive: Archive, name: str, by: str) -> None:
        self._broker = broker
        self._archive = archive
        self._by = by
        self._done = Imported()
        self._settings: list[Value] = []
        self._paused: dict[str, bytes] = {}
        self._groups: dict[str, list[Value]] = {}  # those of which no job is written yet
        self._total, self._last, self._clock, self._exported_ms = 0, 0, 0, 0
        self._now_ms = broker.server_time_ms()
        try:
            schema = int(archive.header["schema"])
            self._look_through()
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidInput(f"{name} cannot be read, nothing was imported: {error}") from error
        if schema > SCHEMA:
            raise InvalidInput(
                f"{name} is of a newer foxqueue (schema {schema}, this one knows {SCHEMA}): upgrade this machine"
            )

    def run(self) -> Imported:
        """Write all of it."""
        word = self._send("begin", self._settings)
        if word == "done":
            self._done.before = True
            return self._done
        try:
            for records in self._pieces():
                self._send("put", records)
            self._send("end", [part for item in self._paused.items() for part in item])
        except FoxqueueError as error:
            raise self._stopped(error) from error
        except OSError as error:  # of the file; what the network says is a FoxqueueError
            raise self._stopped(FoxqueueError(f"its file cannot be read ({error.strerror or error})")) from error
        except KeyboardInterrupt:
            raise self._stopped(None) from None
        self._done.paused = text(
            self._broker.connection.answer(("HGET", self._broker.keys.paused, "*"), "paused") or b""
        )
        return self._done

    def _stopped(self, cause: FoxqueueError | None) -> ImportStopped:
        return ImportStopped(self._broker.keys.namespace, self._done.jobs, self._total, cause)

    def _send(self, step: str, records: Sequence[Value]) -> str:
        call = self._broker.import_call(self._archive.token, self._by, step, self._last, self._clock, records)
        reply = self._broker.resend(call, self._archive.token)
        self._done.instance = reply.instance
        namespace = f"namespace {self._broker.keys.namespace!r}"
        elsewhere = "give another --namespace, or another server by --url"
        if reply.word == "no" and step != "begin":
            raise ServerError(f"{namespace} has lost what the import wrote: its server came back without its data")
        if reply.word == "no":
            raise ServerRefused(
                f"{namespace} has had {int(reply.rest[0]):,} jobs: a file is imported only where there has never been "
                f"one, so {elsewhere}"
            )
        if reply.word == "other":
            raise ServerRefused(
                f"{namespace} holds the half of another import: run that one to its end, or {elsewhere}"
            )
        if reply.word == "newer":
            raise ServerRefused(f"{namespace} is of a newer foxqueue: upgrade this machine")
        return reply.word

    # --- reading -----------------------------------------------------------------------------------------------

    def _look_through(self) -> None:
        """Read all records, and of them what comes before the jobs and after."""
        header = self._archive.header
        self._exported_ms = int(header["server_time_ms"])
        self._done.source = (str(header["namespace"]), str(header["instance"]))
        for kind, *parts in self._archive.records():
            if kind == "settings":
                self._settings = self._sound_settings(parts[0])
            elif kind == "paused":
                self._paused = {text(scope): bytes(why) for scope, why in parts[0].items()}
            elif kind == "group":
                self._groups[parts[0]] = _group_words(*parts)
            elif kind == "env":
                text(parts[0]), len(parts[1])
            elif kind == "job":
                StoredJob(*parts).size()
                self._total += 1
            elif kind == END:
                self._last, self._clock = int(parts[0]["next"]), int(parts[0]["clock"])
            else:
                raise InvalidInput(f"it has a record {kind!r:.40}")
        if not 0 < self._clock <= MOST or not 0 <= self._last <= 10**15:
            raise InvalidInput("its clock or its numbers are out of range")

    def _sound_settings(self, found: dict[bytes, bytes]) -> list[Value]:
        known = _LEASE | {setting.field for setting in SETTINGS.values()}
        words: list[Value] = []
        for name, value in found.items():
            field_ = text(name)
            if field_.startswith(PRIORITY_FIELD) or field_ in known:
                if value.isdigit() and len(value) <= 16:
                    words += [name, value]
                    continue
            elif name == IMPORT_FIELD:
                continue
            self._done.said.append(f"left out, for it cannot be understood: the setting {field_!r:.80}")
        return words

    # --- writing -----------------------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[list[Value]]:
        """Records for one step each."""
        piece: list[Value] = []
        size, count = 0, 0
        for words in self._records():
            weight = sum(len(word) for word in words if not isinstance(word, int))
            if piece and (count == CHUNK_JOBS or size + weight > CHUNK_BYTES or len(piece) + len(words) > _CHUNK_WORDS):
                yield piece
                piece, size, count = [], 0, 0
            piece += words
            size, count = size + weight, count + 1
        if piece:
            yield piece

    def _records(self) -> Iterator[list[Value]]:
        for kind, *parts in self._archive.records():
            if kind == "env":
                yield ["env", parts[0], parts[1]]
            elif kind == "job":
                yield from self._job(StoredJob(*parts))

    def _job(self, found: StoredJob) -> Iterator[list[Value]]:
        job, why = put_back(found, self._clock, self._exported_ms, self._now_ms)
        if not 0 < job.number <= self._last:
            self._done.said.append(f"left out: job {job.number}, whose number was never given out")
            return
        if why:
            self._done.said.append(f"job {job.number} cannot be understood, it is put aside as failed: {why}")
        fields = job.fields or {}
        group = group_of(text(fields.get(b"shape", b"")))
        if group in self._groups:
            yield self._groups.pop(group)
        state, since = place(job, self._now_ms)
        words: list[Value] = ["job", job.number, state, since, "" if job.notice is None else job.notice]
        words += _listed(*fields.items())
        words += [job.spec or b"", job.result or b"", job.value or b""]
        words += [*_listed(*job.log), len(job.history), *job.history, *_listed(*job.edges.items())]
        self._done.given_back += not why and (found.fields or {})[b"state"] == b"running" and state == "pending"
        self._done.jobs += 1
        yield words


def _listed(*pairs: Sequence[bytes]) -> list[Value]:
    """Pairs behind the number of their words."""
    return [2 * len(pairs), *(word for pair in pairs for word in pair)]


def _group_words(name: str, began_ms: int, fields: dict[bytes, Any]) -> list[Value]:
    kept = [(part.encode(), fields[part.encode()]) for part in _GROUP if part.encode() in fields]
    return ["group", name, int(began_ms), *_listed(*(kept or [(b"created_at", b"%d" % began_ms)]))]
