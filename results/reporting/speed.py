"""The time and memory of a run's steps, its node-hours and its energy. Medians and means over the steps leave out the
first tenth of the steps. Sums over all steps, node-hours and energy do not."""

import math

import numpy

# The parts of a rank's time. A line of metrics.jsonl has the parts of rank 0. They add up to the time of that line's
# step, except for some bookkeeping, which is the "rest".
PARTS = [
    "input",
    "forward",
    "backward",
    "bubble",
    "boundary",
    "waiting for servers",
    "waiting for workers",
    "exposed communication",
    "update",
]
COLUMNS = {
    "input": "input_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "bubble": "bubble_seconds",
    "boundary": "boundary_seconds",
    "exposed communication": "communication_seconds",
    "update": "update_seconds",
}
NEEDED = ("seconds", "input_seconds", "forward_seconds", "backward_seconds", "communication_seconds", "update_seconds")
# The columns with the parts of a worker's step, if servers have ranks of their own.
WORKER_COLUMNS = {
    "input": "worker_input_seconds",
    "forward": "worker_forward_seconds",
    "backward": "worker_backward_seconds",
    "waiting for servers": "server_wait_seconds",
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


def has_workers(run):
    """Returns whether parameter servers have ranks of their own. Each line is then an update of server 0."""
    return "worker" in run.steps or "gradients" in run.steps


def mean_seconds(run, column):
    """Returns the mean of a column over the steps. A step without the column spent no time on it."""
    values = run.column(column)
    values = values[math.ceil(len(values) / 10) if len(values) > 1 else 0 :]
    return float(numpy.nan_to_num(values).mean()) if len(values) else 0.0


def parts(run):
    """Maps each part of rank 0's step to its mean seconds. "rest" is the time in no part. Returns None if the parts were not
    recorded. Means are used because they add up to the whole step, which medians do not."""
    if not len(run.column("seconds")) or any(column not in run.steps for column in NEEDED):
        return None
    found = {part: mean_seconds(run, COLUMNS[part]) if part in COLUMNS else 0.0 for part in PARTS}
    waits = "waiting for workers" if has_workers(run) else "waiting for servers"
    found[waits] = mean_seconds(run, "worker_wait_seconds" if has_workers(run) else "server_wait_seconds")
    found["exposed communication"] = max(0.0, found["exposed communication"] - found[waits])
    found["rest"] = max(0.0, mean_seconds(run, "seconds") - sum(found.values()))
    return found


def worker_parts(run):
    """Returns the same parts for a worker's step, or None if no server has a rank of its own."""
    if any(column not in run.steps for column in WORKER_COLUMNS.values()):
        return None
    found = {part: mean_seconds(run, WORKER_COLUMNS[part]) if part in WORKER_COLUMNS else 0.0 for part in PARTS}
    return {**found, "rest": 0.0}


def rank_parts(run):
    """Returns for each rank a map from parts to seconds, over all steps of the newest start that recorded them. Returns []
    if no start did."""
    found = []
    for own in run.of_start("rank_seconds", []):
        waits = {"waiting for servers": own.get("server", 0.0), "waiting for workers": own.get("workers", 0.0)}
        communication = max(0.0, own.get("communication", 0.0) - sum(waits.values()))
        found.append({part: waits.get(part, own.get(part, 0.0)) for part in PARTS} | {"exposed communication": communication})
    return found


def exposed_share(run):
    """Returns the share of a step, 0 to 1, that is communication which did not run at the same time as computation."""
    found = parts(run)
    if not found or sum(found.values()) == 0:
        return None
    return sum(found[p] for p in PARTS if p.startswith("waiting") or p == "exposed communication") / sum(found.values())


def sent_mb_per_1000_samples(run, kind):
    """Returns the megabytes that all ranks gave to others per 1,000 samples. `kind` is "sent" (by message) or "shared"
    (through the memory of a node). Returns None if no start recorded them."""
    start = next((s for s in reversed(run.starts) if s.get("rank_bytes")), None)
    if start is None or "global_batch" not in run.steps:
        return None
    own = run.column("step") > start.get("resumed_from_step", 0)
    own &= run.column("step") <= start.get("final_step", numpy.inf)
    samples = float(numpy.nansum(run.column("global_batch")[own]))
    return sum(rank.get(kind, 0) for rank in start["rank_bytes"]) / samples / 1000 if samples else None


def staleness(run):
    """Maps each staleness to the number of updates of an asynchronous run. Returns {} for other runs."""
    told = {int(key): count for key, count in run.record.get("staleness", {}).items() if key.isdecimal()}
    return dict(sorted(told.items()))


def mean_staleness(run):
    counts = staleness(run)
    total = sum(counts.values())
    return sum(s * n for s, n in counts.items()) / total if total > 0 else None


def dropped_gradients(run):
    """Returns the number of dropped gradients of a run with backup workers, over all of its starts. Returns None for other
    runs."""
    return int(numpy.nansum(run.column("dropped"))) if "dropped" in run.steps else None


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
