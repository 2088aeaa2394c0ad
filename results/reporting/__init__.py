"""The modules that the scripts in results/ share. For a report, begin reading with sections.py.

runs.py reads run folders. cells.py groups runs, and keys.py says which keys decide what is learned. measures.py has
final values and the cost to reach a target. figures_*.py and tables.py make the figures and tables, style.py draws and
writes them, and page.py writes the page. references.py and verdict.py compare runs with published numbers. following.py,
trackers.py and the to_*.py files are the work of follow.py."""
