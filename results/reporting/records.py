"""Reads the lines of a metrics.jsonl: a record of an update or of an evaluation each."""

import json


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse(line):
    """Returns the record in a line of text or bytes, and what is wrong with the line ("": nothing). The record is None if
    something is wrong or the line is empty."""
    if not line.strip():
        return None, ""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return None, f"not JSON ({error.msg})"
    except UnicodeDecodeError:
        return None, "not UTF-8"
    if not isinstance(record, dict) or not is_number(record.get("step")):
        return None, "no number 'step'"
    return record, ""


def read_records(path, warn):
    """Yields the records of a file. Calls warn(text) for a broken line, which a killed run may leave at the end, and skips
    it."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            record, problem = parse(line)
            if problem:
                warn(f"{path}, line {number}: {problem}; left out")
            elif record:
                yield record
