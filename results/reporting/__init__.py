"""The modules that the scripts in results/ share. For a report, begin reading with sections.py.

script.py runs the main() of each script. runs.py reads run folders; checked.py and experiments.py check the types of
what they hold. cells.py groups runs, and keys.py says which keys decide what is learned. measures.py has
final values and the cost to reach a target. figures_*.py and tables.py make the figures and tables, style.py draws and
writes them, plain.py is about their letters and numbers, and page.py writes the page. references.py and verdict.py compare runs with published numbers. following.py,
trackers.py, the to_*.py files and wandb_file.py do the work of follow.py. branches.py, halving.py and fit.py compute
what the report shows of branches, of searches and of critical batches. mlperf.py runs MLPerf's checker."""

import sys

# A path on Linux may hold any bytes. Those that are not UTF-8 are printed as \\xe9 and the like.
for _stream in (sys.stdout, sys.stderr):
    if hasattr(_stream, "reconfigure"):
        _stream.reconfigure(errors="backslashreplace")
