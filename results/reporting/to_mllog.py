"""Writes a log in MLPerf's format with the package mlperf-logging. It has the events and keys of a closed ResNet-50
training.

The rules are those of training 4.0, the last round with ResNet-50 (mlperf_logging/compliance_checker/training_4.0.0).
The log is small. It is written again as a whole after every evaluation, so it has nothing twice."""

import io
import logging
import math
from pathlib import Path

from . import following, keys, outputs, trackers
from .errors import ReportError

RULES = "4.0.0"
TARGET = 0.759
IMAGENET = 1281167  # training images
COMMON = [
    "submission_benchmark",
    "global_batch_size",
    "gradient_accumulation_steps",
    "train_samples",
    "eval_samples",
    "opt_name",
]
OF_OPTIMIZER = {
    "lars": [
        "lars_opt_base_learning_rate",
        "lars_opt_end_learning_rate",
        "lars_opt_learning_rate_decay_poly_power",
        "lars_opt_learning_rate_decay_steps",
        "lars_epsilon",
        "lars_opt_learning_rate_warmup_epochs",
        "lars_opt_momentum",
        "lars_opt_weight_decay",
    ],
    "sgd": [
        "sgd_opt_base_learning_rate",
        "sgd_opt_end_learning_rate",
        "sgd_opt_learning_rate_decay_poly_power",
        "sgd_opt_learning_rate_decay_steps",
        "sgd_opt_weight_decay",
        "sgd_opt_momentum",
        "model_bn_span",
        "opt_learning_rate_warmup_epochs",
    ],
}


# ---- What a run says -----------------------------------------------------------------------------------------------


def benchmark_of(config, start):
    """Returns "resnet" for ResNet-50 on ImageNet. For any other run, returns the names of its model and data."""
    is_resnet50 = config.get("model.kind") == "resnet" and config.get("model.depth") == 50
    if is_resnet50 and start.get("train", {}).get("samples") == IMAGENET:
        return "resnet"
    return f"{config.get('model.kind', 'model')} on {Path(start.get('train', {}).get('path', 'unknown data')).name}"


def warmup_epochs(config, start):
    steps, per_epoch = config.get("learning_rate.warmup_steps", 0), start.get("steps_per_epoch", 0)
    if steps and per_epoch:
        return steps / per_epoch
    epochs, reference = config.get("learning_rate.warmup_epochs", 0), config.get("learning_rate.base_batch", 0)
    legw = config.get("learning_rate.scaling") == "legw" and reference
    return epochs * config["batch.global"] / reference if legw else epochs


def settings(config, start):
    """Returns the (key, value) pairs of the log, in order. A key for which the run has no value is left out."""
    batch, optimizer = start.get("batch", {}), config.get("optimizer.kind", "")
    found = {
        "seed": config.get("seed", 1),
        "global_batch_size": config.get("batch.global"),
        "gradient_accumulation_steps": batch.get("accumulation"),
        "train_samples": start.get("train", {}).get("samples"),
        "eval_samples": start.get("validation", {}).get("samples"),
        "model_bn_span": config.get("batch.worker"),
        "opt_name": optimizer,
        "opt_base_learning_rate": keys.peak_rate(config),
        "opt_learning_rate_warmup_epochs": warmup_epochs(config, start),
        **of_optimizer(config, start, optimizer),
    }
    return [(key, value) for key, value in found.items() if value is not None and value != ""]


def momentum_of(config):
    """Returns the momentum of a step. A half-life in samples takes its place (src/optim/schedule.h)."""
    half_life = config.get("optimizer.half_life.momentum", 0)
    return 2 ** (-config["batch.global"] / half_life) if half_life else config.get("optimizer.momentum")


def of_optimizer(config, start, optimizer):
    if optimizer not in OF_OPTIMIZER:
        return {"opt_weight_decay": config.get("optimizer.weight_decay")}
    found = {
        f"{optimizer}_opt_base_learning_rate": keys.peak_rate(config),
        f"{optimizer}_opt_momentum": momentum_of(config),
        f"{optimizer}_opt_weight_decay": config.get("optimizer.weight_decay"),
    }
    if optimizer == "lars":
        found["lars_epsilon"] = 0.0  # our trust ratio has no epsilon
        found["lars_opt_learning_rate_warmup_epochs"] = warmup_epochs(config, start)
    if config.get("learning_rate.schedule") == "polynomial":
        found[f"{optimizer}_opt_end_learning_rate"] = config.get("learning_rate.end")
        found[f"{optimizer}_opt_learning_rate_decay_poly_power"] = config.get("learning_rate.power")
        if start.get("total_steps") and start.get("steps_per_epoch"):
            warmup = round(warmup_epochs(config, start) * start["steps_per_epoch"])
            found[f"{optimizer}_opt_learning_rate_decay_steps"] = start["total_steps"] - warmup
    return found


