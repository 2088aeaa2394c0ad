"""Figures of speed: over the number of ranks, over the batch, and by the parts of a step."""

import numpy

from . import cells as grouping
from . import measures, speed, style
from .style import Figure, Missing


def mean_of(runs, value_of):
    values = [v for v in map(value_of, runs) if v is not None]
    return float(numpy.mean(values)) if values else None


def by_ranks(runs):
    found = {}
    for run in runs:
        found.setdefault(run.ranks, []).append(run)
    return dict(sorted(found.items()))


def machine(run):
    """Returns precision, threads, backend and way(). Runs are compared over ranks or batch only if these are equal."""
    return (
        run.of_start("precision", run.config.get("precision")),
        run.config.get("run.threads", 0),
        run.of_start("backend", ""),
        way(run),
    )


def way(run):
    """Returns how the ranks work together, or "" for a ring."""
    kind = run.config.get("parallel.kind", "ring")
    if kind == "pipeline":
        return f"pipeline of {run.config.get('parallel.stages')} stages"
    if kind == "server":
        if run.config.get("parallel.backup_workers", 0):
            return f"{run.config['parallel.backup_workers']} backup workers"
        return ("asynchronous" if run.config.get("parallel.mode") == "async" else "synchronous") + " servers"
    return "sharded state" if run.config.get("parallel.shard_state") else ""


def speed_groups(cells):
    """Maps (family, machine()) to runs. The learning rate is not part of it, because it does not change the speed."""
    found = {}
    for cell in cells:
        for run in cell.runs:
            found.setdefault((cell.family, machine(run)), []).append(run)
    return found


def machine_labels(groups):
    """Returns each group's name for a legend. The machine is named only if the groups differ in it."""
    machines = {key[1] for key in groups}
    labels = {}
    for family, where in groups:
        text = grouping.label(family)
        if len(machines) > 1:
            text += ": " + ", ".join(f"{v} threads" if isinstance(v, int) else str(v) for v in where if v != "")
        labels[family, where] = text
    return labels


# ---- Ranks ---------------------------------------------------------------------------------------------------------


def time_to_target(cells, target):
    """Draws one line for each batch of a family, at the fastest learning rate for each number of ranks."""
    title = "Time to the target, against ranks"
    if target is None:
        return Missing(title, "nothing was evaluated, so there is no target")
    if len({run.ranks for cell in cells for run in cell.runs}) < 2:
        return Missing(title, "all runs had the same number of ranks")
    lines = {}
    for cell in cells:
        for ranks, runs in by_ranks(cell.runs).items():
            costs = [c for c in (measures.cost_to(run, target) for run in runs) if c]
            if costs:
                row = {
                    "family": grouping.label(cell.family),
                    "batch": cell.batch,
                    "rate": cell.rate,
                    "ranks": ranks,
                    "seconds": float(numpy.mean([c.seconds for c in costs])),
                    "seconds_without_evaluations": float(numpy.mean([c.training_seconds for c in costs])),
                    "runs": len(costs),
                    "not_reached": len(runs) - len(costs),
                }
                best = lines.setdefault((cell.family, cell.batch), {}).get(ranks)
                if best is None or row["seconds"] < best["seconds"]:
                    lines[cell.family, cell.batch][ranks] = row
    if not lines:
        return Missing(title, f"no run reached the target, {target}")
    if len({ranks for rows in lines.values() for ranks in rows}) < 2:
        return Missing(title, f"runs of one number of ranks alone reached the target, {target}")
    drawing, (axis,) = style.panels()
    for index, ((family, batch), rows) in enumerate(lines.items()):
        name = f"batch {batch}" + (f", {grouping.label(family)}" if family else "")
        axis.plot(list(rows), [r["seconds"] for r in rows.values()], label=name, **style.line(index))
    style.log_y(axis)
    axis.set_ylabel("time to the target (s)")
    rank_axis(axis, [ranks for rows in lines.values() for ranks in rows])
    style.legend(axis)
    return Figure(
        "time_to_target_vs_ranks",
        title,
        drawing,
        [row for rows in lines.values() for row in rows.values()],
        f"Target: {target} ({target.chosen}); evaluations included, at the fastest rate of each batch and number of ranks.",
    )


