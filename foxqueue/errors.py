"""Every error foxqueue raises on purpose, each with the exit code the command line gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foxqueue.holders import Holder


class FoxqueueError(Exception):
    """The root of all of them. ``exit_code`` is what the command line exits with."""

    exit_code = 1


class InvalidInput(FoxqueueError, ValueError):
    """Something given by the user is malformed. The text says what was given and what is allowed."""

    exit_code = 2


class ServerError(FoxqueueError):
    """The Redis server cannot be used. ``cure`` says what to do, where that is more than to start the server."""

    def __init__(self, message: str, *, cure: str | None = None) -> None:
        super().__init__(message)
        self.cure = cure


class NoServer(ServerError):
    """No URL is configured and our own server is not running."""


class ServerUnavailable(ServerError):
    """The server is configured but does not answer, or answers that it cannot serve now.

    ``definite``: the server said so, hence nothing was done. ``passing``: it will pass by itself.
    """

    def __init__(self, message: str, *, definite: bool = False, passing: bool = False, cure: str | None = None) -> None:
        super().__init__(message, cure=cure)
        self.definite = definite
        self.passing = passing
        if definite:
            self.exit_code = 75


class ServerRefused(ServerError):
    """The server answers and refuses us: password, permissions, or a version that is too old."""


class SettingsDiffer(FoxqueueError):
    """The namespace is in use with other settings than the ones asked for."""


class OutcomeUnknown(FoxqueueError):
    """A command was sent, no answer came within the time allowed: it may or may not have been done.

    ``token`` is the request token in hex. Sending the same request with the same token again is safe.
    """

    exit_code = 75

    def __init__(self, token: str, message: str) -> None:
        super().__init__(message)
        self.token = token


class PartlySubmitted(FoxqueueError):
    """Of many jobs only the first ones were surely accepted; the cause says what became of the next ones.

    Attributes:
        jobs: those accepted, in the order given. Nothing of them is lost.
        total: how many were to be submitted.
        unknown: how many after them may or may not be in the queue; 0 when the cause is a clear refusal. All others
            are not.
    """

    def __init__(self, jobs: Sequence[Any], total: int, unknown: int, cause: FoxqueueError) -> None:
        rest = f"of the next {unknown:,} it is not known, " if unknown else ""
        super().__init__(f"{len(jobs):,} of {total:,} jobs were accepted, {rest}the others were not: {cause}")
        self.jobs = list(jobs)
        self.total = total
        self.unknown = unknown
        self.exit_code = cause.exit_code


class JobFailed(FoxqueueError):
    """The job has failed, so there is no value.

    Attributes:
        job: the job.
        reason, detail: why it ended, a word of the closed list and a sentence.
        exception_type, exception_message, traceback: text of what the function raised; empty where it raised nothing.
    """

    def __init__(
        self, job: Any, reason: str, detail: str, exception_type: str, exception_message: str, traceback: str
    ) -> None:
        what = f"{exception_type}: {exception_message}" if exception_type else detail
        super().__init__(f"job {job.number} failed ({reason or 'no reason is known'})" + (f": {what}" if what else ""))
        self.job = job
        self.reason = reason
        self.detail = detail
        self.exception_type = exception_type
        self.exception_message = exception_message
        self.traceback = traceback


class JobCancelled(FoxqueueError):
    """The job was cancelled, so there is no value. ``job`` is the job."""

    def __init__(self, job: Any, detail: str) -> None:
        super().__init__(f"job {job.number} was cancelled" + (f": {detail}" if detail else ""))
        self.job = job


class ValueUnreadable(FoxqueueError, ValueError):
    """The value that a job returned is no longer kept, or cannot be read here."""


class JobNotFound(FoxqueueError):
    """There is no job with that number."""


class JobGone(FoxqueueError):
    """The number now belongs to another job: the server lost data and gave it out again."""


class QueueFull(FoxqueueError):
    """The queue has a limit on unfinished jobs, and it is reached: nothing was enqueued.

    Attributes:
        limit: how many may wait or run.
        current: how many do.
        whose: the user whose limit it is, None for that of the namespace.
        what: the text without what to do.
    """

    exit_code = 75

    def __init__(
        self,
        limit: int,
        current: int,
        whose: str | None = None,
        cure: str = "try later, or wait for room with submit --block (block=True)",
    ) -> None:
        which = "max_unfinished" if whose is None else "max_unfinished_user"
        of = "in the queue" if whose is None else f"of {whose}"
        count = f"{current:,} unfinished jobs {of}, at most {limit:,}"
        super().__init__(f"the queue is full: {count} ({which}): {cure}")
        self.what = f"the queue is full ({count}: {which})"
        self.limit = limit
        self.current = current
        self.whose = whose


class JobExists(FoxqueueError):
    """An unfinished job has that unique key: nothing was enqueued. ``number`` and ``born`` say which, ``key`` is it."""

    def __init__(self, number: int, born: str, key: str) -> None:
        super().__init__(
            f"job {number} has the unique key {key!r} and has not ended: wait for it, cancel it, or submit with "
            "--if-exists return or replace"
        )
        self.number = number
        self.born = born
        self.key = key


class GroupExists(FoxqueueError):
    """There is a group of that name."""

    def __init__(self, group: str) -> None:
        super().__init__(f"there is a group {group!r}: give the sweep another name with --group, or leave it out")
        self.group = group


class GroupNotFound(FoxqueueError):
    """There is no group of that name."""


class NotChanged(FoxqueueError):
    """The job cannot be held, released from its hold, or moved. The text says why."""


class LeaseLost(FoxqueueError):
    """The device is no longer this process's: it was taken, or the job runs elsewhere. Nothing was written."""


