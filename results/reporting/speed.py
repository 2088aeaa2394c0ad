"""What a run's steps took, in steady state: the first tenth of its steps is left out."""

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
    """Median over the steps; None without the column."""
    values = run.column(key)
    values = values[math.ceil(len(values) / 10) if len(values) > 1 else 0 :]
    values = values[numpy.isfinite(values)]
    return float(numpy.median(values)) if len(values) else None


def throughput(run):
    """Samples per second."""
    return steady(run, "samples_per_second")


def parts(run):
    """part -> mean seconds of a step, "rest" for what is in none; None where the split was not recorded. Means, which add
    up to the step as medians do not."""
    seconds = run.column("seconds")
    if not len(seconds) or any(c not in run.steps for c in COLUMNS.values()):
        return None
    first = math.ceil(len(seconds) / 10) if len(seconds) > 1 else 0
    found = {part: float(numpy.nanmean(run.steps[column][first:])) for part, column in COLUMNS.items()}
    found["rest"] = max(0.0, float(numpy.nanmean(seconds[first:])) - sum(found.values()))
    return found


def exposed_share(run):
    """Of the step, 0 to 1: communication that was not hidden behind the backward pass."""
    found = parts(run)
    return found["exposed communication"] / sum(found.values()) if found and sum(found.values()) > 0 else None


def memory_mib(run):
    """Per rank, as planned before the run took it."""
    sizes = run.of_start("memory_bytes_per_rank", {})
    return sum(sizes.values()) / 2**20 if sizes else None


def node_hours(run):
    """Nodes x hours, over all starts of a resumed run; None where the run's end was not recorded."""
    total, before = 0.0, 0.0
    for start in run.starts:
        elapsed = start.get("elapsed_seconds")
        if elapsed is not None:
            total += max(0.0, elapsed - before) * max(1, len(start.get("hosts", {}))) / 3600
            before = elapsed
    return total if before else None


def energy_joules(run):
    """What the processors and memory of all nodes drew: all parts of rank 0's node (energy_joules in run.json: a number, or
    part -> joules), times the nodes. None where a start of the run has none."""
    found = [(start.get("energy_joules"), max(1, len(start.get("hosts", {})))) for start in run.starts]
    if not found or any(joules is None for joules, _ in found):
        return None
    return float(sum((sum(v.values()) if isinstance(v, dict) else v) * nodes for v, nodes in found))
