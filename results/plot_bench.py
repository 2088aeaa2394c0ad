#!/usr/bin/env python3
"""Draws the CSV files that `ringtrain predict`, `ringtrain bench utilisation|components|split` and `make simulate
WHAT=step` write with --csv. The ending of the output's name chooses the format: PNG, SVG or PDF.

  results/plot_bench.py utilisation.csv -o utilisation.svg
  results/plot_bench.py components.csv -o components.svg
  results/plot_bench.py split.csv -o split.svg
  results/plot_bench.py scaling.csv -o scaling.svg
  results/plot_bench.py simulate.csv -o simulate.svg

Utilisation: throughput, share of the machine's matrix rate, and memory, against the batch of a rank. A batch that does
not fit into memory is a cross. Several files are drawn together. Components: how much shorter a step is without each
part. Split: throughput against the split size (batch.micro) of a pipeline, with a line for each way to cut the model.
Predict: predicted throughput and efficiency against the number of ranks, with their range, and the measured steps.
Simulate: simulated and predicted efficiency of whole steps against the number of ranks.
"""
import argparse
import csv
import os
import sys
from pathlib import Path

from reporting import pictures, script
from reporting.colours import colors
from reporting.errors import ReportError


def fail(message):
    sys.exit(f"plot_bench.py: error: {message}")


def read_rows(path):
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restval=""))
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}")
    except (UnicodeDecodeError, csv.Error) as error:
        fail(f"{path} is no CSV file: {error}")
    if not rows or not {"batch_per_rank", "removed", "split_size", "scaling", "predicted_efficiency"} & set(rows[0]):
        fail(f"{path} holds no rows of `ringtrain predict` or `ringtrain bench utilisation|components|split` with `--csv {path}`, or of `make simulate`")
    return rows


def read_all(given):
    """Maps a name for each file to its rows. A name is as much of the end of the path as tells the files apart."""
    paths = list(dict.fromkeys(map(os.path.abspath, given)))
    parts = [Path(path.removesuffix(".csv")).parts for path in paths]
    length = next((n for n in range(1, max(map(len, parts))) if len({own[-n:] for own in parts}) == len(parts)), None)
    return {"/".join(own[-length:]) if length else path: read_rows(path) for path, own in zip(paths, parts)}


def pyplot():
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    return plt


def draw_utilisation(tables):
    plt = pyplot()
    figure, (rate, share, memory) = plt.subplots(3, 1, figsize=(8, 10), sharex=True)
    for color, (name, rows) in zip(colors(len(tables)), tables.items()):
        fit = [r for r in rows if r["fits"] == "yes"]
        batches = [int(r["batch_per_rank"]) for r in fit]
        first = rows[0]
        ranks = "1 rank" if first["ranks"] == "1" else f"{first['ranks']} ranks"
        label = f"{first['model']}, {first['image_size']} px, {first['precision']}, {ranks} x {first['threads']} threads"
        label = label if len(tables) == 1 else f"{name}: {label}"
        rate.plot(batches, [float(r["samples_per_second"]) for r in fit], "o-", color=color, label=label)
        share.plot(batches, [100 * float(r["share_of_matrix_rate"]) for r in fit], "o-", color=color,
                   label=f"100 % = {float(first['matrix_gflops']):.0f} GFLOP/s a rank (dense layers)")
        memory.plot(batches, [float(r["memory_mib"]) for r in fit], "o-", color=color, label="of a rank")
        memory.axhline(float(first["limit_mib"]), color=color, linestyle="--", linewidth=1, label=f"limit, {float(first['limit_mib']):.0f} MiB")
        over = [r for r in rows if r["fits"] == "no"]
        if over:
            # With memory.recompute: auto, the memory of a batch that does not fit is not known.
            memory.plot([int(r["batch_per_rank"]) for r in over], [float(r["memory_mib"] or r["limit_mib"]) for r in over],
                        "x", color="red", markersize=9, label=f"{', '.join(r['batch_per_rank'] for r in over)} does not fit")
    for axis, text in ((rate, "samples per second"), (share, "% of the matrix rate"), (memory, "MiB")):
        axis.set_ylabel(text)
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    share.set_ylim(bottom=0)
    memory.set_yscale("log")
    memory.set_xlabel("samples per rank and step")
    rate.set_title("Training steps of growing batches")
    return figure


