#!/usr/bin/env python3
"""Draws the curves of runs together, as a PNG.

  results/plot.py results/names/latest -o loss.png
  results/plot.py results/names/* --x epoch --log -o compare.png
  results/plot.py run1 run2 --y lr grad_norm

RUN is a run's folder or its metrics.jsonl. Lines show the steps: smoothed in full colour, unsmoothed in pale colour.
Dots show evaluations.
"""
import argparse
import sys
from pathlib import Path

from reporting import pictures, script
from reporting.colours import colors
from reporting.errors import ReportError
from reporting.records import is_number, read_records

X_AXES = {"step": "step (finished updates)", "epoch": "epoch", "samples": "samples", "seconds": "seconds of training"}
Y_AXES = {"loss": "loss (nats)", "validation_loss": "loss (nats)", "validation_accuracy": "validation accuracy",
          "lr": "learning rate", "grad_norm": "gradient norm", "samples_per_second": "samples per second",
          "share_of_bound": "share of the step's bound",
          "bubble_seconds": "bubble (seconds of a step)", "boundary_seconds": "transfers at the cuts (seconds of a step)",
          "server_wait_seconds": "waiting for servers (seconds of a step)",
          "worker_wait_seconds": "server waiting for workers (seconds of an update)", "staleness": "staleness (updates)",
          "sent_bytes": "bytes of a step by message", "shared_bytes": "bytes of a step through shared memory"}


def fail(message):
    sys.exit(f"plot.py: error: {message}")


class NoRun(Exception):
    """Raised for a path that is no run. The text says what the path lacks."""


def metrics_file(run):
    path = Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise NoRun(f"{path} does not exist; a run is a folder with a metrics.jsonl (bin/ringtrain train writes one)")
    if path.suffix != ".jsonl":
        raise NoRun(f"{path} is neither a run's folder nor its metrics.jsonl")
    return path


def read_run(path):
    """Returns the records of a run, with their seconds."""
    records = list(read_records(path, lambda text: print(f"plot.py: warning: {text}", file=sys.stderr)))
    if not records:
        raise NoRun(f"{path} has no records: did the run finish a step?")
    add_seconds(records)
    return records


def read_all(given):
    """Maps each path to its records. Leaves out paths that are no run, such as a study.json in `results/NAME/*`, with a
    warning."""
    runs, problems = {}, []
    for name in given:
        try:
            path = metrics_file(name)
            if path.resolve() not in map(Path.resolve, runs):
                runs[path] = read_run(path)
        except NoRun as problem:
            problems.append(str(problem))
        except OSError as error:
            problems.append(f"{error.filename}: {error.strerror}")
    if not runs:
        fail(problems[0])
    for problem in problems:
        print(f"plot.py: warning: {problem}; left out", file=sys.stderr)
    return runs


def add_seconds(records):
    """Gives each record without elapsed_seconds, such as an evaluation, that of the record before it."""
    elapsed = 0.0
    for record in records:
        elapsed = record.get("elapsed_seconds", elapsed)
        record["elapsed_seconds"] = elapsed


def points(records, x, y):
    key = "elapsed_seconds" if x == "seconds" else x
    pairs = [(r[key], r[y]) for r in records if is_number(r.get(key)) and is_number(r.get(y))]
    return [p[0] for p in pairs], [p[1] for p in pairs]


def smoothed(values, width):
    """Returns for each value the mean of it and the values before it, `width` values in all. The sums begin anew after
    `width` values, so that the rounding error of a huge value is gone with it."""
    out = []
    for begin in range(0, len(values), width):
        tails, head = [0.0], 0.0  # tails[n]: the sum of the last n values before this block
        for value in reversed(values[max(0, begin - width):begin]):
            tails.append(tails[-1] + value)
        for i, value in enumerate(values[begin:begin + width], 1):
            head += value
            count = min(begin + i, width)
            out.append((tails[count - i] + head) / count)
    return out


