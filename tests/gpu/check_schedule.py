"""Runs the GPU's checks one after the other. It handles time limits and results, and decides what one check's end means
for the next ones. It does not know what the checks do (see check_parts.py). Clock and processes can be replaced in
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
GRACE_SECONDS = 2  # time between asking a process to end and killing it; part of a check's limit

# Checks with the same `part` share the sum of their limits, so later checks of the part may use time that earlier ones
# left. what(run, seconds) returns a dict with status and, where they exist, why, said (lines), tests (counts), rates
# and tables.
Check = namedtuple("Check", "part name seconds what")


class NotRun(Exception):
    """Says why a check cannot be done here."""


class LeftOut(Exception):
    """Says why a dry run cannot do a check."""


class Clock:
    def now(self):
        return time.monotonic()


class Processes:
    """Runs commands. When the time of a command is over, ends it and all processes that it started."""

    def run(self, command, seconds, environment, folder):
        """Returns (exit code, or None when out of time; what the command printed)."""
        with tempfile.TemporaryFile(mode="w+", errors="replace") as output:
            try:
                process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                           env=environment, start_new_session=True)
            except OSError as error:
                return 127, str(error)
            try:
                code = process.wait(timeout=max(0.1, seconds - GRACE_SECONDS))
            except subprocess.TimeoutExpired:
                code = None
                process.terminate()  # mpirun ends its ranks, which have process groups of their own
                try:
                    process.wait(timeout=GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    pass
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
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
        return {"status": "failed", "said": [f"{type(error).__name__}: {error}", *str(error).splitlines()[1:]]}


def run_checks(checks, run, clock, call_seconds, report):
    """Runs all checks in order and returns their results. Calls report(result) after each of them."""
    begin = clock.now()
    part, part_end, results = None, 0, []
    for check in checks:
        if check.part != part:
            part, part_end = check.part, clock.now()
        part_end += check.seconds
        start = clock.now()
        left = min(part_end, begin + call_seconds) - start
        if left < LEAST_SECONDS:
            what = "the call" if begin + call_seconds < part_end else "this part"
            result = {"status": "not run", "why": f"the time of {what} is over"}
        else:
            result = perform(check, run, left)
        result = {"part": check.part, "name": check.name, "limit_seconds": check.seconds,
                  "seconds": round(clock.now() - start, 1), **result}
        results.append(result)
        report(result)
    return results


def count(results):
    return {status: sum(r["status"] == status for r in results) for status in STATUSES}


def exit_code(results):
    """Returns 0 when every check passed or was left out, 1 when a check failed or ran out of time (or there was none),
    and 2 when a check was not run."""
    counts = count(results)
    if counts["failed"] or counts["out of time"] or not results:
        return 1
    return 2 if counts["not run"] else 0
