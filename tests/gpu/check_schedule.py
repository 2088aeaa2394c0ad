"""How the GPU's checks are run one after the other: limits, results, what one check's end means for those after it. Knows nothing
of what the checks do (check_parts.py); clock and processes can be made up."""
import os
import signal
import subprocess
import tempfile
import time
from collections import namedtuple

# What can become of a check. Only `passed` is good; `left out` is what a dry run cannot do, and says why.
STATUSES = ["passed", "failed", "out of time", "not run", "left out"]
LEAST_SECONDS = 3  # a check that has less left is not begun
GRACE_SECONDS = 2  # between asking a process to end and ending it; a check's limit includes them

# `part`: checks of one part share the sum of their limits: what one leaves unspent, the next of the part may use.
# what(run, seconds) -> dict with status, and perhaps why, said (lines), tests (counts), rates, tables.
Check = namedtuple("Check", "part name seconds what")


class NotRun(Exception):
    """The reason why a check cannot be done here."""


class LeftOut(Exception):
    """The reason why a dry run cannot do it."""


class Clock:
    def now(self):
        return time.monotonic()


class Processes:
    """Runs commands, and ends all that they started when their time is over."""

    def run(self, command, seconds, environment, folder):
        """(exit code, or None when out of time; what it printed)"""
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
    """One check's result; its fault is no other's."""
    try:
        return check.what(run, seconds)
    except NotRun as reason:
        return {"status": "not run", "why": str(reason)}
    except LeftOut as reason:
        return {"status": "left out", "why": str(reason)}
    except Exception as error:
        return {"status": "failed", "said": [f"{type(error).__name__}: {error}", *str(error).splitlines()[1:]]}


def run_checks(checks, run, clock, call_seconds, report):
    """All results, in order; report(result) after each."""
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
    """0: all was done and is good. 1: something failed or ran out of time. 2: nothing did, but something was not run."""
    counts = count(results)
    if counts["failed"] or counts["out of time"] or not results:
        return 1
    return 2 if counts["not run"] else 0
