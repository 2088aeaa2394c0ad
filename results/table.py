#!/usr/bin/env python3
"""Prints runs as a table, or as CSV for pandas: pandas.read_csv("trials.csv").

results/table.py results/names_grid
results/table.py results/names/* --csv -o trials.csv
results/table.py results/names_grid --keys trial peak_rate validation_loss --sort validation_loss
"""

import argparse
import csv
import sys

from reporting import script
from reporting.interpreter import with_modules


def columns_of(rows, wanted, fail):
    """Returns the wanted columns, or all columns that have a value in some row. Calls fail() for an unknown column."""
    known = list(dict.fromkeys(key for row in rows for key in row))
    unknown = [key for key in wanted or [] if key not in known]
    if unknown:
        fail(f"there is no column {unknown[0]}; there are {', '.join(known)}")
    return wanted or [key for key in known if any(row.get(key) not in (None, "") for row in rows)]


def columns_in(start):
    """Returns the columns of a CSV file that begins with these bytes."""
    lines = start.decode(errors="replace").splitlines()
    return next(csv.reader(lines[:1]), [])


def in_order(rows, key):
    """Returns the rows sorted by a column, numbers before texts. Rows without a value come last."""

    def place(row):
        value = row.get(key)
        return (2, 0) if value in (None, "") else (isinstance(value, str), value)

    return sorted(rows, key=place)


def print_table(rows, columns, text_of):
    cells = [columns] + [[text_of(row.get(c)) or "-" for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    is_number = [all(isinstance(row.get(c), (int, float, type(None))) for row in rows) for c in columns]
    for line in cells:
        print("  ".join(t.rjust(w) if n else t.ljust(w) for t, w, n in zip(line, widths, is_number)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "studies", nargs="+", metavar="STUDY", help="folders of runs, run folders, or metrics.jsonl files"
    )
    parser.add_argument("--csv", action="store_true", help="CSV, numbers in full, every column")
    parser.add_argument("-o", "--output", default="/dev/stdout", help="where the CSV goes [the terminal]")
    parser.add_argument("--keys", nargs="+", metavar="COLUMN", help="prints only these columns")
    parser.add_argument("--sort", metavar="COLUMN", help="sorts by this column, the smallest value first")
    parser.add_argument("--target", nargs=2, metavar=("METRIC", "VALUE"), help="adds columns: the steps, samples and seconds in which each run reached this target")
    arguments = parser.parse_args()

    def fail(message):
        sys.exit(f"table.py: error: {message}")

    with_modules("yaml", "numpy", "scipy", "matplotlib")
    from reporting import errors, measures, outputs, page, runs, style, tables

    try:
        target = measures.parse_target(arguments.target) if arguments.target else None
        rows = tables.trials(runs.read_all(arguments.studies), target).rows
        if arguments.sort:
            columns_of(rows, [arguments.sort], fail)
            rows = in_order(rows, arguments.sort)
        columns = columns_of(rows, arguments.keys, fail)
        if arguments.csv:
            known = {key for row in rows for key in row}
            outputs.expect(
                arguments.output, "-o", "table of table.py", lambda start: known.issuperset(columns_in(start))
            )
            kept = arguments.keys or list(dict.fromkeys(key for row in rows for key in row))
            text = style.csv_text([{key: row.get(key) for key in kept} for row in rows])
            outputs.write(arguments.output, text.encode())
        else:
            print_table(rows, columns, page.cell_text)
    except errors.ReportError as error:
        fail(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"{error.filename or arguments.output}: {error.strerror}")


if __name__ == "__main__":
    script.run(main)
