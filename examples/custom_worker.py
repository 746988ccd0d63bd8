"""A worker of one's own: it keeps its model in memory and takes one job after another for one device.

    foxqueue server &
    python examples/custom_worker.py sim:0 --simulate 1x24G &
    foxqueue submit --config settings.json -- evaluate        # settings.json: {"steps": 50}
    foxqueue logs 1

On a machine with a GPU leave --simulate out and say gpu:0. No foxqueue worker may serve that device.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from foxqueue import Client, Fail, FoxqueueError, LeaseLost
from foxqueue.claimed import ClaimedRun


class Model:
    """Stands for something that takes long to load, and is why this is no plain job."""

    def step(self, number: int) -> float:
        time.sleep(0.02)
        return 1.0 / number


def evaluate(run: ClaimedRun, model: Model) -> float:
    """One job; it stops early when somebody asks for it."""
    steps = (run.config or {}).get("steps", 20)
    if not isinstance(steps, int) or steps < 1:
        raise Fail(f"steps is {steps!r}: give a whole number above 0")  # trying again would not help
    loss = 1.0
    for number in range(1, steps + 1):
        if run.cancelled or run.lost or run.release_requested:
            break
        loss = model.step(number)
        run.log(f"step {number}: loss {loss:.4f}\n")
    return loss


def serve(fox: Client, model: Model, options: argparse.Namespace) -> bool:
    """Wait for a job and carry it out. Returns whether there was one."""
    with fox.claim(options.device, simulate=options.simulate, timeout=options.idle) as run:
        if run is None:
            return False
        print(f"job {run.number}: {' '.join(run.argv)}", flush=True)
        loss = evaluate(run, model)
        if run.release_requested and not run.cancelled:
            run.release()
        else:
            run.complete({"loss": loss})  # one that was cancelled ends as cancelled
    print(f"job {run.number}: {run.state}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("device", help="like gpu:0")
    parser.add_argument("--simulate", metavar="SPEC", help="simulated GPUs, like 1x24G")
    parser.add_argument("--idle", type=float, metavar="S", help="end after so many seconds without a job")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a job that runs is given back at once
    model = Model()
    try:
        with Client() as fox:
            while True:
                try:
                    if not serve(fox, model, options):
                        return 0
                except (Fail, LeaseLost) as error:  # the queue knows about the job; the next one may go well
                    print(error, flush=True)
    except FoxqueueError as error:
        print(f"custom_worker: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
