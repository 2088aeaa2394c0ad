"""Runs MLPerf's own checker of convergence points. It is part of the Python package mlperf-logging, which
.ci/mlperf_logging.sh installs."""

import json
import logging
import sys
import tempfile
from pathlib import Path

from . import keys, measures

TARGET = measures.Target("validation_accuracy", 0.759, "MLPerf's")
RULES = "4.0.0"  # the last round with ResNet-50
FOLDER = keys.ROOT / "build" / "mlperf-logging"
HOW = "MLPerf's checker is not here: .ci/mlperf_logging.sh brings it (from PyPI)"


def checker():
    """Returns the checker's module, or None if it is not installed."""
    if FOLDER.is_dir() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    try:
        from mlperf_logging.rcp_checker import rcp_checker
    except ImportError:
        return None
    return rcp_checker


def write_log(path, batch, cost):
    """Writes those lines of a run's MLPerf log that the checker reads."""

    def line(key, value, **metadata):
        return ":::MLLOG " + json.dumps({"key": key, "value": value, "metadata": metadata}) + "\n"

    epochs = cost.epochs if cost else 0
    path.write_text(
        line("submission_benchmark", "resnet")
        + line("global_batch_size", batch)
        + line("eval_accuracy", TARGET.value if cost else 0.0, epoch_num=epochs)
        + line("run_stop", None, status="success" if cost else "aborted"),
        encoding="utf-8",
    )


def check(cell):
    """Returns the checker's result for the runs of a cell as (passed, sentence), or (None, reason) if it cannot run.
    The checker leaves out the fastest and the slowest run, allows one run that did not converge, and interpolates
    between batches."""
    module = checker()
    if module is None:
        return None, HOW
    costs = [measures.cost_to(run, TARGET) for run in cell.runs]
    if len(costs) < 3:
        return None, f"the checker drops the fastest and the slowest of the runs; {len(costs)} are too few (MLPerf: 5)"
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        for number, cost in enumerate(costs):
            write_log(Path(folder) / f"result_{number}.txt", cell.batch, cost)
        passed, message, factor = module.check_directory(
            folder, "training", RULES, False, False, rcp_pass="pruned_rcps"
        )
    reached = sorted(cost.epochs for cost in costs if cost)
    listed = ", ".join(f"{epochs:.4g}" for epochs in reached) or "none"
    return bool(passed), (
        f"{message}; epochs of our runs: {listed}"
        + (f", {len(costs) - len(reached)} did not reach the target" if len(reached) < len(costs) else "")
        + (f"; factor for the score {factor:.4g}" if factor and factor != 1 else "")
    )


def is_benchmark(run):
    """Returns whether the run trains ResNet-50 on ImageNet with MLPerf's target."""
    return (
        run.config.get("model.kind") == "resnet"
        and run.config.get("model.depth") == 50
        and run.of_start("train", {}).get("samples") == 1281167
        and run.config.get("stop.target_value") == TARGET.value
    )
