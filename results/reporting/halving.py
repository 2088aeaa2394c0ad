"""Shows a search by successive halving: its rungs, and which trials continued (`search` and `rung_losses` of
study.json)."""

import math

from . import style
from .records import is_number
from .style import Figure, Missing, Table

TITLE = "Successive halving"


def losses_of(run):
    """Returns the validation loss at the end of each rung, or None for a rung without one."""
    return [loss if is_number(loss) and math.isfinite(loss) else None for loss in run.trial.get("rung_losses") or []]


def searches(runs):
    """Returns (the search, its runs) for each search. A study with budget.within has a search for each value."""
    found = {}
    for run in runs:
        if run.search.get("kind") == "halving":
            found.setdefault((run.study, run.search.get("value")), (run.search, []))[1].append(run)
    return list(found.values())


def suffix(search):
    return f", {search['within']} {search['value']}" if search.get("within") else ""


def title_of(search):
    return TITLE + suffix(search)


def rung_rows(search, runs):
    rows = []
    for number, rung in enumerate(search.get("rungs", []), 1):
        begun = [run for run in runs if (run.trial.get("rung") or 0) >= number]
        losses = [
            own[number - 1] for own in map(losses_of, begun) if len(own) >= number and own[number - 1] is not None
        ]
        later = [run for run in runs if (run.trial.get("rung") or 0) > number]
        ended = number + 1 > len(search["rungs"])
        rows.append(
            {
                "rung": number,
                "samples": rung.get("samples"),
                "trials_planned": rung.get("trials"),
                "trials_begun": len(begun),
                "went_on": None if ended else len(later),
                "best_validation_loss": min(losses, default=None),
                "worst_validation_loss": max(losses, default=None),
            }
        )
    return rows


def trial_rows(search, runs):
    """Returns a row for each trial, the best first. Trials that reached a later rung come first, then those with a
    lower loss there."""
    rows = []
    for run in runs:
        own = losses_of(run)
        rows.append(
            {
                "trial": run.name,
                "rung": run.trial.get("rung"),
                **{
                    f"loss_at_rung_{i}": own[i - 1] if len(own) >= i else None
                    for i in range(1, len(search["rungs"]) + 1)
                },
                "state": run.state,
                "batch": run.batch or None,
                "peak_rate": run.peak_rate if run.peak_rate == run.peak_rate else None,
            }
        )

    def order(row):
        last = row.get(f"loss_at_rung_{row['rung']}") if row["rung"] else None
        return (-(row["rung"] or 0), last is None, last or 0.0, row["trial"])

    return sorted(rows, key=order)


def figure(name, search, runs):
    """Draws a line for each trial. Trials that came to the last rung or reached the target are in colour,
    the others in grey."""
    drawing, (axis,) = style.panels(height=3)
    samples, finalists = [rung.get("samples") for rung in search["rungs"]], 0
    for run in runs:
        points = [(x, loss) for x, loss in zip(samples, losses_of(run)) if loss is not None]
        if not points:
            continue
        reached = run.reached_target
        if reached and run.evaluations:  # it ended before the end of its rung
            points[-1] = (run.evaluations[-1].get("samples", points[-1][0]), points[-1][1])
        x, y = zip(*points)
        if len(points) == len(samples) or reached:
            axis.plot(x, y, label=run.name, zorder=3, **style.line(finalists))
            finalists += 1
        else:
            axis.plot(x, y, color=style.GREY, alpha=0.5, linewidth=0.9, marker=".", markersize=4)
    if not axis.lines:
        return Missing(title_of(search), "no trial has ended its first rung")
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(style.ticker.FixedLocator(samples))
    axis.xaxis.set_minor_locator(style.ticker.NullLocator())
    axis.xaxis.set_major_formatter(style.ticker.FuncFormatter(lambda v, _: style.short(v)))
    axis.set_xlabel("samples seen, at the end of each rung")
    axis.set_ylabel("validation loss (nats)")
    style.legend(axis)
    factor = search.get("factor", 0)
    rows = [
        {"trial": run.name, "rung": number, "samples": seen, "validation_loss": loss}
        for run in runs
        for number, (seen, loss) in enumerate(zip(samples, losses_of(run)), 1)
    ]
    note = (
        f"All trials begin; at the end of each rung the best 1 in {factor:g} by validation loss go on, the others stop. "
        "In colour: those that came to the last rung or reached the target."
    )
    return Figure(name, title_of(search), drawing, rows, note)


def items(runs):
    """Returns a figure, a table of rungs and a table of trials for each search."""
    found = []
    for number, (search, own) in enumerate(searches(runs)):
        if not search.get("rungs") or not all("samples" in rung for rung in search["rungs"]):
            continue
        end = f"_{number + 1}" if number else ""
        found += [
            figure(f"halving{end}", search, own),
            Table(f"rungs{end}", f"Rungs{suffix(search)}", rung_rows(search, own)),
            Table(f"halving_trials{end}", f"Trials of the search{suffix(search)}, the best first", trial_rows(search, own)),
        ]
    return found