def draw_components(rows):
    plt = pyplot()
    figure, (rate, cost) = plt.subplots(1, 2, figsize=(11, 4.5))
    names = [r["removed"] for r in rows]
    shades = ["0.5", *colors(len(rows) - 1)]
    bars = rate.barh(names, [float(r["samples_per_second"]) for r in rows], color=shades)
    rate.bar_label(bars, fmt="%.1f", padding=3)
    rate.set_xlabel("samples per second")
    rate.set_ylabel("removed")
    costs = [100 * float(r["share_of_step"]) for r in rows[1:]]
    bars = cost.barh(names[1:], costs, color=shades[1:])
    cost.bar_label(bars, fmt="%.1f %%", padding=3)
    cost.axvline(0, color="black", linewidth=0.8)
    cost.set_xlabel("% by which a step is shorter without it")
    for axis in (rate, cost):
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
        axis.margins(x=0.18)
    first = rows[0]
    ranks = "1 rank" if first["ranks"] == "1" else f"{first['ranks']} ranks"
    figure.suptitle(f"{first['model']}, {first['image_size']} px, {first['precision']}, batch {first['global_batch']}, "
                    f"{ranks} x ({first['threads']} computing + {first['loader_threads']} loading) threads")
    return figure


def draw_split(rows):
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(9, 5))
    ways = list(dict.fromkeys(r["cuts"] for r in rows))
    for color, cuts in zip(colors(len(ways)), ways):
        line = [r for r in rows if r["cuts"] == cuts]
        axis.plot([int(r["split_size"]) for r in line], [float(r["samples_per_second"]) for r in line], "o-", color=color,
                  label=f"cut before {cuts.replace(' ', ', ')}")
    best = max(rows, key=lambda r: float(r["samples_per_second"]))
    axis.plot(int(best["split_size"]), float(best["samples_per_second"]), "o", markersize=14, fillstyle="none",
              color="black", label="fastest")
    sizes = sorted({int(r["split_size"]) for r in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_xlabel("split size (samples of a micro-batch)")
    axis.set_ylabel("samples per second")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    axis.set_title(f"{best['experiment']}: {best['stages']} stages on {best['ranks']} ranks, {best['schedule']}")
    return figure


def draw_predicted(rows):
    plt = pyplot()
    figure, axes = plt.subplot_mosaic([["rate", "share"], ["legend", "legend"]], figsize=(11, 5.5),
                                      gridspec_kw={"height_ratios": [6, 1]})
    rate, share = axes["rate"], axes["share"]
    words = {"strong": "the experiment's batch", "weak": "the batch grows with the ranks"}
    for color, scaling in zip(("C3", "C0"), words):
        for style, sums, column_of_sums, value in (("-", "", "chosen", "true"),
                                                   ("--", ", hierarchical sums", "topology", "hierarchical")):
            line = [r for r in rows if (r["scaling"], r[column_of_sums]) == (scaling, value)]
            if not line:
                continue
            ranks = [int(r["ranks"]) for r in line]
            for axis, column, unit in ((rate, "samples_per_second", 1), (share, "efficiency", 100)):
                values = [unit * float(r[column]) for r in line]
                axis.plot(ranks, values, style, color=color, label=words[scaling] + sums)
                if column_of_sums == "chosen":  # converts the range of the step's time to a range of this column
                    low, high = ([v * float(r["step_seconds"]) / float(r[f"step_seconds_{end}"]) for v, r in zip(values, line)]
                                 for end in ("high", "low"))
                    axis.fill_between(ranks, low, high, color=color, alpha=0.15, linewidth=0)
    measured = [r for r in rows if r["scaling"] == "measured"]
    if measured:
        rate.plot([int(r["ranks"]) for r in measured], [float(r["samples_per_second"]) for r in measured], "o", color="black",
                  label="measured")
    for axis in (rate, share):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("ranks")
        axis.grid(alpha=0.3)
    rate.set_yscale("log")
    rate.set_ylabel("samples per second")
    share.set_ylim(bottom=0)
    share.set_ylabel("efficiency: % of the samples/s of as many single ranks")
    axes["legend"].axis("off")
    axes["legend"].legend(*rate.get_legend_handles_labels(), loc="center", ncols=3, fontsize="small")
    return figure


# When a setting has several rows, the last one is drawn.
def draw_simulated(rows):
    steps = sorted((r for r in rows if r["what"] == "step"), key=lambda r: int(r["ranks"]))
    if not steps:
        fail("no row is a whole step; expected rows of `make simulate WHAT=step ARGS='--csv FILE'`")
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(8, 5))
    simulated = lambda r: (r["topology"].replace("_", " "), float(r["look_us"]))
    for topology, look in dict.fromkeys(map(simulated, steps)):
        line = {int(r["ranks"]): 100 * float(r["efficiency"]) for r in steps if simulated(r) == (topology, look)}
        looks = f"every {look / 1e3:g} ms" if look > 0 else "at watermarks only"
        axis.plot(list(line), list(line.values()), "o-", label=f"simulated, {topology}, looks at messages {looks}")
    for spare_core, words in (("1", "sums beside the computing"), ("0", "sums by the computing core")):
        once = {int(r["ranks"]): 100 * float(r["predicted_efficiency"]) for r in steps if r["spare_core"] == spare_core}
        if once:
            axis.plot(list(once), list(once.values()), "s--", label=f"ringtrain predict, {words}")
    axis.set_xscale("log", base=2)
    ticks = sorted({int(r["ranks"]) for r in steps})
    axis.set_xticks(ticks, map(str, ticks))
    axis.minorticks_off()
    axis.set_ylim(0, 105)
    axis.set_xlabel(f"ranks, {steps[0]['ranks_per_node']} a node")
    axis.set_ylabel("% of one rank's samples/s, a rank")
    axis.grid(alpha=0.3)
    axis.legend()
    axis.set_title("ResNet-50, as many samples on each rank: efficiency of a training step")
    return figure


# Maps a column that only one kind of table has to the function that draws this kind.
DRAWN_ALONE = {"removed": draw_components, "split_size": draw_split, "scaling": draw_predicted, "predicted_efficiency": draw_simulated}


def main():
    from reporting.interpreter import with_modules
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", metavar="FILE.csv")
    parser.add_argument("-o", "--output", default="bench.png", help="the picture to write [bench.png]")
    arguments = parser.parse_args()
    with_modules("matplotlib")
    tables = read_all(arguments.tables)
    alone = [(draw, rows) for rows in tables.values() for column, draw in DRAWN_ALONE.items() if column in rows[0]]
    if alone and len(tables) > 1:
        fail("tables of components, of split sizes or of predictions are drawn from one file alone")
    try:
        figure = alone[0][0](alone[0][1]) if alone else draw_utilisation(tables)
    except KeyError as error:
        fail(f"{', '.join(arguments.tables)}: there is no column {error}; was the table changed?")
    except ValueError as error:  # a cell that is no number
        fail(f"{', '.join(arguments.tables)}: {error}; was the table changed?")
    figure.tight_layout()
    try:
        pictures.save(figure, arguments.output)
    except ReportError as error:
        fail(error)
    except (OSError, ValueError) as error:  # a ValueError says that there is no format of this name's ending
        fail(f"{arguments.output} cannot be written: {getattr(error, 'strerror', None) or error}")


if __name__ == "__main__":
    script.run(main)
