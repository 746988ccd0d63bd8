"""``python -m workers --gpu REF``: the worker of one device, as `foxqueue up` starts it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from foxqueue import logs, streams
from foxqueue.config import load_config
from foxqueue.errors import DeviceHeld, FoxqueueError
from workers import worker
from workers.offered import ENFORCE, OFF, Offered
from workers.slots import REFUSED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one worker; home, server and namespace come from environment and files.

    Returns:
        0 after a signal, REFUSED when the device is another worker's, else the error's exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m workers", description="Run one worker in the foreground.")
    parser.add_argument("--gpu", required=True, metavar="REF", help="its device: 0, gpu:0, sim:0, cpu:0 or a UUID")
    parser.add_argument("--simulate", metavar="NxSIZE", help="simulated GPUs in place of real ones, like 2x24G")
    parser.add_argument("--cpu", type=int, default=0, metavar="N", help="CPU slots besides")
    parser.add_argument("--slots", type=int, default=0, metavar="N", help="each GPU in so many slots: gpu:0/1 is one")
    parser.add_argument("--enforce-memory", choices=ENFORCE, default=OFF, help="against runs that use too much")
    given = parser.parse_args(arguments)
    try:
        streams.be_patient()
        logs.configure(os.environ, "info")
        offered = Offered(given.simulate, given.cpu, given.slots, given.enforce_memory)
        return worker.main(load_config(), given.gpu, offered)
    except DeviceHeld as error:
        print(f"foxqueue: {error}", file=sys.stderr)
        return REFUSED
    except FoxqueueError as error:
        print(f"foxqueue: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:
        logging.getLogger("workers").exception("the worker broke")
        return 1


if __name__ == "__main__":
    sys.exit(main())
