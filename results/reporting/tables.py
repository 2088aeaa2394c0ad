"""Makes the tables of a report. Every number is copied or computed from the runs."""

import numpy

from . import cells as grouping
from . import keys, measures, mlperf, speed, style, verdict
from .records import is_number


def trial_row(run, target=None):
    """Returns the row of a run: its settings, how it ended, and its results. Without a target, there are no columns for
    the target."""
    steps, losses = run.column("step"), run.column("loss")
    finals = [e for e in run.evaluations if is_number(e.get("validation_loss"))]
    cost = measures.cost_to(run, target) if target else None
    row = {
        "trial": run.name,
        "also": ", ".join(run.trial["also"]) if isinstance(run.trial.get("also"), list) else None,
        "state": run.state,
        "seed": run.seed,
        "ranks": run.ranks,
        "batch": run.batch or None,
        "peak_rate": run.peak_rate if run.peak_rate == run.peak_rate else None,
        "steps": int(steps[-1]) if len(steps) else None,
        "samples": int(run.steps["samples"][-1]) if len(run.column("samples")) else None,
        "training_loss": float(losses[-1]) if len(losses) and numpy.isfinite(losses[-1]) else None,
        "validation_loss": finals[-1]["validation_loss"] if finals else None,
        "best_validation_loss": measures.best_value(run, "validation_loss"),
        "validation_accuracy": finals[-1].get("validation_accuracy") if finals else None,
        "seconds": run.record.get("elapsed_seconds"),
        "samples_per_second": speed.throughput(run),
        "node_hours": speed.node_hours(run),
    }
    if target:
        row.update(
            {
                "steps_to_target": cost.steps if cost else None,
                "samples_to_target": cost.samples if cost else None,
                "seconds_to_target": cost.seconds if cost else None,
            }
        )
    return row


def ranks_row(run):
    """Returns the megabytes that ranks gave to each other per 1,000 samples (by message, and through the memory of a node),
    the mean staleness of asynchronous updates, and the number of gradients that came too late."""
    return {
        "sent_mb_per_1000_samples": speed.sent_mb_per_1000_samples(run, "sent"),
        "shared_mb_per_1000_samples": speed.sent_mb_per_1000_samples(run, "shared"),
        "mean_staleness": speed.mean_staleness(run),
        "dropped_gradients": speed.dropped_gradients(run),
    }


def plain(value):
    """Returns a list as text, and any other value unchanged."""
    return keys.text(value) if isinstance(value, tuple) else value


def trials(runs, target=None):
    """Returns the table of all runs, with a column for each key in which they differ."""
    differing = [k for k in grouping.varied_keys(runs) if k not in ("batch.global", *keys.PLACES_OF_DATA)]
    of_ranks = [ranks_row(run) for run in runs]
    known = [key for key in of_ranks[0] if any(own[key] is not None for own in of_ranks)] if runs else []
    rows = [
        {
            **trial_row(run, target),
            **{key: own[key] for key in known},
            **{key: plain(run.config.get(key)) for key in differing},
        }
        for run, own in zip(runs, of_ranks)
    ]
    return style.Table(
        "trials", "All trials", rows, "The last columns are the keys in which the resolved experiments differ."
    )


def settings(cells, measure):
    """Returns the table of all experiments, with the spread over their seeds and the number of runs in each state."""
    rows = []
    known = dict.fromkeys(("finished", "diverged", "failed", *(run.state for cell in cells for run in cell.runs)))
    for cell in cells:
        values = list(cell.by_seed(measure.of).values())
        sample = verdict.Sample.of(values) if values else None
        states = [run.state for run in cell.runs]
        rows.append(
            {
                "family": grouping.label(cell.family),
                "batch": cell.batch,
                "peak_rate": cell.rate,
                **grouping.tuned_columns(cell),
                "seeds": len(cell.seeds),
                "mean": sample.mean if sample else None,
                "deviation": sample.deviation if sample else None,
                "min": min(values, default=None),
                "max": max(values, default=None),
                "unit": measure.unit,
                **{state: states.count(state) for state in known},
            }
        )
    return style.Table("experiments", f"Experiments: {measure.title}", rows)


def failures(runs):
    rows = [
        {
            "trial": run.name,
            "state": run.state,
            "step": run.record.get("final_step"),
            "where": run.record.get("thrown_at") or run.trial.get("thrown_at"),
            "why": run.outcome or "no record of its end",
        }
        for run in runs
        if run.state not in ("finished", "running", "waiting") and not run.left_by_search
    ]
    return style.Table("failures", "What failed, and why", rows)


def verdicts(comparisons):
    rows = [
        {
            "ours": grouping.cell_label(c.cell),
            "published": c.reference.name,
            "metric": c.reference.metric,
            "verdict": c.verdict.word,
            "which is": verdict.good_or_bad(c.verdict, c.reference.metric),
            "arithmetic or reason": c.verdict.arithmetic,
            "noted": c.noted,
            "source": c.reference.source,
            "evidence": c.reference.evidence,
        }
        for c in comparisons
    ]
    return style.Table(
        "verdicts",
        "Beside the published numbers",
        rows,
        "inside: Welch's t-test sees no difference (p >= 0.05); above, below: it does. A single run is compared with "
        "the interval of one more run. not comparable: recipe, data or model differ, as listed for the nearest row.",
        is_folded=True,
    )


def convergence(cells):
    """Returns the table of the results of MLPerf's checker, for runs of its benchmark."""
    rows = []
    for cell in cells:
        if mlperf.is_benchmark(cell.runs[0]):
            passed, text = mlperf.check(cell)
            word = "not asked" if passed is None else "passed" if passed else "faster than the reference allows"
            rows.append({"ours": grouping.cell_label(cell), "runs": len(cell.runs), "checker": word, "its words": text})
    return style.Table(
        "mlperf_checker",
        "MLPerf's check of convergence points",
        rows,
        f"mlperf-logging, rules of training {mlperf.RULES}: the mean of the runs, without the fastest and the "
        "slowest, must not be significantly below the reference's (one-sided t-test, p = 0.05).",
    )


def references(rows):
    return style.Table(
        "references",
        "Published numbers",
        [
            {
                "work": r.work,
                "table": r.table,
                "row": r.row,
                "metric": r.metric,
                "value": r.value,
                "spread": r.spread,
                "n": r.n or None,
                "unit": r.unit,
                "source": r.source,
                "evidence": r.evidence,
                "note": r.note,
            }
            for r in rows
        ],
        "evidence: read in the source; read in notes on the paper; memory: recalled, not checked, used for nothing.",
    )


def origins(runs):
    """Returns the table of the commits, processors, backends, versions and hosts with which the runs were made."""
    found = {}
    for run in runs:
        for start in run.starts:
            versions = ", ".join(f"{k} {v}" for k, v in start.get("versions", {}).items())
            key = (
                start.get("commit", ""),
                start.get("cpu", ""),
                start.get("backend", ""),
                versions,
                ", ".join(sorted(start.get("hosts", {}))),
            )
            found.setdefault(key, set()).add(run.name)
    rows = [
        {"commit": k[0], "processor": k[1], "backend": k[2], "versions": k[3], "hosts": k[4], "trials": len(names)}
        for k, names in found.items()
    ]
    return style.Table("origins", "Made with", rows)
