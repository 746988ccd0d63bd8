"""Carries out one Python call of a job: ``PYTHON workers/call.py RUN_DIR MAX_RESULT_BYTES``.

It runs under the submitter's interpreter, which may hold another foxqueue or none: so it imports the standard library
and msgpack alone, and loads the worker's own foxqueue/payload.py by its path. In RUN_DIR it finds ``call.msgpack``
and leaves ``return.msgpack``, a map of one entry: ``value`` (bytes, packed), ``exception`` (type, message, traceback;
of a foxqueue.Retry or foxqueue.Fail also wish, and delay where one was given), or a reason (bad_result, bad_payload,
launch_error) with a sentence. Exceptions and exits take their usual way as well.
"""

# No pathlib, which takes longer to import than all the rest; imports follow the path's correction.
# ruff: noqa: PTH100, PTH104, PTH109, PTH113, PTH118, PTH120, PTH123

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the directory of this file: its names are no modules of the user's

import contextlib
import importlib
import importlib.util
import os
import runpy
import struct
import types
from collections.abc import Iterator
from typing import Any, Final

CALL_NAME: Final = "call.msgpack"
REPORT_NAME: Final = "return.msgpack"
RESERVED_NAME: Final = ".return.msgpack.tmp"
RESERVED_BYTES: Final = 32 * 1024  # made by the worker before the start: any report but a large value fits in
MESSAGE_BYTES: Final = 4 * 1024
TRACEBACK_BYTES: Final = 16 * 1024
TRACEBACK_FRAMES: Final = 2000
MARK: Final = "__foxqueue__"  # an attribute of the classes by which a function says what is to follow
WISHES: Final = ("retry", "fail")
IMPORTING: Final = "FOXQUEUE_IMPORTING"  # set while a module is loaded, which must not enqueue: it would for ever
_OLDEST: Final = (3, 11)
_INSTALL: Final = "pip install msgpack"


class Refused(Exception):
    """The call cannot be tried, or what it returned cannot be kept.

    Args:
        reason: a word of the queue's closed list.
        text: a sentence with the cure.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Report:
    """Where the outcome of the call is written, by this process alone: a fork of it may come by as well."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._pid = os.getpid()

    @property
    def ours(self) -> bool:
        """Whether this process is the one to write it."""
        return os.getpid() == self._pid

    def write(self, kind: str, what: Any) -> None:
        """Write the report and give it its name, in one step for every reader.

        Args:
            kind: ``value``, ``exception`` or a reason.
            what: bytes, a map of texts, or a text.

        Raises:
            OSError: there is no room for it.
        """
        if not self.ours:
            return
        # Opened only now: the user's code may have closed all descriptors and put files of its own there.
        path = os.path.join(self._run_dir, RESERVED_NAME)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            data = _packed({kind: what})
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], written)
            os.ftruncate(descriptor, len(data))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(path, os.path.join(self._run_dir, REPORT_NAME))


def main(run_dir: str, max_result_bytes: int) -> None:
    """Call and report.

    Args:
        run_dir: directory of the run.
        max_result_bytes: what the packed value may have.

    Raises:
        BaseException: whatever the call raised, for the interpreter to deal with as usual.
    """
    report = Report(run_dir)
    try:
        _answer(report, run_dir, max_result_bytes)
    except Refused as refused:
        with contextlib.suppress(Exception):
            print(f"foxqueue: {refused}", file=sys.stderr, flush=True)
        report.write(refused.reason, _clean(str(refused), MESSAGE_BYTES))
        raise SystemExit(1) from None
    except (SystemExit, KeyboardInterrupt) as error:
        _hide_our_frames(error)
        raise
    except BaseException as error:
        _flush()
        report.write("exception", described(error))
        _hide_our_frames(error)
        raise


def _answer(report: Report, run_dir: str, max_result_bytes: int) -> None:
    if sys.version_info < _OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        raise Refused("launch_error", f"{sys.executable} is Python {version} on this machine: install 3.11 or newer")
    with contextlib.suppress(Exception):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what it prints can be followed
    import traceback  # noqa: F401 - before the job's directory is looked at, which may have a token.py

    payload = _payload()
    call = _read(run_dir)
    function = find(call["module"], call["script"], call["qualname"], call.get("beside"))
    try:
        args, kwargs = payload.unpack(call["data"])  # after the import: what the module sets up comes first
    except Exception as error:
        raise Refused("bad_payload", f"its arguments {error}") from error
    value = _called(function, args, kwargs)
    if not report.ours:
        return
    _flush()
    data = _pack(payload, value)
    if len(data) > max_result_bytes:
        raise Refused(
            "bad_result",
            f"what it returned has {len(data):,} bytes, and {max_result_bytes:,} are allowed: write it to a file in "
            "FOXQUEUE_DIR and return the path (foxqueue config set max_result 4M, say, changes the limit)",
        )
    try:
        report.write("value", data)
    except OSError as error:
        why = error.strerror or error
        raise Refused("bad_result", f"what it returned ({len(data):,} bytes) could not be stored: {why}") from error


