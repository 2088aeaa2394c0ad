"""The time and memory of a run's steps, its node-hours and its energy. Times leave out the first tenth of the steps."""

import math

import numpy

PARTS = ["input", "forward", "backward", "exposed communication", "update"]
COLUMNS = {
    "input": "input_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "exposed communication": "communication_seconds",
    "update": "update_seconds",
}


def steady(run, key):
    """Returns the median of a column without the first tenth of the steps. Returns None without the column."""
    values = run.column(key)
    values = values[math.ceil(len(values) / 10) if len(values) > 1 else 0 :]
    values = values[numpy.isfinite(values)]
    return float(numpy.median(values)) if len(values) else None


def throughput(run):
    """Returns the median of samples per second."""
    return steady(run, "samples_per_second")


def parts(run):
    """Maps each part of a step to its mean seconds. "rest" is the time in no part. Returns None if the parts were not
    recorded. Means are used because they add up to the whole step, which medians do not."""
    seconds = run.column("seconds")
    if not len(seconds) or any(c not in run.steps for c in COLUMNS.values()):
        return None
    first = math.ceil(len(seconds) / 10) if len(seconds) > 1 else 0
    found = {part: float(numpy.nanmean(run.steps[column][first:])) for part, column in COLUMNS.items()}
    found["rest"] = max(0.0, float(numpy.nanmean(seconds[first:])) - sum(found.values()))
    return found


def exposed_share(run):
    """Returns the share of a step, 0 to 1, that is communication which did not run at the same time as computation."""
    found = parts(run)
    return found["exposed communication"] / sum(found.values()) if found and sum(found.values()) > 0 else None


def memory_mib(run):
    """Returns the MiB per rank that the run's plan predicted."""
    sizes = run.of_start("memory_bytes_per_rank", {})
    return sum(sizes.values()) / 2**20 if sizes else None


def node_hours(run):
    """Returns nodes x hours, added over all starts of a run. Returns None if no time was recorded."""
    total, before = 0.0, 0.0
    for start in run.starts:
        elapsed = start.get("elapsed_seconds")
        if elapsed is not None:
            total += max(0.0, elapsed - before) * max(1, len(start.get("hosts", {}))) / 3600
            before = elapsed
    return total if before else None


def energy_joules(run):
    """Returns the energy of the processors and memory of all nodes: that of rank 0's node times the number of nodes. In
    run.json, energy_joules is a number or maps parts to joules. Returns None if a start of the run has no energy."""
    found = [(start.get("energy_joules"), max(1, len(start.get("hosts", {})))) for start in run.starts]
    if not found or any(joules is None for joules, _ in found):
        return None
    return float(sum((sum(v.values()) if isinstance(v, dict) else v) * nodes for v, nodes in found))
