"""Reads the lines of a metrics.jsonl: a record of an update or of an evaluation each."""

import json
import math

# An evaluation without a loss that is finite has null.
NUMBERS = ("epoch", "samples", "elapsed_seconds", "evaluation_seconds")
NUMBERS_OR_NULL = ("loss", "validation_loss", "validation_accuracy")


def is_number(value):
    """Returns whether a value is a number that fits into 64 bits."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**64
    return isinstance(value, float)


def is_finite(value):
    return is_number(value) and math.isfinite(value)


def problem_of(record, needed):
    """Returns what the record lacks or has wrong, or "". It needs these finite numbers."""
    if not isinstance(record, dict):
        return "no JSON object"
    for key in needed:
        if not is_finite(record.get(key)):
            return f"no number '{key}'"
    for key in NUMBERS:
        if key in record and not is_finite(record[key]):
            return f"'{key}' is no number"
    for key in NUMBERS_OR_NULL:
        if record.get(key) is not None and not is_number(record[key]):
            return f"'{key}' is no number"
    return ""


def parse(line, needed=("step",)):
    """Returns the record in a line of text or bytes, and what is wrong with the line ("": nothing). The record is None if
    something is wrong or the line is empty. `needed` has the keys of numbers that the record must have."""
    if not line.strip():
        return None, ""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return None, f"not JSON ({error.msg})"
    except UnicodeDecodeError:
        return None, "not UTF-8"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or thousands of brackets
        return None, f"not JSON ({error})"
    problem = problem_of(record, needed)
    return (None, problem) if problem else (record, "")


def read_records(path, warn, needed=("step",)):
    """Yields the records of a file. Calls warn(text) for a broken line, which a killed run may leave at the end, and skips
    it."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            record, problem = parse(line, needed)
            if problem:
                warn(f"{path}, line {number}: {problem}; left out")
            elif record:
                yield record