def _called(function: Any, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except SystemExit as ended:
        if ended.code is None or (isinstance(ended.code, int) and not ended.code & 0xFF):
            return None
        raise


def _pack(payload: Any, value: Any) -> bytes:
    try:
        data: bytes = payload.pack(value)
    except Exception as error:
        raise Refused("bad_result", f"what it returned cannot be packed: {_said(error)}") from error
    return data


# --- finding the function -----------------------------------------------------------------------------------


def find(module: str | None, script: str | None, qualname: str, beside: str | None = None) -> Any:
    """Load the function's module and find it there.

    Args:
        module: its name; None when it is a script.
        script: the absolute path of what was ``__main__`` where the job was submitted.
        qualname: of the function in the module.
        beside: directory of the script that submitted it, which finds its neighbours there; None when there was none.

    Raises:
        ImportError, FileNotFoundError, AttributeError, TypeError: it is not there, or is no function; and whatever
            the module itself raises.
    """
    here = os.getcwd()
    first = os.path.dirname(script) if script else beside
    sys.path[:0] = dict.fromkeys(place for place in (first, here) if place)
    # Not ours: multiprocessing loads __main__ in each of its children.
    sys.modules["__main__"] = types.ModuleType("__main__")
    with _importing(script or str(module)):
        found: Any = _of_module(str(module), here) if script is None else _of_script(script)
    where = script or f"module {module}"
    for name in qualname.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise AttributeError(f"{where} has no {qualname} here: is it the version that was submitted?") from None
    if not callable(found):
        raise TypeError(f"{qualname} of {where} is no function but {type(found).__name__}")
    return found


def _of_module(name: str, here: str) -> types.ModuleType:
    sys.argv = [name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name and not name.startswith(f"{error.name}."):
            raise  # it is there, and something that it imports is not
        text = f"no module {error.name!r} for {sys.executable} in {here}: submit from its directory, or install it"
        raise ModuleNotFoundError(text, name=error.name) from None


def _of_script(path: str) -> types.ModuleType:
    """Load a script as multiprocessing's children do: not under the name that makes it run."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"script {path} is not on this machine: put the function into an installed module")
    sys.argv = [path]
    main = types.ModuleType("__mp_main__")
    main.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return main


@contextlib.contextmanager
def _importing(what: str) -> Iterator[None]:
    os.environ[IMPORTING] = what
    try:
        yield
    finally:
        os.environ.pop(IMPORTING, None)


# --- telling what it raised ---------------------------------------------------------------------------------


def described(error: BaseException) -> dict[str, str]:
    """An exception as texts, whatever its class does; our own frames are left out."""
    kind = type(error)
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    message = _said(error)
    try:
        import traceback

        trace = _without_ours(error.__traceback__)
        text = "".join(traceback.format_exception(kind, error, trace, limit=-TRACEBACK_FRAMES))
    except Exception as fault:  # noqa: BLE001 - of its own making, or there is no memory left
        text = f"{name}: {message}\n(its traceback cannot be shown: {type(fault).__name__})\n"
    return {
        "type": _clean(name, 200),
        "message": _clean(message, MESSAGE_BYTES),
        "traceback": _clean(text, TRACEBACK_BYTES, end=True),
        **_wished(error),
    }


def _wished(error: BaseException) -> dict[str, str]:
    """What a foxqueue.Retry or Fail asks for. Known by a mark of their classes: it may be of another foxqueue."""
    try:
        wish = getattr(type(error), MARK, None)
        delay = getattr(error, "delay", None) if wish == "retry" else None
        if type(wish) is not str or wish not in WISHES:
            return {}
        return {"wish": wish} if delay is None else {"wish": wish, "delay": repr(float(delay))}
    except Exception:  # noqa: BLE001 - the class is the user's
        return {}


def _said(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception as fault:  # noqa: BLE001 - the class is the user's
        return f"(its text cannot be shown: {type(fault).__name__})"


def _clean(text: str, most: int, end: bool = False) -> str:
    """The text as UTF-8 of at most so many bytes: its beginning, or its end."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > most:
        data = b"..." + data[3 - most :] if end else data[: most - 3] + b"..."
    return data.decode("utf-8", "ignore")


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback that begins in the user's code."""
    importers = {__file__, runpy.__file__, importlib.__file__}
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in importers and not name.startswith(("<frozen runpy", "<frozen importlib")):
            break
        trace = trace.tb_next
    return trace


def _hide_our_frames(error: BaseException) -> None:
    """Let the interpreter, or a hook of the user's, show the traceback without our frames."""
    hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, trace: types.TracebackType | None) -> None:
        trace = _without_ours(trace)
        if value is error:
            value.__traceback__ = trace
        hook(kind, value, trace)

    sys.excepthook = show


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's code may have put anything there
            stream.flush()


# --- reading and packing ------------------------------------------------------------------------------------


def _payload() -> Any:
    """The worker's foxqueue/payload.py."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "foxqueue", "payload.py")
    spec = importlib.util.spec_from_file_location("_foxqueue_payload", path)
    if spec is None or spec.loader is None:
        raise Refused("launch_error", f"{path} cannot be loaded: install foxqueue again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        text = f"{sys.executable} has no {error.name}, which calls need: install it there ({_INSTALL})"
        raise Refused("launch_error", text) from error
    except OSError as error:
        raise Refused("launch_error", f"{path} cannot be loaded ({error}): install foxqueue again") from error
    return module


def _read(run_dir: str) -> dict[str, Any]:
    import msgpack

    try:
        with open(os.path.join(run_dir, CALL_NAME), "rb") as file:
            call: dict[str, Any] = msgpack.unpackb(file.read(), unicode_errors="surrogateescape")
    except (OSError, ValueError) as error:
        raise Refused("launch_error", f"what to call cannot be read ({error}): submit it again") from error
    return call


def _packed(value: Any) -> bytes:
    """msgpack of maps, texts and bytes: it has to do where the library is missing."""
    if isinstance(value, dict):
        items = b"".join(_packed(key) + _packed(item) for key, item in value.items())
        return struct.pack(">B", 0x80 | len(value)) + items
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    data = value.encode("utf-8")
    return struct.pack(">BI", 0xDB, len(data)) + bytes(data)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