def is_power_of_two_times(value, unit):
    return bool(value) and abs(math.log2(value / unit) - round(math.log2(value / unit))) < 1e-5


def missing(found, best):
    """Returns texts about what the closed ResNet-50 benchmark requires and this log lacks. `found` maps its keys to
    values."""
    said = [f"{key} is missing" for key in COMMON if key not in found]
    optimizer = found.get("opt_name")
    if found.get("submission_benchmark") != "resnet":
        said.append(
            f"submission_benchmark resnet: ResNet-50 on ImageNet's {IMAGENET} images; this is "
            f"{found.get('submission_benchmark')}"
        )
    if optimizer not in OF_OPTIMIZER:
        return [
            *said,
            f"opt_name lars or sgd, with the keys {', '.join(OF_OPTIMIZER['lars'])}; this is {optimizer}",
            *target(best),
        ]
    lacks = [key for key in OF_OPTIMIZER[optimizer] if key not in found]
    if lacks:
        said.append(f"{', '.join(lacks)}: of a polynomial decay (learning_rate.schedule), which this run does not have")
    rules = {
        "opt_end_learning_rate": (lambda v: v == 0.0001, "0.0001"),
        "opt_weight_decay": (lambda v: is_power_of_two_times(v, 0.0001), "0.0001 times a power of two"),
    }
    if optimizer == "lars":
        rules["opt_learning_rate_decay_poly_power"] = (lambda v: v == 2, "2")
    else:
        rules["opt_base_learning_rate"] = (lambda v: abs(v / 0.001 - round(v / 0.001)) < 1e-5, "a multiple of 0.001")
    for name, (holds, words) in rules.items():
        key = f"{optimizer}_{name}"
        if key in found and not holds(found[key]):
            said.append(f"{key} {words}; this is {found[key]:g}")
    return said + target(best)


def target(best):
    if best is not None and TARGET <= best < 1:
        return []
    return [f"an eval_accuracy of {TARGET} or more" + ("" if best is None else f"; the best is {best:.4g}")]


# ---- Writing -------------------------------------------------------------------------------------------------------


class MLLog:
    def __init__(self, file, is_one_run, organisation):
        self.file, self.is_one_run, self.organisation = file, is_one_run, organisation
        (self.mllog,) = trackers.load("--mllog", "mlperf-logging", "mlperf_logging.mllog.mllog")
        if file.is_dir():
            raise ReportError(f"--mllog {file} is a folder; a file's name was expected")
        file.parent.mkdir(parents=True, exist_ok=True)

    def place(self):
        return f"the MLPerf log {self.file.resolve()}", self.file.parent

    def writer(self, run):
        name = self.file if self.is_one_run else self.file.with_name(f"{self.file.stem}-{run.name}{self.file.suffix}")
        outputs.expect(name, "--mllog", "MLPerf log", lambda start: b":::MLLOG" in start)
        return RunWriter(self, run, name)


