"""Python calls as jobs: which functions another process can find again, and how a call is shown to people.

A function is sent by its name, never by its code. What has no name of its own there is refused here, with the cure.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import Repr
from types import FunctionType, MethodType, ModuleType
from typing import Any

from foxqueue.errors import InvalidInput

MAX_TEXT = 200  # characters of a call as people see it

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"  # identifiers joined by dots
_SPELT = re.compile(rf"({_NAME}):({_NAME})\Z")
_MAIN = ("__main__", "__mp_main__")  # the second: what multiprocessing makes of a script in its children
_TOP = "define it with def at the top level of a module, and give that"


@dataclass(frozen=True)
class Target:
    """Where a function is found: in a module by its name, or in a script by its absolute path."""

    module: str | None
    script: str | None
    qualname: str

    def __str__(self) -> str:
        place = self.module if self.script is None else os.path.basename(self.script)  # noqa: PTH119 - it is text
        return f"{place}:{self.qualname}"


def target(function: str | Callable[..., Any]) -> Target:
    """Find out where another process will find a function.

    Args:
        function: itself, or its name like ``package.module:function`` or ``package.module:Class.method``.

    Raises:
        InvalidInput: it cannot be found again by its name.
    """
    if isinstance(function, str):
        return _named(function)
    name, qualname = _own_name(function)
    if name in _MAIN:
        return _of_script(function, qualname)
    _check_leads_back(sys.modules.get(name), name, qualname, function)
    return Target(name, None, qualname)


def beside() -> str | None:
    """Directory of the script that runs, where Python looks first for modules; None where there is no script."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or not isinstance(path, str):
        return None
    return os.path.dirname(os.path.realpath(path)) or None  # noqa: PTH120 - as Python itself does


def text(where: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call as people see it, like ``pkg.mod:func(1, lr=0.1)``, at most 200 characters."""
    words = [_short(value) for value in args] + [f"{name}={_short(value)}" for name, value in kwargs.items()]
    whole = " ".join(f"{where}({', '.join(words)})".split())
    return whole if len(whole) <= MAX_TEXT else f"{whole[: MAX_TEXT - 2]}…)"


def _short(value: Any) -> str:
    brief = Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 3, 40, 60
    try:
        return brief.repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        return "…"


def _named(spelt: str) -> Target:
    found = _SPELT.match(spelt)
    if found is None:
        raise InvalidInput(f"the function {spelt!r:.200} is not understood: write package.module:function")
    name, qualname = found.groups()
    if name not in _MAIN:
        return Target(name, None, qualname)
    main = sys.modules["__main__"]
    function = _attribute(main, qualname)
    if not callable(function):
        raise InvalidInput(f"the function {spelt!r:.200} is not there: {_script_name(main)} defines no {qualname}")
    return target(function)


def _own_name(function: Any) -> tuple[str, str]:
    """Module and qualified name, of what is a function and has both."""
    if isinstance(function, functools.partial):
        raise InvalidInput(
            f"{_shown(function)} is a partial: give the function itself, and its values as args and kwargs"
        )
    if isinstance(function, type):
        raise InvalidInput(f"{_shown(function)} is a class: give a function or one of its classmethods")
    if isinstance(function, MethodType):
        return _of_class(function)
    name, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(qualname, str):
        raise InvalidInput(f"{_shown(function)} is not a function: {_TOP}")
    if "<lambda>" in qualname:
        raise InvalidInput(f"a lambda has no name by which a worker could find it: {_TOP}")
    if "<locals>" in qualname:
        raise InvalidInput(f"{qualname} is made inside a function, where a worker cannot find it: {_TOP}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{qualname} is async: give a function that runs it, like with asyncio.run(…)")
    if inspect.isgeneratorfunction(function):
        raise InvalidInput(f"{qualname} is a generator: give a function that returns a list")
    if not isinstance(name, str):
        raise InvalidInput(
            f"{_shown(function)} does not say which module it is of: give its name, like package.module:{qualname}"
        )
    return name, qualname


def _of_class(method: MethodType) -> tuple[str, str]:
    owner = method.__self__
    if not isinstance(owner, type):
        raise InvalidInput(
            f"{method.__qualname__} is bound to an object, which does not go along: give a function "
            "that makes the object, or a classmethod"
        )
    if "<locals>" in owner.__qualname__:
        raise InvalidInput(
            f"{owner.__qualname__} is made inside a function: define the class at the top level of a module"
        )
    return owner.__module__, f"{owner.__qualname__}.{method.__name__}"


def _of_script(function: Any, qualname: str) -> Target:
    """A function of ``__main__``, which is a module (python -m), or a script known by its path."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = getattr(spec, "name", None)
    path = getattr(main, "__file__", None)
    if path is None or path.startswith("<") or not _written_in(function, path):
        raise InvalidInput(
            f"{qualname} is defined in a notebook or at a prompt, where a worker cannot find it: "
            "write it to a file, and import it from there"
        )
    _check_leads_back(main, "__main__", qualname, function)
    if name is not None and name not in _MAIN:  # a directory or an archive that is run has that name
        return Target(name, None, qualname)
    script = os.path.abspath(path)  # noqa: PTH100 - as multiprocessing does it; links are kept
    if not os.path.isfile(script):  # noqa: PTH113 - text all the way
        raise InvalidInput(f"{qualname} is defined in {script}, which is no file any more: {_TOP}")
    return Target(None, script, qualname)


def _check_leads_back(module: ModuleType | None, name: str, qualname: str, function: Any) -> None:
    if module is None:
        raise InvalidInput(f"{qualname} says that it is of module {name}, which is not imported: {_TOP}")
    found = _attribute(module, qualname)
    if found is function or (isinstance(function, MethodType) and found == function):
        return
    there = "nothing" if found is None else "something else"
    raise InvalidInput(
        f"{name}:{qualname} is {there}, not this function (was it decorated, renamed or defined twice?): "
        "give what stands under that name, or its name as text"
    )


def _attribute(module: ModuleType, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _written_in(function: Any, path: str) -> bool:
    """Whether the function's code is of that file, as far as it says; a cell of a notebook has a file of its own."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    return not isinstance(function, FunctionType) or _stem(function.__code__.co_filename) == _stem(path)


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]  # noqa: PTH119, PTH122 - text all the way


def _script_name(main: ModuleType) -> str:
    return str(getattr(main, "__file__", None) or "this session")


def _shown(value: Any) -> str:
    kind = type(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"an object of type {kind.__module__}.{kind.__qualname__}"
