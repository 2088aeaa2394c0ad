"""Runs the GPU's checks one after the other. It handles time limits and results, and decides what one check's end means
for the next ones. It does not know what the checks do (see check_calls.py). Clock and processes can be replaced in
tests."""
import os
import signal
import subprocess
import tempfile
import time
from collections import namedtuple

# The possible results of a check. `left out` means that a dry run cannot do the check; a line says why. The exit code
# is 0 when all checks passed or were left out.
STATUSES = ["passed", "failed", "out of time", "not run", "left out"]
LEAST_SECONDS = 3  # a check with less time left does not begin
GRACE_SECONDS = 2  # most time between asking a process to end and killing it; part of a check's limit
LOST_SECONDS = 3  # a killed process that the driver holds for longer is left alone
PROBE_SECONDS = 5
DEVICE_UNUSABLE = 3  # exit code

# what(run, seconds) returns a dict with status and, where they exist, why, said (lines), tests (counts), rates and
# tables. It also has `usable` when checks that need this one can go on although it did not pass, `hung` when a part of
# it was out of time, and `ends_call` with the reason why no later check can run. `needs` names checks: when one of them
# did not pass, this check is not run. A tuple of names in `needs` means that one of them is enough. With `spare`, the check uses time that others have left, and is no gap when there
# was none.
Check = namedtuple("Check", "part name seconds what needs spare", defaults=((), False))


class NotRun(Exception):
    """Says why a check cannot be done here."""


class LeftOut(Exception):
    """Says why a dry run cannot do a check."""


class Clock:
    """Counts seconds from `started`, in seconds since the epoch, or from now."""

    def __init__(self, started=None):
        self.begin = time.monotonic() - (max(0.0, time.time() - started) if started else 0.0)

    def now(self):
        return time.monotonic() - self.begin


class Processes:
    """Runs commands. When the time of a command is over, ends it and all processes that it started."""

    def run(self, command, seconds, environment, folder):
        """Returns (exit code, or None when out of time; what the command printed)."""
        grace = min(GRACE_SECONDS, 0.2 * seconds)
        with tempfile.TemporaryFile(mode="w+", errors="replace") as output:
            try:
                process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                           env=environment, start_new_session=True)
            except OSError as error:
                return 127, str(error)
            try:
                code = process.wait(timeout=max(0.1, seconds - grace))
            except subprocess.TimeoutExpired:
                code = None
                process.terminate()  # mpirun ends its ranks, which have process groups of their own
                try:
                    process.wait(timeout=grace)
                except subprocess.TimeoutExpired:
                    pass
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                try:
                    process.wait(timeout=LOST_SECONDS)
                except subprocess.TimeoutExpired:  # a driver that hangs keeps even a killed process
                    output.write("\nthe process cannot be ended\n")
            output.seek(0)
            return code, output.read()


def perform(check, run, seconds):
    """Returns one check's result. An exception in a check is a result, so that the other checks go on."""
    try:
        return check.what(run, seconds)
    except NotRun as reason:
        return {"status": "not run", "why": str(reason)}
    except LeftOut as reason:
        return {"status": "left out", "why": str(reason)}
    except Exception as error:
        return {"status": "failed", "said": f"{type(error).__name__}: {error}".splitlines()}


def alternatives(need):
    return (need,) if isinstance(need, str) else need


def counts_as_passed(result):
    return result["status"] in ("passed", "left out") or bool(result.get("usable"))


def run_checks(checks, run, clock, call_seconds, report, probe=None, before=(), part_seconds=None):
    """Runs all checks in order until clock.now() is call_seconds, and returns their results. Calls report(result) after
    each of them. Each result says what was switched off when its check began. A check's limit is its own: what it leaves goes to the end of the list, because later checks begin
    earlier. A check with less than half of its limit left does not begin. `before` has results of an earlier call, which
    count for `needs`. `part_seconds` has the most seconds of some parts. probe() returns why the device no longer
    answers, or ""; it is asked after a check that was out of time."""
    part_end, results = {}, []
    passed = {result["name"]: counts_as_passed(result) for result in before}
    ended = ""
    for check in checks:
        start = clock.now()
        end = call_seconds
        if check.part in (part_seconds or {}):
            end = min(end, part_end.setdefault(check.part, start + part_seconds[check.part]))
        left = min(check.seconds, end - start)
        off = sorted(run.switched_off)
        missing = next((names for names in map(alternatives, check.needs) if not any(passed.get(name, True) for name in names)), None)
        if ended:
            result = {"status": "not run", "why": ended}
        elif missing:
            result = {"status": "not run", "why": f"it needs {' or '.join(missing)}, which did not pass"}
        elif left < max(LEAST_SECONDS, check.seconds / 2):
            what = "this part" if end < call_seconds else "the call"
            result = {"status": "not run", "why": f"the time of {what} is over", "no_time": True}
        else:
            result = perform(check, run, left)
        result = {"part": check.part, "name": check.name, "limit_seconds": check.seconds, "seconds": round(clock.now() - start, 1),
                  "switched_off": off, **({"spare": True} if check.spare else {}), **result}
        ended = ended or result.get("ends_call", "")
        if not ended and probe and (result["status"] == "out of time" or result.get("hung")):
            why = probe()
            if why:
                ended = result["ends_call"] = f"after {check.name} the device does not answer: {why}"
        passed[check.name] = counts_as_passed(result)
        results.append(result)
        report(result)
    return results


def count(results):
    return {status: sum(r["status"] == status for r in results) for status in STATUSES}


def exit_code(results):
    """Returns 0 when every check passed or was left out, 1 when a check failed or ran out of time (or there was none),
    2 when a check was not run, and 3 when the device became unusable and ended the call. A check that uses spare time is
    not missed when no time was left."""
    counts = count([r for r in results if not (r.get("spare") and r.get("no_time"))])
    if any(r.get("ends_call") for r in results):
        return DEVICE_UNUSABLE
    if counts["failed"] or counts["out of time"] or not results:
        return 1
    return 2 if counts["not run"] else 0
