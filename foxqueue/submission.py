"""From what a submitter asks for to a job that can be enqueued: every input checked, the surroundings captured."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from foxqueue import capture
from foxqueue.broker import Environment, NewJob
from foxqueue.codec import pack
from foxqueue.errors import InvalidInput
from foxqueue.repository import Repositories
from foxqueue.wishes import OWN, Options, Own, Wishes, check, check_own, short_name

IMPORTING = "FOXQUEUE_IMPORTING"  # set by a job that loads the module of its function, see workers.call
SPEC_VERSION = 1
MAX_SPEC_BYTES = 4 * 1024 * 1024  # Linux starts no command with more than 2 MiB of arguments and environment
MAX_CALL_BYTES = 1024 * 1024
REMEMBERED = 256  # different sets of options
_NOTHING = Own({})

Word = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Function = str | Callable[..., Any]

__all__ = ["Function", "Options", "Submission", "Submitter", "Word", "prepare", "user"]


class Submission(NamedTuple):
    """A checked request.

    Attributes:
        wishes: its options.
        name: as far as it fits into a field of the job's hash.
        spec: what to run, packed.
        environment: the captured one.
        left_out: names of variables that stay behind, those given by hand not counted.
        more: what few jobs have, see :class:`foxqueue.messages.NewJob`.
        user: who submits it.
        if_exists: what to do where an unfinished job has its unique key; empty where it has none.
    """

    wishes: Wishes
    name: str
    spec: bytes
    environment: Environment
    left_out: tuple[str, ...]
    more: str = ""
    user: str = ""
    if_exists: str = ""

    def job(self, priority: int) -> NewJob:
        """The job to enqueue."""
        wishes = self.wishes
        return NewJob(self.name, wishes.shape, priority, wishes.retries, wishes.retry_delay_ms, self.spec, self.more)


class _Surroundings:
    """What of this process goes along with its jobs, as it was at one moment.

    Args:
        environ: the environment to capture.
        repositories: what is known of the directories' repositories.
    """

    __slots__ = (
        "_environ",
        "_here",
        "_process",
        "_repositories",
        "_store",
        "_usual",
        "environment",
        "left_out",
        "user",
    )

    def __init__(self, environ: Mapping[str, str], repositories: Repositories) -> None:
        if IMPORTING in environ:
            raise InvalidInput(
                f"{environ[IMPORTING]} puts jobs into the queue while a job imports it, which would go on for ever: "
                "do that under if __name__ == '__main__':"
            )
        self._environ = environ
        self._repositories = repositories
        self._store = dict(capture.comparable(environ))
        self._process = _process()
        self.user = user()
        self._here = _here(environ, self._process[0])
        self._usual: dict[Wishes, tuple[int, bytes, str]] = {}
        captured = capture.capture(environ)
        self.environment = Environment.of(captured.env)
        self.left_out = captured.left_out

    def hold(self) -> bool:
        """Whether nothing has changed since."""
        process = _process()
        return (
            self._store == capture.comparable(self._environ)
            and self._process == process
            and (self._here == process[0] or self._here == _here(self._environ, process[0]))
        )

    def spec(self, asked: dict[str, Any], wishes: Wishes) -> bytes:
        """Pack a spec. What it has in common with earlier ones was packed with them.

        Raises:
            InvalidInput: there is no such directory, or a text cannot be written as UTF-8.
        """
        found = self._usual.get(wishes)
        try:
            if found is None:
                found = self._pack_usual(wishes)
            count, rest, cwd = found
            state = self._repositories.state(cwd)
            if state is not None:
                asked["git"] = state
            packed = _map_of(count + len(asked)) + pack(asked)[1:] + rest
        except UnicodeEncodeError as error:  # half of a surrogate pair: no text, and no bytes of a file name either
            raise InvalidInput(f"{error.object!r:.60} is not text: it cannot be written as UTF-8") from error
        if wishes.cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112 - at every submission
            directory(cwd)
        return packed

    def _pack_usual(self, wishes: Wishes) -> tuple[int, bytes, str]:
        _, umask, _ = self._process
        cwd = self._here if wishes.cwd is None else directory(wishes.cwd)
        if cwd is None:
            raise InvalidInput("the current directory is gone: give one with -d DIR (--cwd)")
        fields = {
            "v": SPEC_VERSION,
            "cwd": cwd,
            "umask": umask if wishes.umask is None else wishes.umask,
            "submit_host": socket.gethostname(),
            "user": self.user,
            **wishes.spec,
        }
        found = (len(fields), pack(fields)[1:], cwd)  # [1:]: both have less than 16 entries
        _remember(self._usual, wishes, found)
        return found


def _map_of(entries: int) -> bytes:
    """How msgpack begins a map."""
    return bytes([0x80 | entries]) if entries < 16 else b"\xde" + entries.to_bytes(2, "big")


def _process() -> tuple[str | None, int, int]:
    """This process's directory, None when it is gone, its umask and its user."""
    try:
        here = os.getcwd()  # noqa: PTH109 - text all the way: this runs at every submission
    except OSError:
        here = None
    return here, capture.current_umask(), os.getuid()


