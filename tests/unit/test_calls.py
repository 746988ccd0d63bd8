"""Which functions can be sent by their name, and what is said of the others."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from foxqueue.calls import MAX_TEXT, Target, target, text
from foxqueue.errors import InvalidInput

HERE = __name__


def plain(number: int) -> int:
    return number


@functools.lru_cache
def cached() -> int:
    return 1


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args)


@wrapping
def wrapped() -> int:
    return 1


@hiding
def hidden() -> int:
    return 1


async def later() -> int:
    return 1


def many() -> Any:
    yield 1


class Trainer:
    @classmethod
    def of_class(cls) -> int:
        return 1

    @staticmethod
    def of_nothing() -> int:
        return 1

    def of_object(self) -> int:
        return 1

    def __call__(self) -> int:
        return 1


class Special(Trainer):
    pass


old = plain
shadowed = plain


def plain_again() -> None:
    pass


first_of_that_name = plain_again


def plain_again() -> None:  # type: ignore[no-redef]
    pass


@pytest.mark.parametrize(
    ("function", "module", "qualname"),
    [
        (plain, HERE, "plain"),
        (cached, HERE, "cached"),
        (wrapped, HERE, "wrapped"),
        (Trainer.of_class, HERE, "Trainer.of_class"),
        (Special.of_class, HERE, "Special.of_class"),
        (Trainer.of_nothing, HERE, "Trainer.of_nothing"),
        (math.sqrt, "math", "sqrt"),
        (os.path.join, "posixpath", "join"),
        ("package.module:function", "package.module", "function"),
        ("module:Class.method", "module", "Class.method"),
        ("größe:maß", "größe", "maß"),
    ],
)
def test_functions_with_a_name(function: Any, module: str, qualname: str) -> None:
    assert target(function) == Target(module, None, qualname)


def made_inside() -> Any:
    def inside() -> int:
        return 1

    class Inside:
        @classmethod
        def make(cls) -> int:
            return 1

    return inside, Inside.make


def elsewhere() -> Any:
    def moved() -> None:
        pass

    moved.__qualname__, moved.__module__ = "moved", "no.such.module"
    return moved


BAD: list[tuple[Any, str]] = [
    (lambda: 0, "a lambda has no name .* top level of a module"),
    (made_inside()[0], "inside a function"),
    (made_inside()[1], "inside a function"),
    (hidden, "a lambda"),
    (functools.partial(plain, 1), "partial: give the function itself"),
    (Trainer().of_object, "bound to an object"),
    ([].append, "does not say which module"),
    (Trainer(), "an object of type .*Trainer is not a function"),
    (Trainer, "Trainer is a class"),
    (first_of_that_name, "plain_again is something else"),
    (wrapped.__wrapped__, "wrapped is something else"),  # type: ignore[attr-defined]
    (elsewhere(), "no.such.module, which is not imported"),
    (later, "async"),
    (many, "generator"),
    (None, "an object of type builtins.NoneType is not a function"),
    (7, "not a function"),
    ("train.py", "write package.module:function"),
    ("package.module", "write package.module:function"),
    ("package.module:", "write package.module:function"),
    ("a b:c", "write package.module:function"),
    ("/a/train.py:main", "write package.module:function"),
    ("m:f()", "write package.module:function"),
    ("m:1", "write package.module:function"),
    (":f", "write package.module:function"),
    ("m:f\n", "write package.module:function"),
    ("__main__:nothing_of_that_name", "defines no nothing_of_that_name"),
]


@pytest.mark.parametrize(("function", "said"), BAD, ids=[said for _, said in BAD])
def test_what_no_worker_could_find_is_refused_with_the_cure(function: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        target(function)


# Functions of __main__

SCRIPT = """
import sys
{more}
from foxqueue.calls import target
from foxqueue.errors import InvalidInput

def work(): pass

class Work:
    @staticmethod
    def do(): pass

try:
    for one in (work, Work.do, "__main__:work"):
        print(target(one))
        print(target(one).module, target(one).script)
except InvalidInput as error:
    print(error)
