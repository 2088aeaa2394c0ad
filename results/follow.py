#!/usr/bin/env python3
"""Follows runs while they train, and writes their numbers to TensorBoard, Weights & Biases or an MLPerf log.

  results/follow.py results/names/latest --tensorboard events
  results/follow.py results/names_grid --wandb names      (without a key, or with WANDB_MODE=offline: into wandb/)
  results/follow.py results/resnet/run1 --mllog run1.txt --once

follow.py ends when the run has ended. In the folder of a study it follows each trial as soon as the trial begins, and
ends after the last trial of study.json. In a folder without a study.json it ends half a minute after the last run has
ended. Ctrl-C stops it at any time. When it is started again, it continues where it was and writes no step twice.
Numbers have the same names as in metrics.jsonl (results/README.md).
"""

import argparse
import os
import sys
import time
from pathlib import Path

from reporting import following, script, trackers
from reporting.errors import BadRun, ReportError

QUIET_SECONDS = 30  # without a study.json, follow.py waits this long for a further run


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN|STUDY", help="run folders, or folders of run folders")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="event files, in a folder for each run")
    parser.add_argument("--wandb", metavar="PROJECT", help="wandb project: gets one wandb run for each run, and one group for each study")
    parser.add_argument(
        "--wandb-dir",
        type=Path,
        default=Path(os.environ.get("WANDB_DIR", ".")),
        metavar="DIR",
        help="where its folder wandb/ is made [WANDB_DIR, or here]",
    )
    parser.add_argument("--mllog", type=Path, metavar="FILE", help="MLPerf's log; for a study, one log for each trial: FILE-<trial>")
    parser.add_argument("--mllog-org", default="unnamed", metavar="NAME", help="submission_org of that log [unnamed]")
    parser.add_argument("--once", action="store_true", help="write what is there now, and end")
    parser.add_argument("--interval", type=float, default=2, metavar="SECONDS", help="seconds between two reads of the runs [2]")
    arguments = parser.parse_args()
    if not (arguments.tensorboard or arguments.wandb or arguments.mllog):
        parser.error("say where to: --tensorboard DIR, --wandb PROJECT or --mllog FILE")
    if not arguments.interval > 0:
        parser.error(f"--interval {arguments.interval:g}: a number of seconds above 0 was expected")
    return arguments


def follow(source, sinks, followed, once, interval):
    """Looks at the runs again and again until they have ended. Adds each new run to `followed`, a map path ->
    Followed."""
    changed = time.monotonic()
    while True:
        for run in source.runs():
            if run.path not in followed:
                followed[run.path] = trackers.Followed(run, sinks)
                print(f"following {run.path}", flush=True)
        going = not all(one.ended for one in followed.values())
        for one in followed.values():
            try:
                one.look(once)
            except BadRun as problem:
                one.leave_out()
                print(f"follow.py: warning: {problem}; left out", file=sys.stderr)
        if going:
            changed = time.monotonic()
        if once and not followed:
            raise ReportError(f"{', '.join(map(str, source.paths))}: no run has begun there")
        if once or source.has_ended(followed, time.monotonic() - changed > QUIET_SECONDS):
            if followed and all(one.is_left_out for one in followed.values()):
                raise ReportError("none of the runs can be read")
            return
        time.sleep(interval)


def main():
    arguments = parse_arguments()
    followed = {}
    try:
        source = following.Source(arguments.runs)
        sinks = trackers.make(arguments, source)
        try:
            follow(source, sinks, followed, arguments.once, arguments.interval)
        finally:
            for one in followed.values():
                one.close()
        for one in followed.values():
            print(f"{one.run.path}: {one.words()}")
        for sentence in dict.fromkeys(s for one in followed.values() for s in one.advice()):
            print(sentence)
    except ReportError as error:
        sys.exit(f"follow.py: error: {error}")
    except OSError as error:
        sys.exit(f"follow.py: error: {error.filename or 'a file'}: {error.strerror or error}")
    except KeyboardInterrupt:
        print("stopped; the next start continues from here")
        sys.exit(130)


if __name__ == "__main__":
    script.run(main)