def rank_axis(axis, ranks):
    axis.set_xlabel("ranks")
    style.powers(axis, ranks)


def scaling_lines(cells):
    """Maps names of lines to rows, one row for each number of ranks. On a "strong" line the global batch is equal, on a
    "weak" line the number of samples per rank. A line needs two points."""
    groups = speed_groups(cells)
    labels, lines = machine_labels(groups), {}
    for key, runs in groups.items():
        for kind, number_of, unit in (
            ("strong", lambda r: r.batch, "batch"),
            ("weak", lambda r: r.batch // r.ranks, "samples per rank"),
        ):
            for number in sorted({number_of(run) for run in runs}):
                own = by_ranks([run for run in runs if number_of(run) == number])
                if len(own) > 1:
                    name = f"{kind}, {unit} {number}" + (f", {labels[key]}" if len(groups) > 1 else "")
                    lines[name] = [scaling_row(name, ranks, members) for ranks, members in own.items()]
    for rows in lines.values():
        add_efficiency(rows)
    return {name: rows for name, rows in lines.items() if all(r["samples_per_second"] for r in rows)}


def scaling_row(name, ranks, runs):
    return {
        "line": name,
        "ranks": ranks,
        "samples_per_second": mean_of(runs, speed.throughput),
        "exposed_communication_share": mean_of(runs, speed.exposed_share),
        "runs": len(runs),
    }


def add_efficiency(rows):
    """Adds the efficiency: samples per second and rank, divided by the value of the fewest ranks."""
    first = rows[0]
    for row in rows:
        if row["samples_per_second"] and first["samples_per_second"]:
            row["efficiency"] = row["samples_per_second"] / row["ranks"] * first["ranks"] / first["samples_per_second"]


def from_zero(axis):
    """Lets the y axis begin at zero and leaves room for the highest marker."""
    axis.set_ylim(0, 1.06 * max(axis.dataLim.ymax, 1e-9))


def against_ranks(cells):
    title = "Throughput, efficiency and exposed communication, against ranks"
    lines = scaling_lines(cells)
    if not lines:
        return Missing(title, "no experiment ran on two numbers of ranks")
    drawing, axes = style.panels(3, height=2.6)
    for index, (name, rows) in enumerate(lines.items()):
        ranks = [r["ranks"] for r in rows]
        axes[0].plot(ranks, [r["samples_per_second"] for r in rows], **style.line(index))
        axes[1].plot(ranks, [100 * r["efficiency"] for r in rows], **style.line(index))
        shares = [r["exposed_communication_share"] for r in rows]
        axes[2].plot(ranks, [numpy.nan if s is None else 100 * s for s in shares], label=name, **style.line(index))
    axes[0].set_ylabel("samples per second")
    axes[1].set_ylabel("efficiency (%)")
    axes[2].set_ylabel("exposed comm.\n(% of a step)")
    axes[1].axhline(100, color=style.GREY, linewidth=1, linestyle=":")
    for axis in axes:
        from_zero(axis)
    rank_axis(axes[2], [r["ranks"] for rows in lines.values() for r in rows])
    style.legend(axes[2], below=0.7)
    return Figure(
        "speed_vs_ranks",
        title,
        drawing,
        [row for rows in lines.values() for row in rows],
        "Medians over steps, the first tenth left out. strong: equal global batch. weak: equal samples per rank. "
        "Efficiency: samples per second and rank, over those of the fewest ranks.",
    )


# ---- Batch ---------------------------------------------------------------------------------------------------------


def against_batch(cells):
    """Draws throughput, relative to the best batch, and memory, with a line for each number of ranks."""
    title = "Relative throughput and memory, against the batch"
    lines, groups = {}, speed_groups(cells)
    labels = machine_labels(groups)
    for key, runs in groups.items():
        for ranks, own in by_ranks(runs).items():
            rows = [
                batch_row(labels[key], ranks, batch, [r for r in own if r.batch == batch])
                for batch in sorted({r.batch for r in own})
            ]
            rows = [r for r in rows if r["samples_per_second"]]
            if len(rows) > 1:
                best = max(r["samples_per_second"] for r in rows)
                lines[labels[key], ranks] = [{**r, "relative": r["samples_per_second"] / best} for r in rows]
    if not lines:
        return Missing(title, "no number of ranks ran two batches")
    drawing, axes = style.panels(2, height=2.7)
    many = len({name for name, _ in lines}) > 1
    for index, ((name, ranks), rows) in enumerate(lines.items()):
        x, text = [r["batch"] for r in rows], f"{ranks} rank{'s' if ranks > 1 else ''}" + (f", {name}" if many else "")
        axes[0].plot(x, [100 * r["relative"] for r in rows], **style.line(index))
        axes[1].plot(x, [r["memory_mib_per_rank"] for r in rows], label=text, **style.line(index))
    axes[0].set_ylabel("throughput\n(% of the best)")
    axes[1].set_ylabel("memory (MiB per rank)")
    for axis in axes:
        from_zero(axis)
    style.batch_axis(axes[1], [r["batch"] for rows in lines.values() for r in rows])
    style.legend(axes[1], below=0.62)
    return Figure(
        "speed_vs_batch",
        title,
        drawing,
        [row for rows in lines.values() for row in rows],
        "Throughput: the median over steps, the first tenth left out, over the best batch of the same line. Memory: "
        "as planned before the run, all parts of a rank.",
    )


def batch_row(name, ranks, batch, runs):
    return {
        "family": name,
        "ranks": ranks,
        "batch": batch,
        "samples_per_second": mean_of(runs, speed.throughput),
        "memory_mib_per_rank": mean_of(runs, speed.memory_mib),
        "runs": len(runs),
    }


# Maps each part of a bar to its colour and hatching. Neighbours differ in lightness, so they also differ in grey prints.
PART_LOOKS = {
    "input": ("#0072B2", ""),
    "forward": ("#A6D5F2", "///"),
    "backward": ("#D55E00", "..."),
    "bubble": ("#FFFFFF", "\\\\\\"),
    "boundary": ("#CC79A7", ""),
    "waiting for servers": ("#F2F2F2", "oo"),
    "waiting for workers": ("#E8D5F0", "--"),
    "exposed communication": ("#F7E88B", "xxx"),
    "update": ("#000000", "\\\\\\"),
    "rest": ("#DDDDDD", "++"),
}
DARK_PARTS = ("update", "input", "backward")  # they get white edges


def stacked(axis, bars, labels, unit_of):
    """Draws a bar for each dictionary of parts. unit_of(bar) is the unit of its lengths. Leaves out parts that no bar has."""
    left = numpy.zeros(len(bars))
    for part, (colour, hatch) in PART_LOOKS.items():
        if not any(bar.get(part) for bar in bars):
            continue
        width = numpy.array([bar.get(part, 0.0) / unit_of(bar) for bar in bars])
        axis.barh(
            range(len(bars)),
            width,
            left=left,
            label=part,
            color=colour,
            hatch=hatch,
            edgecolor="#FFFFFF" if part in DARK_PARTS else "#777777",
            linewidth=0.5,
        )
        left += width
    axis.set_yticks(range(len(bars)), labels, fontsize=8)
    axis.invert_yaxis()
    axis.grid(False)


def whole(bar):
    return sum(bar[part] for part in PART_LOOKS if part in bar) or 1.0


def speed_cells(cells):
    """Yields ((label, batch, ranks), runs) for each family, machine, batch and number of ranks."""
    groups = speed_groups(cells)
    labels = machine_labels(groups)
    for key, runs in groups.items():
        for batch in sorted({r.batch for r in runs}):
            for ranks, own in by_ranks([r for r in runs if r.batch == batch]).items():
                yield (labels[key], batch, ranks), own


def step_parts(cells):
    """Draws a stacked bar for each family, batch and number of ranks. If servers have ranks of their own, a second bar
    shows the workers."""
    title = "Where a step's time goes"
    bars = []
    for (family, batch, ranks), own in speed_cells(cells):
        served = any(map(speed.has_workers, own))
        for whose, parts_of in ("server 0" if served else "rank 0", speed.parts), ("a worker", speed.worker_parts):
            found = [p for p in map(parts_of, own) if p]
            if found:
                means = {part: float(numpy.mean([f[part] for f in found])) for part in [*speed.PARTS, "rest"]}
                bars.append(
                    {"family": family, "batch": batch, "ranks": ranks, "whose": whose, "runs": len(found), **means}
                )
    if not bars:
        return Missing(title, "no run recorded the parts of its steps")
    shown = bars[:24]
    many = len({b["family"] for b in shown}) > 1
    labels = [bar_label(b, many) for b in shown]
    lines = max(label.count("\n") + 1 for label in labels)
    height = max(2.2, (0.2 + 0.14 * lines) * len(shown) + 1)
    drawing, (axis,) = style.panels(height=height)
    stacked(axis, shown, labels, lambda bar: whole(bar) / 100)
    axis.set_xlabel("share of a step (%)")
    axis.set_xlim(0, 100)
    style.legend(axis, below=0.6)
    note = (
        "Means over the steps of rank 0, the first tenth left out; the milliseconds beside each bar are a whole step. "
        "Where servers have ranks of their own, a step of server 0 is the time between two updates, and the bar of a "
        "worker is the mean over the workers whose gradients were used."
    )
    return Figure(
        "step_parts", title, drawing, bars, note + (f" The first 24 of {len(bars)}." if len(bars) > 24 else "")
    )


def rank_parts(cells):
    """Draws a stacked bar for each rank of runs whose ranks do different work. Returns None if there is no such run."""
    bars = []
    for (family, batch, ranks), own in speed_cells(cells):
        run = next((r for r in own if speed.rank_parts(r)), None)
        found = speed.rank_parts(run) if run else []
        if any(f["bubble"] or f["waiting for servers"] or f["waiting for workers"] for f in found):
            for rank, parts in enumerate(found):
                bars.append({"family": family, "batch": batch, "ranks": ranks, "trial": run.name, "rank": rank, **parts})
    if not bars:
        return None
    shown = bars[:32]
    many = len({(b["family"], b["batch"], b["ranks"]) for b in shown}) > 1
    labels = [
        (f"{style.wrapped(b['family'], 34)}\nbatch {b['batch']}, " if many and b["rank"] == 0 else "") + f"rank {b['rank']}"
        for b in shown
    ]
    lines = max(label.count("\n") + 1 for label in labels)
    drawing, (axis,) = style.panels(height=max(2.2, (0.2 + 0.1 * lines) * len(shown) + 1))
    stacked(axis, shown, labels, lambda bar: 1)
    axis.set_xlabel("seconds of all steps")
    style.legend(axis, below=0.6)
    note = (
        "Pipelines and parameter servers: where each rank's time went, over all steps of the newest start (rank_seconds "
        "in run.json), of one run of each kind."
    )
    return Figure(
        "rank_parts",
        "Where each rank's time goes",
        drawing,
        bars,
        note + (f" The first 32 of {len(bars)}." if len(bars) > 32 else ""),
    )


def staleness(cells):
    """Draws the updates of asynchronous runs by staleness. Returns None if no run is asynchronous."""
    rows, lines = [], {}
    for (family, batch, ranks), own in speed_cells(cells):
        counts = {}
        for run in own:
            for stale, updates in speed.staleness(run).items():
                counts[stale] = counts.get(stale, 0) + updates
        total = sum(counts.values())
        for stale in range(max(counts, default=-1) + 1):
            updates = counts.get(stale, 0)
            row = {"family": family, "batch": batch, "ranks": ranks, "staleness": stale, "updates": updates}
            rows.append({**row, "share": updates / total})
            lines.setdefault((family, batch, ranks), []).append(rows[-1])
    if not rows:
        return None
    drawing, (axis,) = style.panels()
    for index, ((family, batch, ranks), own) in enumerate(lines.items()):
        mean = sum(r["staleness"] * r["share"] for r in own)
        text = f"batch {batch}, {ranks} ranks, mean {style.short(round(mean, 2))}"
        if len({name for name, _, _ in lines}) > 1:
            text += f", {family}"
        axis.plot(
            [r["staleness"] for r in own], [100 * r["share"] for r in own], label=text, **style.line(index)
        )
    axis.set_xlabel("staleness (updates)")
    axis.set_ylabel("share of the updates (%)")
    axis.xaxis.get_major_locator().set_params(integer=True)
    from_zero(axis)
    style.legend(axis)
    return Figure(
        "staleness",
        "Staleness of asynchronous updates",
        drawing,
        rows,
        "Staleness: how many updates were applied after a worker had read the weights and before its own update. All "
        "updates of all runs of a line, as run.json counts them.",
    )


def bar_label(bar, many):
    seconds = whole(bar)
    milliseconds = style.short(round(1000 * seconds, 2 if seconds < 0.1 else 0))
    place = f"batch {bar['batch']}, {bar['ranks']} rank{'s' if bar['ranks'] > 1 else ''}, {milliseconds} ms"
    if bar["whose"] != "rank 0":
        place = f"{bar['whose']}: {place}"
    return f"{style.wrapped(bar['family'], 34)}\n{place}" if many else place


ENERGY = " Energy: what the nodes' processors and memory drew, without GPUs, network and cooling."


def cost(cells):
    """Draws the node-hours of whole runs, and their energy if the machine counted it."""
    title = "Node-hours and energy, against the batch"
    rows = []
    for cell in cells:
        done = [run for run in cell.runs if run.state == "finished"]
        for ranks, runs in by_ranks(done).items():
            hours = mean_of(runs, speed.node_hours)
            if hours is not None:
                rows.append(
                    {
                        "family": grouping.label(cell.family),
                        "batch": cell.batch,
                        "rate": cell.rate,
                        "ranks": ranks,
                        "node_hours": hours,
                        "energy_joules": mean_of(runs, speed.energy_joules),
                        "runs": len(runs),
                    }
                )
    if not rows:
        return Missing(title, "no run that finished recorded its time")
    counted = any(r["energy_joules"] for r in rows)
    drawing, axes = style.panels(2 if counted else 1, height=2.8)
    lines = {}
    for row in rows:
        lines.setdefault((row["family"], row["ranks"]), []).append(row)
    for index, ((family, ranks), own) in enumerate(lines.items()):
        text = f"{ranks} rank{'s' if ranks > 1 else ''}" + (f", {family}" if len({f for f, _ in lines}) > 1 else "")
        for axis, key, factor in zip(axes, ("node_hours", "energy_joules"), (1, 1 / 3.6e6)):
            axis.plot(
                [r["batch"] for r in own],
                [numpy.nan if r[key] is None else r[key] * factor for r in own],
                label=text,
                **style.line(index, linestyle=""),
            )
    axes[0].set_ylabel("node-hours of a run")
    if counted:
        axes[1].set_ylabel("energy of a run (kWh)")
    for axis in axes:
        style.log_y(axis)
    style.batch_axis(axes[-1], [r["batch"] for r in rows])
    style.legend(axes[-1])
    note = "Runs that finished, from start to end, evaluations included; a point for each rate."
    return Figure("cost_vs_batch", title, drawing, rows, note + (ENERGY if counted else " No run recorded its energy."))
