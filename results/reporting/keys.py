"""The keys of an experiment: which of them decide what is learned, their defaults, and their values as text."""

import math
import re
from functools import lru_cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]

# These keys do not decide what a run learns. They decide how fast it is, what it measures, and what it keeps.
# src/config/schema.cpp marks the same keys as how_it_runs.
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
    "parallel.stages",
    "parallel.cuts",
    "parallel.schedule",
    "stop.diverged_share",
    "run.dir",
    "run.id",
    "run.log_every_steps",
    "run.threads",
}
# These keys are paths. A path decides nothing by itself, but other data or another first checkpoint is another task.
PLACES_OF_DATA = {"data.train", "data.validation", "branch.from"}
# All keys of these sections decide nothing about what is learned, either. This includes keys that are added later.
SECTIONS_OF_THE_MACHINE = ("run.", "machine.", "checkpoint.", "memory.", "test.")


def decides(key):
    """Returns whether the key decides what is learned. The seed does not count."""
    return key in PLACES_OF_DATA or not (key == "seed" or key in HOW_IT_RUNS or key.startswith(SECTIONS_OF_THE_MACHINE))


def flatten(tree, prefix=""):
    """Turns {"batch": {"global": 64}} into {"batch.global": 64}. Lists become tuples, which can be keys of
    dictionaries."""
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
    """Returns the value as it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[" + ",".join(text(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if value != "" else '""'


def short_names(keys):
    """Maps each key to its last word if that word is clear and no other key has it, else to the whole key."""
    leaves = [key.rsplit(".", 1)[-1] for key in keys]
    vague = {"kind", "base", "global", "end", "power", "norm", "largest"}
    return {key: leaf if leaves.count(leaf) == 1 and leaf not in vague else key for key, leaf in zip(keys, leaves)}


@lru_cache
def defaults(page=ROOT / "configs" / "README.md"):
    """Maps keys to defaults, as the generated page of all keys lists them. Returns {} if there is no such page."""
    if not page.is_file():
        return {}
    rows = re.findall(r"^\| `([\w.]+)` \|[^|]*\|[^|]*\| `([^`]*)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {key: parse(value) for key, value in rows}


def parse(value):
    """Parses a value in YAML. 1e-08 becomes a number, although it is a text in YAML 1.1."""
    try:
        loaded = yaml.safe_load(value)
        return (
            float(loaded) if isinstance(loaded, str) and re.fullmatch(r"[-+\d.]+e[-+]?\d+", loaded) else frozen(loaded)
        )
    except (yaml.YAMLError, ValueError):
        return value


def parse_override(word):
    """Turns "learning_rate.base=0.1" into ("learning_rate.base", 0.1)."""
    key, _, value = word.partition("=")
    return key, parse(value)


def peak_rate(config):
    """Returns the learning rate after warm-up: the base, scaled to the batch (learning_rate.scaling in
    src/config/schema.cpp). Returns NaN if the base is not known. A branch has the rate of its parent times
    branch.rate_factor (src/config/batch_course.cpp)."""
    base, reference = config.get("learning_rate.base", math.nan), config.get("learning_rate.base_batch", 0)
    batch = config.get("batch.global", 0) / config.get("branch.batch_factor", 1)
    times = batch / reference if reference else 1.0
    scaling = {"linear": times, "sqrt": times**0.5, "legw": times**0.5, "adam_sde": times**0.5}
    return base * scaling.get(config.get("learning_rate.scaling", "none"), 1.0) * config.get("branch.rate_factor", 1)