def _here(environ: Mapping[str, str], physical: str | None) -> str | None:
    """The current directory as the shell calls it, if that is the same one."""
    logical = environ.get("PWD", "")
    if physical is None or logical == physical or not logical.startswith("/"):
        return physical
    try:
        return logical if os.path.samefile(logical, physical) else physical  # noqa: PTH121
    except (OSError, ValueError):
        return physical


def prepare(
    argv: Sequence[Word], options: Mapping[str, Any], environ: Mapping[str, str], script: bytes | None = None
) -> Submission:
    """Check a request to run a command, once. See :meth:`Submitter.command`."""
    return Submitter(environ).command(argv, options, script)


class Submitter:
    """Checks requests and captures this process's surroundings; what has not changed since is not done again.

    Args:
        environ: the environment to capture.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._now: _Surroundings | None = None
        self._repositories = Repositories()
        self._checked: dict[tuple[Any, ...], Wishes] = {}

    def command(self, argv: Sequence[Word], options: Mapping[str, Any], script: bytes | None = None) -> Submission:
        """A command as a submission.

        Args:
            argv: the command as a list.
            options: see :class:`foxqueue.wishes.Options`.
            script: copy of the file that the command's first word names; it runs in its place.

        Raises:
            InvalidInput: something is malformed; the text says what, and what is allowed.
        """
        return self._command(argv, options, self._surroundings(), script)

    def call(
        self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> Submission:
        """A Python call as a submission.

        Args:
            function: itself, or its name like ``package.module:function``.
            args: positional arguments, plain data: see :mod:`foxqueue.payload`.
            kwargs: arguments by name.
            options: see :class:`foxqueue.wishes.Options`.

        Raises:
            InvalidInput: as above, or the function cannot be found by its name, or the arguments cannot be packed.
        """
        return self._call(function, args, kwargs, options, self._surroundings())

    def many(self, requests: Iterable[Mapping[str, Any]]) -> list[Submission]:
        """Check many requests; see :meth:`foxqueue.client.Client.submit_many`.

        Raises:
            InvalidInput: one is malformed; the text begins with its place, like ``requests[3]``.
        """
        if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
            raise InvalidInput('requests are given as a list of mappings, like [{"argv": ["python", "train.py"]}]')
        fixed = isinstance(requests, list | tuple)  # what makes them as it goes may change our surroundings
        now = self._surroundings()
        found = []
        for at, request in enumerate(requests):
            try:
                found.append(self._request(request, now if fixed else self._surroundings()))
            except InvalidInput as error:
                raise InvalidInput(f"requests[{at}]: {error}") from error
        return found

    def _request(self, request: Any, now: _Surroundings) -> Submission:
        if not isinstance(request, Mapping):
            raise InvalidInput(f"{request!r:.60} is no mapping: give one like {{'argv': ['python', 'train.py']}}")
        options = dict(request)
        argv, function = options.pop("argv", None), options.pop("function", None)
        if (argv is None) == (function is None):
            raise InvalidInput("give either argv, a command, or function, a Python call")
        if argv is not None:
            return self._command(argv, options, now)
        return self._call(function, options.pop("args", ()), options.pop("kwargs", None), options, now)

    def _command(
        self, argv: Sequence[Word], options: Mapping[str, Any], now: _Surroundings, script: bytes | None = None
    ) -> Submission:
        words = command(argv)
        return self._submission({"argv": words} if script is None else {"argv": words, "script": script}, options, now)

    def _call(
        self,
        function: Function,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        now: _Surroundings,
    ) -> Submission:
        from foxqueue import calls  # not needed by a plain command

        where = calls.target(function)
        named = {} if kwargs is None else kwargs
        data = arguments(args, named)
        call = {
            "module": where.module,
            "script": where.script,
            "qualname": where.qualname,
            "python": sys.executable or "",
            "beside": calls.beside(),
            "data": data,
        }
        asked = {"argv": [calls.text(where, args, named)], "call": call}
        return self._submission(asked, options, now)

    def _submission(self, asked: dict[str, Any], options: Mapping[str, Any], now: _Surroundings) -> Submission:
        name, left_out, own = "", now.left_out, _NOTHING
        if not OWN.isdisjoint(options):
            own = check_own(options)
            asked.update(own.spec)
            options = {option: value for option, value in options.items() if option not in OWN}
            name = short_name(own.spec.get("name", ""))
            left_out = tuple(variable for variable in left_out if variable not in own.spec.get("env", ()))
        wishes = self._wishes(options)
        more = own.more + wishes.more
        if wishes.hold:
            more += f"held={now.user}\n"
        packed = now.spec(asked, wishes)
        if len(packed) > MAX_SPEC_BYTES:
            raise InvalidInput(f"the job is too large: {len(packed):,} bytes of command and texts, at most 4 MiB")
        return Submission(wishes, name, packed, now.environment, left_out, more, now.user, own.if_exists)

    def _wishes(self, options: Mapping[str, Any]) -> Wishes:
        """Checked options, from memory if these were checked before; 1, 1.0 and True are not the same."""
        try:
            key = (*options.items(), *map(type, options.values()))
            found = self._checked.get(key)
        except TypeError:  # a list or the like among them: nothing that can be asked for
            return check(options)
        if found is None:
            found = check(options)
            _remember(self._checked, key, found)
        return found

    def _surroundings(self) -> _Surroundings:
        now = self._now
        if now is None or not now.hold():
            now = self._now = _Surroundings(self._environ, self._repositories)
        return now


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = value


def user() -> str:
    """Login name of this process's user, or its number."""
    return _login(os.getuid())


