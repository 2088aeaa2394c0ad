"""Puts two studies into the same axes: steps to one target against the batch, and loss curves."""

import math

import numpy

from . import answers, figures_losses, figures_target, measures, runs, sections, style, verdict
from . import cells as grouping
from .errors import ReportError


def names_of(paths):
    """Returns a name for each of the two studies: the folder, with the folder above it if the names are equal."""
    folders = [path.resolve() for path in paths]
    names = [folder.name for folder in folders]
    if names[0] == names[1]:
        names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    if names[0] == names[1]:
        raise ReportError(f"--compare {paths[0]} {paths[1]}: these are the same study, or have the same name; give two studies")
    return names


def cells_of(name, made):
    """Returns the cells of a study. The study is one more key of their families, so that both studies fit into a figure."""
    cells = grouping.make_cells([run for run in made if (run.steps or run.evaluations) and not run.branch])
    if not cells:
        raise ReportError(f"--compare: {name} has no run that has begun")
    for cell in cells:
        words = name + (f": {grouping.label(cell.family)}" if cell.family else "")
        cell.family = grouping.Family((("study", name), *cell.family))
        cell.family.words = words
    return cells


def common_target(both):
    """Returns the target of both studies if they have the same one. Otherwise returns the weaker one, which both reach."""
    found = [measures.target_of(cells) for cells in both]
    if None in found or found[0].metric != found[1].metric:
        raise ReportError(
            "--compare: the two studies have no target in common, because one has no evaluations, or they measure different "
            "things; give one: --target validation_loss 1.9"
        )
    weaker = max if found[0].metric == "validation_loss" else min
    value = weaker(target.value for target in found)
    return measures.Target(found[0].metric, value, "the weaker one of the two studies' targets")


def log_steps(point, target):
    """Returns the Sample of the log of the steps. A run reaches the target anywhere between two evaluations. Seeds that
    reach it at the same one are therefore spread by the deviation of a uniform distribution between the two, at least."""
    sample = verdict.Sample.of(numpy.log(list(point.values.values())))
    if sample.deviation is None:
        return sample
    between = figures_target.coarseness(point, target) / math.sqrt(12)
    return verdict.Sample(sample.mean, max(sample.deviation, between), sample.n)


def rows_of(lines, names, target):
    """Returns a row for each batch that both studies ran, at the best rate of each, with Welch's test of log steps."""
    best = [{}, {}]
    for family, points in lines.items():
        for point in points:
            own = best[names.index(family[0][1])]
            if point.batch not in own or point.mean < own[point.batch].mean:
                own[point.batch] = point
    rows = []
    for batch in sorted(set(best[0]) & set(best[1])):
        first, second = (own[batch] for own in best)
        logs = [log_steps(point, target) for point in (second, first)]
        rows.append(
            {
                "batch": batch,
                f"steps, {names[0]}": first.mean,
                f"steps, {names[1]}": second.mean,
                "ratio": second.mean / first.mean,
                "verdict": {"below": "fewer", "above": "more", "inside": "no difference seen"}.get(
                    verdict.judge(*logs).word, "open: one seed each"
                ),
            }
        )
    return rows


def answers_of(figure, rows, names, lines, made):
    """Says what the second study needs beside the first at the largest batch that both ran, and how B_crit differs."""
    found = [
        (f"At batch {r['batch']:,}, {names[1]} needs {r['ratio']:.2f} x the steps of {names[0]}", r["verdict"])
        for r in rows[-1:]
    ] or [("The studies have no batch in common that reached the target", "open")]
    critical = {name: [made[f] for f in lines if f in made and f[0][1] == name] for name in names}
    if all(len(own) == 1 for own in critical.values()):
        (first,), (second,) = critical.values()
        one, two = first.critical_interval, second.critical_interval
        apart = two.low > one.high or two.high < one.low
        text = f"B_crit is {answers.about(first.critical)} ({answers.between(one)}) in {names[0]} and "
        text += f"{answers.about(second.critical)} ({answers.between(two)}) in {names[1]}"
        found.append((text, "they differ" if apart else "no difference seen"))
    return answers.joined(found, [figure])


def make(paths, target=None):
    """Returns (title, sections) of the comparison of two studies."""
    names = names_of(paths)
    both = [cells_of(name, runs.read_all([path])) for name, path in zip(names, paths)]
    cells = [cell for own in both for cell in own]
    target = target or common_target(both)
    lines = figures_target.steps_points(cells, target)
    made, twenty = figures_target.fits(lines, target), figures_target.twenties(lines, target)
    steps = figures_target.to_target(target, lines, made, twenty, cells)
    if isinstance(steps, style.Missing):
        raise ReportError(f"--compare: {steps.reason}; give a weaker one with --target")

    def steps_of(run):
        cost = measures.cost_to(run, target)
        return cost.steps if cost else None

    losses = figures_losses.losses(cells, steps_of, "Loss curves of both studies")
    rows = rows_of(lines, names, target)
    told = answers_of(steps, rows, names, lines, made)
    if isinstance(losses, style.Figure):
        ends = [f"{sections.counted(sum(len(c.runs) for c in own), 'run')} of {name}" for name, own in zip(names, both)]
        told.append(answers.Answer(f"The loss curves come from {' and '.join(ends)}", "", [losses]))
    table = style.Table(
        "compare",
        "Steps to the target at the batches that both ran",
        rows,
        "At the best rate of each; the verdict is Welch's t-test of the logarithms of the steps (p < 0.05). Seeds that reach the "
        "target at the same evaluation count as spread between it and the one before.",
    )
    fit = style.Table("fit", "Fit of steps and samples", figures_target.fit_rows(made, twenty))
    title = f"{names[0]} and {names[1]}"
    return title, [sections.Section(title, f"Target: {target} ({target.chosen}).", [steps, losses, table, fit], told)]
