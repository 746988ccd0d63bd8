"""foxqueue as a program on a server of the test, with surroundings of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

from pretend import quiet_logs
from servers import RealServer
from stack import FOXQUEUE

from foxqueue.cli import main


class Shell:
    """Runs foxqueue against a server whose workers are played by hand."""

    def __init__(self, server: RealServer, directory: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOXQUEUE_", "CUDA_"))}
        self.directory = directory
        self.environ = {
            **kept,
            "HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "FOXQUEUE_HOME": str(directory / "home"),
            "FOXQUEUE_URL": server.url,
            "FOXQUEUE_NAMESPACE": "test",
        }

    def start(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start it with pipes."""
        return subprocess.Popen(
            [str(FOXQUEUE), *words],
            env=self.environ | more.pop("environ", {}),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    def fox(self, *words: str, code: int = 0, **environ: str) -> tuple[str, str]:
        """Run it to its end, in this process for speed; its exit code must be ``code``."""
        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
        with (
            mock.patch.dict(os.environ, self.environ | environ, clear=True),
            contextlib.chdir(self.directory),
            contextlib.redirect_stdout(streams[0]),
            contextlib.redirect_stderr(streams[1]),
            quiet_logs(),
        ):
            status = main(words)
        for stream in streams:
            stream.flush()
        out, err = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in streams)  # type: ignore[attr-defined]
        assert status == code, f"{words} -> {status}\n{out}\n{err}"
        assert "Traceback" not in err
        return out, err

    def json(self, *words: str, code: int = 0) -> Any:
        """Run it with ``--json`` and read what it printed."""
        return json.loads(self.fox(words[0], "--json", *words[1:], code=code)[0])