class RunWriter:
    """The log of one run, made from all its evaluations and the times of its steps."""

    def __init__(self, sink, run, path):
        self.sink, self.run, self.path, self.is_stream = sink, run, path, outputs.is_stream(path)
        self.found = {}
        self.evaluations, self.last, self.outcome, self.stale = [], None, "", True

    def take(self, stamped, again):
        if again:
            self.evaluations, self.last, self.stale = [], None, True
        for record, wall_time in stamped:
            if following.is_evaluation(record):
                self.evaluations.append((record, wall_time))
                self.stale = True
            else:
                self.last = (record, wall_time)
            self.outcome = ""

    def end(self, outcome):
        self.stale = self.stale or outcome != self.outcome
        self.outcome = outcome

    def flush(self):
        if self.stale and not self.is_stream:
            self.write()
            self.stale = False

    def close(self):
        if self.is_stream:  # it gets the log once, because what it has got cannot be replaced
            self.write()

    def lines(self):
        """Yields (how, key, value, metadata, seconds since 1970) in order, where how is "event", "start" or "end"."""
        starts, config = self.run.starts() or [{}], self.run.config()
        start, begin = starts[-1], following.seconds_of(starts[0].get("started")) or 0.0
        ranks, nodes = start.get("ranks", 1), max(1, len(start.get("hosts", {})))
        benchmark = benchmark_of(config, start)
        head = [
            ("submission_benchmark", benchmark),
            ("submission_division", "closed" if benchmark == "resnet" else "open"),
            ("submission_org", self.sink.organisation),
            (
                "submission_platform",
                f"nodes: {nodes}, ranks: {ranks}, {start.get('cpu') or start.get('backend') or 'CPU'}",
            ),
            ("submission_status", "onprem"),
            ("cache_clear", False),  # it is not known what the system's caches held
        ]
        for key, value in head:
            yield "event", key, value, {}, begin
        yield "start", "init_start", None, {}, begin
        for key, value in settings(config, start):
            yield "event", key, value, {}, begin
        yield "end", "init_stop", None, {}, begin
        yield "start", "run_start", None, {}, begin
        yield from self.blocks(config, begin)

    def blocks(self, config, begin):
        """Yields the blocks of training between evaluations, and the evaluations. Epochs count from 1."""
        done, now = 0, begin
        every = max(1, round(config.get("evaluate.every_epochs", 1)))
        following_epochs = [epoch_of(e) for e, _ in self.evaluations]
        for (evaluation, wall_time), epoch in zip(self.evaluations, following_epochs):
            end = wall_time - evaluation.get("evaluation_seconds", 0.0)
            yield from block(done, max(1, math.ceil(epoch - done)), now, end)
            where = {"epoch_num": epoch, "samples_count": evaluation.get("samples", 0)}
            yield "start", "eval_start", None, where, end
            yield "event", "eval_accuracy", evaluation.get("validation_accuracy", 0.0), where, wall_time
            yield "end", "eval_stop", None, where, wall_time
            done, now = epoch, wall_time
        after = self.last and self.last[0]["step"] > (self.evaluations[-1][0]["step"] if self.evaluations else 0)
        end = max(now, self.last[1]) if self.last else now
        if after or not (self.evaluations or self.outcome):
            yield from block(done, every, now, end if self.outcome else None)
        if self.outcome:
            yield "end", "run_stop", None, {"status": "success" if self.has_reached(config) else "aborted"}, end

    def has_reached(self, config):
        """Returns whether the run has reached its own target or, if it has none, MLPerf's."""
        metric, value = config.get("stop.target_metric"), config.get("stop.target_value", TARGET)
        found = [
            e[metric or "validation_accuracy"] for e, _ in self.evaluations if e.get(metric or "validation_accuracy")
        ]
        if metric == "validation_loss":
            return any(loss <= value for loss in found)
        return any(accuracy >= (value if metric else TARGET) for accuracy in found)

    def best(self):
        return max(
            (e["validation_accuracy"] for e, _ in self.evaluations if e.get("validation_accuracy")), default=None
        )

    def write(self):
        """Writes the log as a whole, so that no reader sees half of it."""
        logger, text = logging.Logger("mllog", logging.INFO), io.StringIO()
        handler = logging.StreamHandler(text)
        logger.addHandler(handler)
        try:
            log = self.sink.mllog.MLLogger(logger, root_dir=str(trackers.ROOT))
            ways = {"event": log.event, "start": log.start, "end": log.end}
            self.found = {}
            for how, key, value, metadata, seconds in self.lines():
                ways[how](key, value, metadata=metadata, time_ms=round(1000 * seconds))
                self.found[key] = value
        finally:
            handler.close()
        outputs.write(self.path, text.getvalue().encode())

    def words(self):
        return f"{len(self.evaluations)} evaluations are in {self.path}"

    def advice(self):
        lacks = missing(self.found, self.best())
        if lacks:
            return [
                f"{self.path} is not a log of MLPerf's closed ResNet-50 benchmark, which needs: " + "; ".join(lacks) + "."
            ]
        return [f"To check {self.path}: python3 -m mlperf_logging.compliance_checker --ruleset {RULES} {self.path}"]


def epoch_of(evaluation):
    """Returns the epoch. If it is a whole number up to rounding, returns an integer."""
    epoch = evaluation.get("epoch", 0)
    return round(epoch) if abs(epoch - round(epoch)) < 1e-6 else round(epoch, 6)


def block(done, count, begin, end):
    first = {"first_epoch_num": math.floor(done) + 1, "epoch_count": count}
    yield "start", "block_start", None, first, begin
    if end is not None:
        yield "end", "block_stop", None, first, end
