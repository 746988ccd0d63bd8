"""A proxy in front of a server that loses replies, loses requests, delivers them late, or falls silent."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from foxqueue.config import url_of_socket


@dataclass
class Link:
    """One client's connection; ``last`` is what it asked last."""

    client: socket.socket
    last: bytes = b""
    silent: bool = False


class Cutter:
    """Listens and passes everything on, until told to lose something.

    Args:
        server: socket of the real server.
        path: of the proxy's own socket; None for a free port of the loopback.
    """

    def __init__(self, server: Path, path: Path | None) -> None:
        self.cuts = 0  # replies and requests lost so far
        self._server = server
        self._plan: tuple[str, bytes, int] | None = None
        self._held: list[bytes] = []
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(str(path) if path else ("127.0.0.1", 0))
        self.url = url_of_socket(path) if path else f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, how: str, sha: str, times: int = 1) -> None:
        """Lose the next requests that name this script.

        Args:
            how: ``reply`` (it is done, the answer is lost), ``silence`` (the same, but the connection stays open
                without a word), ``request`` (it never arrives) or ``late`` (it arrives with :meth:`deliver`).
            sha: of the script.
            times: how many requests.
        """
        with self._lock:
            self._plan = (how, sha.encode(), times)

    def deliver(self) -> list[bytes]:
        """Send what was held back, and return the raw replies."""
        replies = []
        for request in self._held:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(self._server))
                link.sendall(request)
                replies.append(link.recv(65536))
        self._held.clear()
        return replies

    def fall_silent(self, asked: bytes = b"") -> int:
        """Pass nothing on any more over the connections of now, and leave them open; new ones are served.

        Args:
            asked: only those whose last request has this in it.

        Returns:
            How many fell silent.
        """
        chosen = self.speaking(asked)
        for link in chosen:
            link.silent = True
        return len(chosen)

    def speaking(self, asked: bytes = b"") -> list[Link]:
        """The open connections that have not fallen silent and whose last request has this in it."""
        return [link for link in self._links if link.client.fileno() >= 0 and not link.silent and asked in link.last]

    def close(self) -> None:
        """Close every connection."""
        for link in (self._listener, *(link.client for link in self._links)):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def __enter__(self) -> Cutter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                link = Link(client)
                self._links.append(link)
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: Link) -> None:
        """One question, one answer: redis-py reads each reply before it asks again."""
        client = link.client
        with contextlib.suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._server))
            pump = threading.Thread(target=self._pump, args=(server, link), daemon=True)
            pump.start()
            try:
                self._pass_on(link, server)
            finally:
                server.shutdown(socket.SHUT_RDWR)
                pump.join(1)  # else it may read on, from the next socket of that number

    def _pass_on(self, link: Link, server: socket.socket) -> None:
        """Requests, until one is lost or the client leaves."""
        while data := link.client.recv(1 << 20):
            link.last = data
            if link.silent:
                continue
            how = self._lost(data)
            if how is None:
                server.sendall(data)
                continue
            if how == "late":
                self._held.append(data)
            elif how != "request":
                self._do_alone(data)
            self.cuts += 1
            if how != "silence":
                return

    def _lost(self, data: bytes) -> str | None:
        with self._lock:
            if self._plan is None or self._plan[1] not in data:
                return None
            how, sha, times = self._plan
            self._plan = (how, sha, times - 1) if times > 1 else None
            return how

    def _do_alone(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self._server))
            link.sendall(data)
            reply = link.recv(65536)
        assert not reply.startswith(b"-NOSCRIPT"), "load the script before its reply is cut"

    @staticmethod
    def _pump(server: socket.socket, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if not link.silent:
                    link.client.sendall(data)