def label(path, all_paths):
    """Returns a name for a run: the shortest end of its folder's path that no other run shares."""
    folders = [p.resolve().parent.parts for p in all_paths]
    own = path.resolve().parent.parts
    for length in range(1, len(own) + 1):
        if sum(folder[-length:] == own[-length:] for folder in folders) == 1 and length >= min(2, len(own)):
            return "/".join(own[-length:])
    return str(path)


def add_legend(axis):
    """Puts a small legend inside the axes. A larger one would cover the curves, so it goes to the right of them.
    Returns the number of columns that the legend has there."""
    from reporting import plain
    lines = plain.named(axis)
    labels = [line.get_label() for line in lines]
    if len(lines) <= 6:
        plain.add_legend(axis, lines, labels, fontsize="small")
        return 0
    columns = -(-len(lines) // 30)
    plain.add_legend(axis, lines, labels, fontsize="x-small", loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, ncols=columns)
    return columns


def draw(runs, x, panels, log, smooth):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from reporting import plain

    figure, axes = plt.subplots(len(panels), 1, figsize=(8, 1 + 4 * len(panels)), squeeze=False, sharex=True)
    drawn = columns = 0
    for axis, panel in zip(axes[:, 0], panels):
        for color, (name, records) in zip(colors(len(runs)), runs.items()):
            for y in panel:
                xs, ys = points(records, x, y)
                drawn += len(xs)
                if not xs:
                    continue
                if y.startswith("validation"):
                    axis.plot(xs, ys, "o--", color=color, markersize=4, linewidth=1, label=f"{name}: {y.replace('_', ' ')}")
                    continue
                width = smooth or max(1, len(ys) // 100)
                if width > 1:
                    axis.plot(xs, ys, color=color, alpha=0.2, linewidth=0.6)
                axis.plot(xs, smoothed(ys, width), color=color, linewidth=1.4, label=f"{name}: {y.replace('_', ' ')}")
        axis.set_ylabel(Y_AXES.get(panel[0], panel[0]))
        if log:
            axis.set_yscale("log")
            plain.log_ticks(axis.yaxis, axis.get_ylim())
        axis.grid(alpha=0.3)
        if axis.has_data():
            columns = max(columns, add_legend(axis))
    if not drawn:
        fail(f"none of the runs has {' or '.join(y for panel in panels for y in panel)} against {x}")
    axes[-1, 0].set_xlabel(X_AXES[x])
    figure.set_figwidth(8 + 3 * columns)
    figure.tight_layout()
    return figure


def main():
    from reporting.interpreter import with_modules
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders or metrics.jsonl files")
    parser.add_argument("-o", "--output", default="loss.png", help="the PNG to write [loss.png]")
    parser.add_argument("--x", choices=X_AXES, default="step", help="[step]")
    parser.add_argument("--y", nargs="+", metavar="KEY", help="keys of metrics.jsonl, a panel each, instead of the losses")
    parser.add_argument("--log", action="store_true", help="logarithmic y axis")
    parser.add_argument("--smooth", type=int, default=0, metavar="STEPS", help="mean over so many steps [a hundredth of the run]")
    arguments = parser.parse_args()
    if arguments.smooth < 0:
        parser.error("--smooth must be 0 or more")
    with_modules("matplotlib")
    found = read_all(arguments.runs)
    runs = {label(path, list(found)): records for path, records in found.items()}
    panels = [[y] for y in arguments.y] if arguments.y else [["loss", "validation_loss"]]
    figure = draw(runs, arguments.x, panels, arguments.log, arguments.smooth)
    try:
        pictures.save(figure, arguments.output)
    except ReportError as error:
        fail(error)
    except (OSError, ValueError) as error:  # a ValueError says that there is no format of this name's ending
        fail(f"{arguments.output} cannot be written: {getattr(error, 'strerror', None) or error}")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    script.run(main)
