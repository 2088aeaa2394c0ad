"""Divides a report into sections, one for each study and task, and chooses their figures and tables."""

import re
from dataclasses import dataclass, field

from . import cells as grouping
from . import answers, branches, goals, halving, measures, noise_answers, references, style, tables, verdict
from . import figures_batch, figures_best_batch, figures_curves, figures_losses, figures_share, figures_speed, figures_target


@dataclass
class Section:
    title: str
    text: str
    items: list
    answers: list = field(default_factory=list)


def tasks(runs):
    """Maps (study, kind of model, training data) to the runs that have begun. The numbers of such runs can be compared
    in one figure. Branches are left out. They begin in the middle of another run, so they have figures of their own."""
    found = {}
    for run in runs:
        if (run.steps or run.evaluations) and not run.branch:
            found.setdefault(
                (run.study, run.config.get("model.kind", ""), run.config.get("data.train", "")), []
            ).append(run)
    return found


def data_name(key):
    return key[2].rsplit("/", 1)[-1].removesuffix("-train")


def title_of(key, several):
    study, kind, _ = key
    words = f"{kind.replace('_', ' ')} on {data_name(key) or 'unnamed data'}"
    return f"{study}: {words}" if several and study else words[:1].upper() + words[1:]


def task_section(key, runs, several, target, rows):
    cells = grouping.make_cells(runs)
    measure, target = measures.measure_for(runs), target or measures.target_of(cells)
    items, told = items_of_task(cells, data_name(key), measure, target, rows)
    if several:
        for item in items:
            if isinstance(item, (style.Figure, style.Table)):
                item.name = f"{slug(key)}_{item.name}"
    states = [run.state for run in runs]
    counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
    return Section(
        title_of(key, several), f"{counted(len(runs), 'run')} of {counted(len(cells), 'experiment')}: {counts}.", items, told
    )


def counted(number, word):
    return f"{number} {word}{'' if number == 1 else 's'}"


def slug(key):
    return re.sub(r"[^a-z0-9]+", "_", f"{key[0]}_{key[1]}_{data_name(key)}".lower()).strip("_")


def items_of_task(cells, data, measure, target, rows):
    """Returns (items, answers). `data` is the name of the training data."""
    lines = figures_target.steps_points(cells, target) if target else {}
    made, twenty = figures_target.fits(lines, target), figures_target.twenties(lines, target)

    def steps_of(run):
        cost = measures.cost_to(run, target)
        return cost.steps if cost else None

    reaches = bool(target) and any(lines.values())
    by = f"steps to {target}" if reaches else measure.title
    value_of = steps_of if reaches else measure.of
    compared, ends = verdict.compare_all(cells, rows), figures_batch.outcome_points(cells, measure)
    found_rates = figures_batch.rates_found(cells, value_of)
    outcome = figures_batch.outcome(cells, measure, ends, rows)
    verdicts = (
        tables.verdicts(compared)
        if compared
        else style.Missing("Beside the published numbers", "none is of a text model")
    )
    steps = figures_target.to_target(target, lines, made, twenty, cells)
    rates = figures_batch.best_rates(cells, found_rates, by)
    shares = figures_share.against_share(cells, made)
    best_batches = []
    for axis in () if all_stopped_at(target, cells) else (figures_best_batch.RATE, figures_best_batch.SHARE):
        found = figures_best_batch.lines_of(cells, measure.of, axis)
        laws = figures_best_batch.laws_of(found)
        best_batches.append((figures_best_batch.best_batch(found, laws, axis, measure.title), axis, laws))
    reached = goals.of_goal(cells, target)
    noise, courses = figures_curves.noise(cells, measure.of, made), noise_answers.courses(cells)
    published_noise = figures_curves.published_noise(courses, made, rows)
    ranks = figures_speed.against_ranks(cells)
    losses = figures_losses.losses(cells, value_of)
    items = [
        outcome,
        tables.settings(cells, measure),
        verdicts,
        tables.convergence(cells),
        steps,
        style.Table(
            "fit",
            "Fit of steps and samples",
            figures_target.fit_rows(made, twenty),
            "95 % bootstrap intervals; steps and samples as counted in the runs. B_20_percent: the batch that takes 20 % more "
            "steps than perfect scaling, from the points (Zhang et al. 2024); empty where that is outside of what ran, or "
            "where the small batches do not say what perfect scaling takes.",
        ),
        shares,
        rates,
        *(figure for figure, _, _ in best_batches),
        figures_target.epochs_to_759(cells, target, rows) if measure is measures.ERROR else None,
        noise,
        published_noise,
        figures_speed.time_to_target(cells, target),
        ranks,
        figures_speed.against_batch(cells),
        figures_speed.step_parts(cells),
        figures_speed.rank_parts(cells),
        figures_speed.staleness(cells),
        figures_speed.cost(cells),
        losses,
        figures_curves.rates(cells, measure.of),
        figures_curves.batches(cells, measure.of),
    ]
    told = [
        *(answers.of_target(steps, lines, made, twenty, reached) if is_drawn(steps) else answers.joined(reached, [])),
        *(answers.of_share(shares, figures_share.laws_of(cells, made)) if is_drawn(shares) else []),
        *(told for drawn in best_batches if is_drawn(drawn[0]) for told in answers.of_best_batch(*drawn)),
        *(answers.of_rates(rates, found_rates) if is_drawn(rates) else []),
        *(answers.of_outcome(outcome, ends, measure) if is_drawn(outcome) and not all_stopped_at(target, cells) else []),
        *(noise_answers.of_noise(noise, cells, courses, made) if is_drawn(noise) else []),
        *(noise_answers.of_published(published_noise, data, courses, made, rows) if is_drawn(published_noise) else []),
        *(answers.of_ranks(ranks) if is_drawn(ranks) else []),
    ]
    told = told or answers.of_end(losses, cells, measure)
    if compared:
        told += answers.of_published(verdicts, compared, verdict.count_of_candidates(cells, rows))
    return [item for item in items if item is not None], told


def is_drawn(item):
    return isinstance(item, style.Figure)


def all_stopped_at(target, cells):
    """Returns whether runs stopped when they reached the target. Their final values are about equal then, and say
    nothing about the experiments."""
    return bool(target) and all(
        run.config.get("stop.target_metric") == target.metric and run.config.get("stop.target_value") == target.value
        for cell in cells
        for run in cell.runs
    )


def make(runs, target=None):
    """Returns all sections. If `target` is given, it replaces the runs' own target."""
    rows, found = references.read(), tasks(runs)
    sections = [task_section(key, own, len(found) > 1, target, rows) for key, own in found.items()]
    for title, items, told, text in (
        ("Search", halving.items(runs), [], "Which trials went on, and what they had reached when it was decided."),
        (
            "Branches",
            own := branches.items(runs),
            answers.of_branches(own[0], branches.points_of(runs)[0]) if own and is_drawn(own[0]) else [],
            "How large a batch the run could have had at each point, at no cost in samples.",
        ),
    ):
        if items:
            sections.append(Section(title, text, items, told))
    waiting = [run for run in runs if run.state == "waiting"]
    text = f"{len(runs)} trials" + (f", {len(waiting)} of them not begun." if waiting else ".")
    everything = [tables.trials(runs, target), tables.failures(runs), tables.origins(runs), tables.references(rows)]
    return [*sections, Section("Trials", text, everything)]