"""


def run(*command: str | Path, cwd: Path, typed: str | None = None) -> str:
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=cwd, input=typed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["train.py", "ohne endung", "größe.py"])
def test_a_function_of_the_script_is_found_by_the_script_s_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / name).write_text(SCRIPT.format(more="import os; os.chdir('/')"))
    path = tmp_path / name
    shown = [f"{name}:work", f"None {path}", f"{name}:Work.do", f"None {path}", f"{name}:work", f"None {path}"]
    assert run(name, cwd=tmp_path).splitlines() == shown
    assert f"None {tmp_path}/link/{name}" in run(tmp_path / "link" / name, cwd=tmp_path)


def test_a_module_that_is_run_with_m_is_found_by_its_name(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mod.py").write_text(SCRIPT.format(more=""))
    assert run("-m", "pkg.mod", cwd=tmp_path).splitlines()[:2] == ["pkg.mod:work", "pkg.mod None"]
    (package / "__main__.py").write_text(SCRIPT.format(more=""))
    assert run("-m", "pkg", cwd=tmp_path).splitlines()[:2] == ["pkg.__main__:work", "pkg.__main__ None"]
    path = package / "__main__.py"
    assert run("pkg", cwd=tmp_path).splitlines()[:2] == ["__main__.py:work", f"None {path}"]


def test_children_of_multiprocessing_find_it_too(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import multiprocessing\n"
        "from foxqueue.calls import target\n"
        "def work(): print(target(work).script, work.__module__)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    child.start(); child.join()\n"
    )
    assert run(path, cwd=tmp_path) == f"{path} __mp_main__\n"


@pytest.mark.parametrize("command", [["-c", SCRIPT.format(more="")], ["-"]], ids=["-c", "stdin"])
def test_what_was_typed_is_refused(tmp_path: Path, command: list[str]) -> None:
    found = run(*command, cwd=tmp_path, typed=SCRIPT.format(more=""))
    assert "work is defined in a notebook or at a prompt" in found
    assert "write it to a file" in found


def test_a_cell_of_a_notebook_is_refused_even_where_a_file_is_known(tmp_path: Path) -> None:
    """A kernel compiles each cell under a name of its own, in a __main__ whose __file__ some tools set."""
    more = (
        "__file__ = 'notebook.py'\n"
        "def work(): pass\n"
        "from foxqueue.calls import target\n"
        "exec(compile('def cell(): pass', '/tmp/ipykernel_1/123.py', 'exec'))\n"
        "try: target(cell)\n"
        "except Exception as error: print(error)\n"
    )
    (tmp_path / "notebook.py").write_text(more)
    assert "cell is defined in a notebook" in run("notebook.py", cwd=tmp_path)


def test_a_script_that_is_gone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(more="import os; os.remove('train.py')"))
    assert "which is no file any more" in run("train.py", cwd=tmp_path)


# How a call is shown


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((), {}, "pkg.mod:func()"),
        ((1, "a b", None), {"lr": 0.1}, "pkg.mod:func(1, 'a b', None, lr=0.1)"),
        (("a\nb\0\x1b",), {}, r"pkg.mod:func('a\nb\x00\x1b')"),
        ((10**5000,), {}, "pkg.mod:func(…)"),
        (([[[[[1]]]]],), {}, "pkg.mod:func([[[[...]]]])"),
        ((numpy.zeros((2, 2)),), {}, "pkg.mod:func(array([[0., 0.], [0., 0.]]))"),
    ],
)
def test_a_call_as_people_see_it(args: tuple[Any, ...], kwargs: dict[str, Any], shown: str) -> None:
    assert text(Target("pkg.mod", None, "func"), args, kwargs) == shown


def test_long_calls_are_shortened() -> None:
    where = Target(None, "/data/train.py", "main")
    shown = text(
        where, ["x" * 1000, list(range(1000)), {str(n): n for n in range(100)}, *range(1000)], {"a": b"y" * 999}
    )
    assert len(shown) == MAX_TEXT
    assert shown.startswith("train.py:main('xxx")
    assert shown.endswith("…)")
