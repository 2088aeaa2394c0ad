"""Branches are runs that continue from a checkpoint of another run, the parent, with k times its batch. This file finds
the largest batch that costs no extra samples.

The method is that of Merrill et al. 2025, "Critical Batch Size Revisited" (arXiv:2505.23971). Branches of one point
train on the same number of samples. A batch costs no extra samples when the smoothed loss at its end is at most a
tolerance above that of every smaller batch.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy

from . import keys, runs, style
from .style import Figure, Missing, Table

SMOOTHING = 0.5  # l <- 0.5 l + 0.5 loss, over the branch's steps
TOLERANCE = 0.01  # nats
FEW_STEPS = 5
TITLE = "The largest batch without loss of samples, along the run"


@dataclass(frozen=True)
class Branch:
    """`loss` is smoothed; it is infinite when the branch did not finish. When the parent itself takes the place of a
    branch, `run` is None."""

    run: object
    factor: float
    batch: int
    loss: float
    steps: int
    validation_loss: float


@dataclass
class Point:
    """A point of the parent at which branches begin. `branches` is sorted by factor, then by seed."""

    parent: Path
    step: int
    samples: int
    epoch: float
    branches: list

    @property
    def losses(self):
        """Maps each factor, from the smallest on, to the mean loss over its seeds."""
        found = {}
        for branch in self.branches:
            found.setdefault(branch.factor, []).append(branch.loss)
        return {factor: float(numpy.mean(values)) for factor, values in sorted(found.items())}

    @property
    def largest(self):
        """The largest factor whose loss is at most the tolerance above that of every smaller factor. None when no
        branch finished."""
        losses = self.losses
        good = [
            k
            for k, loss in losses.items()
            if math.isfinite(loss) and all(loss <= other + TOLERANCE for f, other in losses.items() if f < k)
        ]
        return max(good, default=None)

    def batch_of(self, factor):
        return next(b.batch for b in self.branches if b.factor == factor)


def smoothed(losses):
    """Returns the last value of the exponential moving average. Infinite when there is no loss or one is not finite."""
    value = math.inf
    for number, loss in enumerate(losses):
        value = loss if number == 0 else (1 - SMOOTHING) * value + SMOOTHING * loss
    return float(value) if math.isfinite(value) else math.inf


def branch_of(run):
    place = run.branch
    steps = run.column("step")
    own = run.column("loss")[steps > place["step"]] if len(steps) else []
    ended = run.state == "finished" and len(own)
    return Branch(
        run,
        float(place.get("batch_factor", 1)),
        run.batch,
        smoothed(own) if ended else math.inf,
        len(own),
        next((e["validation_loss"] for e in reversed(run.evaluations)), None),
    )


def folder_of(run):
    """Returns the parent's folder. A relative path counts from the working folder or the repository. If the parent is
    at neither place, the folder next to the branch with the parent's name is taken: both may have moved together."""
    place = run.branch
    told = Path(place.get("run") or Path(place.get("from", "")).parent.parent)
    candidates = [told, keys.ROOT / told, run.path.parent / told.name]
    return next((p.resolve() for p in candidates if (p / "metrics.jsonl").is_file()), told)


def points_of(made):
    """Returns the points at which the branches among the runs begin, sorted by parent and step, and the parents'
    columns."""
    found, parents = {}, {}
    for run in made:
        if run.branch:
            parent, place = folder_of(run), run.branch
            point = found.setdefault(
                (str(parent), place["step"]),
                Point(parent, place["step"], place.get("samples", 0), place.get("epoch", math.nan), []),
            )
            point.branches.append(branch_of(run))
    for (name, _), point in found.items():
        if name not in parents:
            path = point.parent / "metrics.jsonl"
            parents[name] = runs.read_metrics(path)[0] if path.is_file() else {}
        add_way_on(point, parents[name])
        point.branches.sort(key=lambda b: (b.factor, b.run.seed if b.run else 0))
    return [found[key] for key in sorted(found)], parents


def add_way_on(point, parent):
    """Adds the parent itself as the smallest batch if there is no branch with its batch (x 1). The parent must have
    trained on the samples of all branches."""
    if any(b.factor == 1 for b in point.branches) or "samples" not in parent:
        return
    some = point.branches[0]
    last = max((b.run.column("samples")[-1] for b in point.branches if len(b.run.column("samples"))), default=0)
    inside = (parent["step"] > point.step) & (parent["samples"] <= last)
    if inside.any() and parent["samples"][-1] >= last:
        batch = round(some.batch / some.factor)
        point.branches.append(Branch(None, 1.0, batch, smoothed(parent["loss"][inside]), int(inside.sum()), None))


def rows_of(points):
    rows = []
    for point in points:
        losses, largest = point.losses, point.largest
        base = min(losses)
        for branch in point.branches:
            rows.append(
                {
                    "parent": point.parent.name,
                    "epoch": point.epoch,
                    "step": point.step,
                    "samples": point.samples,
                    "branch": branch.run.name if branch.run else "the parent's own way on",
                    "times_the_batch": branch.factor,
                    "batch": branch.batch,
                    "steps": branch.steps,
                    "smoothed_loss": branch.loss if math.isfinite(branch.loss) else None,
                    "above_the_smallest_batch": none_of(losses[branch.factor] - losses[base]),
                    "validation_loss": branch.validation_loss,
                    "largest_without_loss": "yes" if branch.factor == largest else "",
                }
            )
    return rows