class Retry(FoxqueueError):
    """Raised by the function of a job: it is to run again, as long as attempts last, whatever --retry-on says.

    Args:
        delay: seconds before it runs again; None for the job's own delay, which doubles with each attempt.
        message: why, for people.
    """

    __foxqueue__ = "retry"  # how a worker of any version knows it

    def __init__(self, delay: float | None = None, message: str = "") -> None:
        number = isinstance(delay, int | float) and not isinstance(delay, bool)
        if delay is not None and not (number and 0 <= delay <= 365 * 86400):
            raise InvalidInput(f"a delay of {delay!r:.60} is not possible: give a number of seconds, up to a year")
        super().__init__(message or ("to be tried again" + ("" if delay is None else f" in {delay:g} s")))
        self.delay = delay


class Fail(FoxqueueError):
    """Raised by the function of a job: it has failed, and is not tried again."""

    __foxqueue__ = "fail"


class NotCancelled(FoxqueueError):
    """The job had already ended in another way."""


class NotRequeued(FoxqueueError):
    """The job cannot be put back into the queue. The text says why."""


class WaitTimeout(FoxqueueError):
    """The job did not end in the time given."""

    exit_code = 124


class Unsatisfiable(FoxqueueError):
    """No registered device can ever meet the request."""

    exit_code = 69


class NoDevice(FoxqueueError):
    """No device was found, or none of the ones found is the one that was named."""


class LeaseError(FoxqueueError):
    """What can go wrong with a lease of a device."""


class LeaseBusy(LeaseError):
    """The device cannot be had now; it may be later."""

    exit_code = 75


class GpuAlreadyLeased(LeaseBusy):
    """Somebody else has the device.

    Attributes:
        gpu: UUID of the device.
        holder: who has it, with user, host, pid, job, since and until; None where nobody can tell.
    """

    def __init__(self, gpu: str, holder: Holder | None, name: str = "") -> None:
        who = holder.shown if holder else "a process that has not said who it is"
        cure = "wait for it, or take another one"
        super().__init__(f"device {name or gpu} is in use by {who}: {cure}")
        self.gpu = gpu
        self.holder = holder


class NoGpuAvailable(LeaseBusy):
    """None of the devices that would do can be had now.

    Attributes:
        reasons: UUID of each device -> why not, for people.
        holders: UUID -> who has it, of those that somebody has.
    """

    def __init__(self, message: str, reasons: Mapping[str, str], holders: Mapping[str, Holder]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)
        self.holders = dict(holders)


class InsufficientMemory(LeaseBusy):
    """The device has less memory than was asked for.

    Attributes:
        gpu: UUID of the device.
        required: MiB that were asked for.
        available: MiB that there are; None when that is unknown.
        ever: whether it can have as much at another time.
    """

    def __init__(self, gpu: str, required: int, available: int | None, *, name: str = "", ever: bool = True) -> None:
        there = "an unknown amount" if available is None else f"{available:,} MiB"
        what = f"{there} free" if ever else f"{there} in all"
        cure = "wait until there is more, or take another device" if ever else "ask for less"
        super().__init__(f"device {name or gpu} has {what}, and {required:,} MiB were asked for: {cure}")
        self.gpu = gpu
        self.required = required
        self.available = available
        self.ever = ever
        if not ever:
            self.exit_code = 69


class MemoryQueryFailed(LeaseError):
    """How much memory a device has, or has free, cannot be told. ``gpu`` is its UUID."""

    def __init__(self, gpu: str, why: str) -> None:
        super().__init__(f"memory of device {gpu} cannot be told: {why}")
        self.gpu = gpu


class UtilizationQueryFailed(LeaseError):
    """How busy a device is cannot be told. ``gpu`` is its UUID."""

    def __init__(self, gpu: str, why: str) -> None:
        super().__init__(f"utilization of device {gpu} cannot be told: {why}")
        self.gpu = gpu


class NotLeaseHolder(LeaseError):
    """Who wants to give a device back is not who has it.

    Attributes:
        gpu: UUID of the device.
        holder: who has it; None for nobody.
        requested_by: who wanted to.
    """

    def __init__(self, gpu: str, holder: Holder | None, requested_by: str, name: str = "") -> None:
        has = f"it is in use by {holder.shown}" if holder else "nobody has it"
        cure = f": an operator takes it away with foxqueue gpus --release {gpu}" if holder else ""
        super().__init__(f"{requested_by!r} of this process has no lease of device {name or gpu}, {has}{cure}")
        self.gpu = gpu
        self.holder = holder
        self.requested_by = requested_by


class GpuNotFound(LeaseError, NoDevice):
    """There is no such device, or not among those that may be used. ``gpu`` is what was asked for."""

    def __init__(self, gpu: str, message: str) -> None:
        super().__init__(message)
        self.gpu = gpu


class LeaseReleased(LeaseError):
    """The lease was given back before."""


class LeaseForked(LeaseError):
    """The lease belongs to the process that this one was forked from."""


class DeviceHeld(FoxqueueError):
    """Somebody else holds the device's file lock. The text names the holder."""


class LeftoverProcesses(FoxqueueError):
    """Processes of an earlier run still use a device and cannot be killed."""


class AlreadyRunning(FoxqueueError):
    """Another `foxqueue up` serves this home."""
