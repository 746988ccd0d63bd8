"""Posts one piece of JSON: ``PYTHON -I workers/post.py`` reads ``["URL", "BODY"]`` from its standard input.

A process of its own, because only a process can be given a time that it keeps: a name that is not resolved, or a
server that answers a byte now and then, holds a thread for hours. The address comes by the input and not as an
argument, which everybody on the machine can read: it may hold a secret. Exits with 0 when the answer was one of
success; else a line on the standard error says why.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import urllib.error
import urllib.request
from typing import Any, Final

TIMEOUT_S: Final = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST arrives as a GET, or elsewhere than its user said: it is told instead."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, body: bytes) -> str:
    """Post it.

    Args:
        url: http or https.
        body: JSON.

    Returns:
        What went wrong; empty when it was taken.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "foxqueue"}
    try:
        request = urllib.request.Request(url, body, headers, method="POST")
        if request.type not in ("http", "https"):
            return f"{request.type} is not http or https"
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        where = error.headers.get("Location") if 300 <= error.code < 400 else None
        return f"the server answered {error.code} {error.reason}" + (f" to {where}: give that address" if where else "")
    except urllib.error.URLError as error:
        return f"{error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """Post what stands on the standard input."""
    signal.alarm(int(2 * TIMEOUT_S))  # should nobody be left to end it in time
    url, body = json.load(sys.stdin.buffer)
    fault = post(url, body.encode())
    if fault:
        print(" ".join(fault.split()), file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
