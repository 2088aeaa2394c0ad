"""The modules of the scripts in results/, such as report.py and table.py. Each file has one subject."""