def none_of(value):
    return value if math.isfinite(value) else None


def draw_point(axes, index, point, name):
    """Draws the largest batch that costs no extra samples into the upper axes, with an arrow when no larger batch was
    tried. Draws how far each batch's loss is above that of the smallest batch into the lower axes. Returns the batches
    of the lower axes."""
    losses, largest = point.losses, point.largest
    look = style.line(index, linestyle="")
    tried = [point.batch_of(k) for k in losses]
    axes[0].plot([point.samples] * len(tried), tried, linestyle="", marker="_", color=style.GREY, alpha=0.6)
    if largest is not None:
        batch = point.batch_of(largest)
        axes[0].plot(point.samples, batch, **{**look, "markersize": 9})
        if largest == max(losses):
            axes[0].annotate(
                "",
                (point.samples, batch * 1.9),
                (point.samples, batch * 1.12),
                arrowprops={"arrowstyle": "->", "color": look["color"]},
            )
    base = losses[min(losses)]
    shown = [(point.batch_of(k), loss - base) for k, loss in losses.items() if math.isfinite(loss - base)]
    axes[1].plot([b for b, _ in shown], [above for _, above in shown], label=name, **style.line(index))
    return [batch for batch, _ in shown]


def figure(points, parents):
    drawing, axes = style.panels(2, height=2.9, shared=False)
    several = len({p.parent for p in points}) > 1
    batches = []
    for index, point in enumerate(points):
        name = f"epoch {point.epoch:.3g}" + (f" of {point.parent.name}" if several else "")
        batches += draw_point(axes, index, point, name)
    low, high = min(batches), max(batches)
    for value in draw_noise(axes[0], points, parents):
        low, high = min(low, value), max(high, value)
    axes[0].set_yscale("log")
    axes[0].set_ylim(low / 2, high * 3)
    style.log_y(axes[0])
    axes[0].set_xlabel("samples that the run had seen")
    axes[0].set_ylabel("batch (samples)")
    axes[0].xaxis.set_major_formatter(style.ticker.FuncFormatter(lambda v, _: style.short(v)))
    axes[0].margins(x=0.08)
    axes[1].axhline(TOLERANCE, color=style.GREY, linewidth=1, linestyle=":", label=f"tolerance, {TOLERANCE:g} nats")
    axes[1].set_ylabel("loss above that of the\nsmallest batch (nats)")
    style.batch_axis(axes[1], batches)
    style.legend(axes[0], below=0.62)
    style.legend(axes[1], below=0.62)
    drawing.set_size_inches(5.4, 8)
    return Figure(
        "branches",
        TITLE,
        drawing,
        rows_of(points),
        "At each point branches left the run with k times its batch, all for the same number of samples. A batch costs "
        f"no extra samples if the loss at its end is at most {TOLERANCE:g} nats above that of every smaller batch. The "
        "loss is smoothed: one half of it is the last step's loss (Merrill et al. 2025, arXiv:2505.23971). The upper "
        "axes show the largest such batch, and all batches that were tried as short lines. An arrow says that no "
        "larger batch was tried, so the largest one may be larger. Black: the run's own noise scale, which McCandlish "
        "et al. 2018 expect near the critical batch; Merrill et al. found it far below. The lower axes show how far the loss of each batch is above that "
        "of the smallest batch.",
        warnings(points),
    )


def draw_noise(axis, points, parents):
    """Draws the noise scale of each parent. Returns its values at the points, so that the axis can show all of them."""
    at_points = []
    for number, name in enumerate(dict.fromkeys(str(p.parent) for p in points)):
        steps = parents.get(name, {})
        value = steps.get("noise_scale", numpy.array([]))
        keep = numpy.flatnonzero(numpy.isfinite(value) & (value > 0))
        keep = keep[:: max(1, len(keep) // 200)]
        if len(keep):
            label = "noise scale" + (f" of {Path(name).name}" if len(parents) > 1 else "")
            x, look = steps["samples"][keep], style.LINES[number % 4]
            axis.plot(x, value[keep], color="#000000", linestyle=look, linewidth=1.1, label=label)
            own = [p.samples for p in points if str(p.parent) == name]
            at_points += [float(v) for v in numpy.interp(own, x, value[keep])]
    return at_points


def warnings(points):
    found = []
    for point in points:
        place = f"epoch {point.epoch:.3g} of {point.parent.name}"
        few = sorted({f"{b.factor:g}" for b in point.branches if 0 < b.steps < FEW_STEPS}, key=float)
        if few:
            found.append(
                f"{place}: fewer than {FEW_STEPS} steps in the branches at x {', x '.join(few)}; their smoothed loss "
                "is hardly smoothed"
            )
        lost = sorted({f"{b.factor:g}" for b in point.branches if not math.isfinite(b.loss)}, key=float)
        if lost:
            found.append(f"{place}: the branches at x {', x '.join(lost)} did not finish, so none of them counts")
        if len(point.losses) < 2:
            found.append(f"{place}: one batch alone, so there is nothing to compare it with")
    return found


def items(made):
    """Returns the figure and its table, or an empty list without branches."""
    points, parents = points_of(made)
    if not points:
        return []
    if all(point.largest is None for point in points):
        return [Missing(TITLE, "no branch has finished")]
    return [figure(points, parents), Table("branch_points", "Branches", rows_of(points))]
