"""Functions that jobs of the tests call, from the directory where they run."""

import atexit
import os
import resource
import signal
import sys
import time
from pathlib import Path

at_import = os.environ.get("FOXQUEUE_IMPORTING")


class Odd(Exception):
    def __init__(self, one, *, two):
        self.one = one

    def __str__(self):
        raise KeyError("no text")


class Group:
    @staticmethod
    def method(x):
        return x * 2


not_a_function = 5


def echo(*args, **kwargs):
    return [list(args), kwargs]


def where():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "path": sys.path[:1],
        "cwd": str(Path.cwd()),
        "pwd": os.environ["PWD"],
        "python": sys.executable,
        "main": getattr(main, "__file__", None),
        "importing": [at_import, os.environ.get("FOXQUEUE_IMPORTING")],
    }


def fail(text):
    deeper(text)


def deeper(text):
    raise ValueError(text)


def odd():
    raise Odd(1, two=2)


def chained():
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("second") from error


def recursion():
    return recursion()


def memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return len(bytearray(1 << 40))


def leave(code):
    sys.exit(code)


def vanish(code):
    print("gone", end="")
    os._exit(code)


def die(number):
    os.kill(os.getpid(), number)


def crash_after():
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    print("almost", end="")
    return "done"


def interrupt():
    raise KeyboardInterrupt


def a_lambda():
    return {"model": lambda: 1}


def a_module():
    return [1, os]


def holds_itself():
    made = []
    made.append(made)
    return made


def a_set():
    return {1, 2}


def large(size):
    return b"x" * size


def fork():
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.5)  # comes by later, while what is left of the run has its grace
        return "child"
    return "parent"


def fork_and_fail():
    pid = os.fork()
    if pid == 0:
        raise ValueError("of the child")
    os.waitpid(pid, 0)
    return "parent"


def closes_everything():
    os.closerange(3, 100)
    kept = [os.open("/dev/null", os.O_WRONLY) for _ in range(20)]
    return len(kept)


def no_more_room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))
    return b"x" * size


def fails_without_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, 32 * 1024))
    raise ValueError("y" * 100_000)


def talk(text, flag):
    print(text)
    while not Path(flag).exists():
        time.sleep(0.02)
    return text


def goes_on(flag):
    signal.signal(signal.SIGTERM, lambda *_: Path(flag).touch())
    print("up")
    while not Path(flag).exists():
        time.sleep(0.02)
    return "late"


def leaves_one_behind(trail, how):
    """A daemon that nothing but SIGKILL ends."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            Path(trail + ".new").write_text(str(os.getpid()))
            Path(trail + ".new").rename(trail)
            time.sleep(60)
        os._exit(0)
    while not Path(trail).exists():
        time.sleep(0.02)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "raise":
        raise ValueError(how)
    return how


def torn_down(started, flag):
    """The value is there when the interpreter still has something to do."""

    def wait():
        Path(started).touch()
        while not Path(flag).exists():
            time.sleep(0.02)

    atexit.register(wait)
    return {"loss": 0.5}
