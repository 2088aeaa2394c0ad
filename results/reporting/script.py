"""Runs the main() of a script. An error of the system, also of its output, ends the script with one line."""

import os
import sys


def give_up_output():
    """Sends what is left in the buffer nowhere. Python would write it again at the end, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(main):
    script = os.path.basename(sys.argv[0])
    if sys.stderr is None:  # print() would write warnings to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout is None:
        sys.exit(f"{script}: error: standard output is closed; open it, or send it to a file: > FILE")
    end, unnamed = None, False
    try:
        main()
    except SystemExit as asked:
        end = asked
    except BrokenPipeError:
        give_up_output()
        sys.exit(1)
    except OSError as error:
        end, unnamed = SystemExit(f"{script}: error: {error.filename or 'output'}: {error.strerror or error}"), not error.filename
    except KeyboardInterrupt:
        end = SystemExit(130)
    try:
        sys.stdout.flush()
    except OSError as error:
        give_up_output()
        if not end or not end.code or unnamed:
            is_pipe = isinstance(error, BrokenPipeError)
            end = SystemExit(1 if is_pipe else f"{script}: error: standard output: {error.strerror}")
    if end:
        raise end
