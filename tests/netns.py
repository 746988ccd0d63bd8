"""Machines that are none: two network namespaces of this one, joined by a cable that can be pulled."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from wait import until

_OWN_USERS = ("--user", "--map-root-user")  # for who is not root


def how() -> tuple[str, ...] | None:
    """Options of unshare with which namespaces can be made here; None when they cannot."""
    if not all(shutil.which(program) for program in ("unshare", "nsenter", "ip")):
        return None
    for options in ((), _OWN_USERS):
        joined = "ip link add fq0 type veth peer name fq1 && ip link set lo up"
        command = ["unshare", *options, "--net", "sh", "-c", joined]
        if subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0:
            return options
    return None


class Cable:
    """Two namespaces with an address each. They are gone with their last process.

    Attributes:
        here: address of the first.
        there: address of the second.
    """

    here = "10.213.0.1"
    there = "10.213.0.2"

    def __init__(self, options: Sequence[str]) -> None:
        self._users = bool(options)
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            self._hold(["unshare", *options, "--net"])
            self._hold([*self._into(0, net=False), "unshare", "--net"] if self._users else ["unshare", "--net"])
            self.at(0, "ip", "link", "add", "fq0", "type", "veth", "peer", "name", "fq1", "netns", str(self._pid(1)))
            for side, (address, name) in enumerate(((self.here, "fq0"), (self.there, "fq1"))):
                self.at(side, "ip", "addr", "add", f"{address}/24", "dev", name)
                self.at(side, "ip", "link", "set", "lo", "up")
                self.at(side, "ip", "link", "set", name, "up")
        except BaseException:
            self.close()
            raise

    def _pid(self, side: int) -> int:
        return self._holders[side].pid

    def _hold(self, command: list[str]) -> None:
        holder = subprocess.Popen([*command, "sleep", "infinity"], stdin=subprocess.DEVNULL)
        self._holders.append(holder)
        until(lambda: (Path("/proc") / str(holder.pid) / "comm").read_text() == "sleep\n", what="a namespace")

    def _into(self, side: int, net: bool = True) -> list[str]:
        users = ["--user", "--preserve-credentials"] if self._users else []
        return ["nsenter", "--target", str(self._pid(side)), *users, *(["--net"] if net else []), "--"]

    def prefix(self, side: int) -> list[str]:
        """Words in front of a command that runs on side 0 or 1, in the same process."""
        return self._into(side)

    def at(self, side: int, *command: str) -> None:
        """Run a command on one side."""
        subprocess.run([*self._into(side), *command], check=True, timeout=30)

    def pull(self) -> None:
        """Nothing passes any more."""
        self.at(0, "ip", "link", "set", "fq0", "down")

    def plug(self) -> None:
        """It passes again."""
        self.at(0, "ip", "link", "set", "fq0", "up")

    def close(self) -> None:
        """End what holds the namespaces."""
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def __enter__(self) -> Cable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
