"""Compares a study that tunes each batch up to a goal with published studies of the same goal (Shallue et al. 2019).

A published row with the metric `goal_accuracy` says that its batch reached this validation accuracy, in percent, at its
best rate. The rate, the momentum and the batch are tuned on both sides, so only the task has to agree: the model, the data,
the loss and the kind of optimizer."""

from . import keys, references
from .measures import cost_to

METRIC = "goal_accuracy"
UNFINISHED = ("waiting", "running", "killed")
TASK = ("model.", "data.", "loss.", "optimizer.kind", "optimizer.nesterov")


def is_same_task(run, reference):
    """Returns whether the run's model, data, loss and optimizer are those of the published row's experiment."""
    expected = references.recipe(reference)
    if expected is None or references.differences_of_data(run, expected):
        return False
    decisive = [key for key in expected if key.startswith(TASK) and keys.decides(key) and key not in keys.PLACES_OF_DATA]
    return all(
        references.same(run.config.get(key, references.all_defaults().get(key)), expected[key]) for key in decisive
    )


def may_go_on(run):
    """Returns whether the run has not ended. One that was stopped may be resumed, unless a search has left it behind."""
    return run.state in UNFINISHED or run.state == "stopped" and run.trial.get("state") != "finished"


def listed(batches):
    return ", ".join(f"{batch:,}" for batch in sorted(batches))


def of_goal(cells, target, rows=None):
    """Returns (sentence, verdict) for each published figure with the same goal and task. A batch has missed the goal if all
    its runs have ended without it. A batch outside of the published ones is left out. Rows from memory judge nothing."""
    rows = references.read() if rows is None else rows
    if target is None or target.metric != "validation_accuracy":
        return []
    figures = {}
    for row in rows:
        if row.metric == METRIC and row.is_checked and references.same(row.value, 100 * target.value):
            figures.setdefault((row.work, row.table), []).append(row)
    found = []
    for (work, table), own in figures.items():
        published = [row.batch for row in own]
        low, high = min(published), max(published)
        runs = [run for cell in cells for run in cell.runs if low <= run.batch <= high and is_same_task(run, own[0])]
        tried = {run.batch for run in runs}
        if not tried:
            continue
        missed = tried - {run.batch for run in runs if cost_to(run, target) is not None}
        open_still = {run.batch for run in runs if run.batch in missed and may_go_on(run)}
        text = (
            f"{work}, {table}: the goal, a validation error of {100 - own[0].value:g} %, is published as reached at "
            f"{len(published)} batches from {low:,} to {high:,}. Here {len(tried) - len(missed)} of {len(tried)} reach it: "
            f"{listed(tried)}"
        )
        word = f"not reached at {listed(missed - open_still)}" if missed - open_still else "as published"
        if open_still:
            word = f"open: {listed(open_still)} has not ended"
        found.append((text, word))
    return found