@cache
def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)  # containers run under numbers that no passwd file names


def command(argv: Sequence[Word]) -> list[str]:
    """A command as a list of text, checked."""
    if isinstance(argv, str | bytes):
        raise InvalidInput(
            'the command is one piece of text: give a list, like ["python", "train.py"]; for a shell ["sh", "-c", "…"]'
        )
    try:
        words = [word if type(word) is str else os.fsdecode(word) for word in argv]
    except TypeError as error:
        raise InvalidInput(f"the command must be a list of text: {error}") from error
    if not words:
        raise InvalidInput("empty command: write it after --, like foxqueue submit -- python train.py")
    if not words[0]:
        raise InvalidInput("empty command: the program's name is an empty text")
    if "\0" in "".join(words):
        raise InvalidInput("the command holds a NUL character, which no program can be given")
    if max(map(len, words)) > capture.MAX_STRING // 4:
        for at, word in enumerate(words, 1):
            capture.check_length(word, f"word {at} of the command ({word[:20]!r}…)")
    return words


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The arguments of a call, packed as one list of two: ``[args, kwargs]``."""
    from foxqueue import payload  # not needed by a plain command

    if not isinstance(args, list | tuple):
        raise InvalidInput(f"args must be a list or a tuple, like (1, 'a'), not {args!r:.60}")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise InvalidInput(f"kwargs must map names to values, like {{'lr': 0.1}}, not {kwargs!r:.60}")
    try:
        data = b"\x92" + payload.pack(args, "args") + payload.pack(dict(kwargs), "kwargs")  # \x92: a list of two
    except payload.Unpackable as error:
        raise InvalidInput(str(error)) from error
    if len(data) > MAX_CALL_BYTES:
        raise InvalidInput(
            f"the arguments take {len(data):,} bytes, at most 1 MiB can go along: "
            "write the data to a file and give its path"
        )
    return data


def directory(given: str | os.PathLike[str]) -> str:
    """The job's directory as an absolute path, symbolic links kept."""
    if not os.fspath(given):
        raise InvalidInput("the directory is an empty text: leave -d (--cwd) out for the current one")
    try:
        path = os.path.abspath(Path(given).expanduser())  # noqa: PTH100 - Path.resolve would follow links
    except OSError as error:
        raise InvalidInput(f"directory {given} is relative, and the current directory is gone: give -d /DIR") from error
    except RuntimeError as error:
        raise InvalidInput(f"directory {given}: there is no such user; write it out") from error
    try:
        if Path(path).is_dir():
            return path
        what = "is not a directory: give" if Path(path).exists() else "does not exist: make it, or give"
    except OSError as error:
        what = f"cannot be used ({error.strerror or error}): give"
    raise InvalidInput(f"directory {path} {what} another with -d DIR (--cwd)")
