"""The keys of an experiment: which decide what is learned, their defaults, values as text."""

import math
import re
from functools import lru_cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]

# As src/config/schema.cpp marks them (how_it_runs): they decide how fast a run is, not what it learns.
HOW_IT_RUNS = {
    "name",
    "data.train",
    "data.validation",
    "data.train_samples",
    "data.validation_samples",
    "data.loader_threads",
    "data.reads",
    "data.prefetch",
    "batch.micro",
    "optimizer.record_trust_every_steps",
    "noise.every_steps",
    "noise.small_batch",
    "noise.half_life",
    "noise.groups",
    "branch.from",
    "evaluate.every_epochs",
    "evaluate.offset_epochs",
    "evaluate.every_steps",
    "checkpoint.every_epochs",
    "checkpoint.every_steps",
    "checkpoint.every_seconds",
    "checkpoint.keep",
    "checkpoint.best",
    "machine.device",
    "machine.graphs",
    "machine.search_seconds",
    "machine.plan_cache",
    "communication.library",
    "communication.algorithm",
    "communication.order",
    "communication.max_ctas",
    "communication.bucket_mib",
    "communication.chunk_kib",
    "communication.node_latency_us",
    "communication.node_gb_s",
    "communication.network_latency_us",
    "communication.network_gb_s",
    "communication.timeout_seconds",
    "communication.check_every_steps",
    "parallel.kind",
    "parallel.shard_state",
    "parallel.servers",
    "parallel.replay",
    "parallel.replicas",
    "parallel.stages",
    "parallel.cuts",
    "parallel.schedule",
    "run.dir",
    "run.id",
    "run.log_every_steps",
    "run.threads",
}
# Another data set, or another checkpoint to go on from, is another task, although its path does not decide by itself.
PLACES_OF_DATA = {"data.train", "data.validation", "branch.from"}
# New keys of these sections are of the same sort.
SECTIONS_OF_THE_MACHINE = ("run.", "machine.", "checkpoint.", "memory.", "test.")


def decides(key):
    """Whether the key, the seed apart, is part of what is learned."""
    return key in PLACES_OF_DATA or not (key == "seed" or key in HOW_IT_RUNS or key.startswith(SECTIONS_OF_THE_MACHINE))


def flatten(tree, prefix=""):
    """{"batch": {"global": 64}} as {"batch.global": 64}; lists become tuples, so that values can be keys."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + str(key)] = frozen(value)
    return flat


def frozen(value):
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


def text(value):
    """As it would be written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[" + ",".join(text(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if value != "" else '""'


def short_names(keys):
    """key -> its last word where that is clear, else the whole key."""
    leaves = [key.rsplit(".", 1)[-1] for key in keys]
    vague = {"kind", "base", "global", "end", "power", "norm", "largest"}
    return {key: leaf if leaves.count(leaf) == 1 and leaf not in vague else key for key, leaf in zip(keys, leaves)}


@lru_cache
def defaults(page=ROOT / "configs" / "README.md"):
    """key -> default, from the generated page of all keys; empty where the page is not there."""
    if not page.is_file():
        return {}
    rows = re.findall(r"^\| `([\w.]+)` \|[^|]*\|[^|]*\| `([^`]*)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {key: parse(value) for key, value in rows}


def parse(value):
    """A value as it stands in YAML; 1e-08 is a number, which YAML 1.1 denies."""
    try:
        loaded = yaml.safe_load(value)
        return (
            float(loaded) if isinstance(loaded, str) and re.fullmatch(r"[-+\d.]+e[-+]?\d+", loaded) else frozen(loaded)
        )
    except (yaml.YAMLError, ValueError):
        return value


def parse_override(word):
    """ "learning_rate.base=0.1" as ("learning_rate.base", 0.1)."""
    key, _, value = word.partition("=")
    return key, parse(value)


def peak_rate(config):
    """The rate after warm-up: base x its scaling to the batch (src/config/schema.cpp, learning_rate.scaling); NaN where
    the base is not known. A branch has that of the run that it left, times branch.rate_factor (src/config/branch.cpp)."""
    base, reference = config.get("learning_rate.base", math.nan), config.get("learning_rate.base_batch", 0)
    batch = config.get("batch.global", 0) / config.get("branch.batch_factor", 1)
    times = batch / reference if reference else 1.0
    scaling = {"linear": times, "sqrt": times**0.5, "legw": times**0.5}
    return base * scaling.get(config.get("learning_rate.scaling", "none"), 1.0) * config.get("branch.rate_factor", 1)
