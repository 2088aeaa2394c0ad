#!/usr/bin/env python3
"""Runs all checks that need a GPU: tests/gpu/check.sh [--call 1|2] [--resume FILE] [--dry] [--only NAME] [--list]

  --call 1        the first call: a gate, kernels, CUTLASS, recurrent layers, graphs, images/s, one search of fusions and
                  plans, characters/s, the kernel table, PyTorch; at most 405 s
  --call 2        the second call: what the first one did not pass, images/s beside PyTorch, a longer search, and what
                  else there is time for (ranks, memory, resume, sanitizer); at most 225 s
  --resume FILE   FILE is the check-N.json of an earlier call. What it passed is not run again, what it switched off stays
                  off until its check passes, and the search.tar.gz and tables.tar.gz beside it are taken
  --dry           the same checks in the same order with the host device and the CPU instead of the GPU, on narrow
                  networks; this tests the checks and says nothing about speed
  --seconds N     another limit of the call, for whoever has more time

The clock starts at CHECK_STARTED, in seconds since the epoch, or now. With the command
`export CHECK_STARTED=$(date +%s); ...unpack...; tests/gpu/check.sh` unpacking counts, too. Every check has its own
time limit. The time that it leaves goes to the end of the list. A check that fails does not stop the others, except for
those that need it. What is broken and can be left out (CUTLASS, a recurrent algorithm, graphs) is switched off for the
later checks, whose lines say so. After a check that ran out of time, a process of five seconds asks whether the device
still answers.

The kit's plans are for one version of cuDNN. If a Python package has that version, the checks use it, unless
RINGTRAIN_CUDA_LIBRARIES is set (check_libraries.py).

Files go to $OUT (results/gpu/check when it is not set), at most 6: check-CALL.json, .md and .log, tables.tar.gz, and
search.tar.gz in up to two pieces. They are complete after every check. Plans are kept in results/gpu/plans for the next
call on the same machine. A kit's plans are copied there first.

Exit code 0: every check passed, or was left out by --dry. 1: a check failed or ran out of time. 2: a check was not run,
and a line says why. 3: the call ended early, because the gate found that CUDA, cuDNN or graphs do not work, or because
the device no longer answers; the last lines say why, and the rest was not run. Give the machine back, and repair that.
The checks use the programs of the folder that contains tests/gpu. That is a checkout after `make all tests
build/bench/cuda_commands`, a bundle, or a kit (`make gpu-kit`).
"""
import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_calls  # noqa: E402
import check_libraries  # noqa: E402
import check_report  # noqa: E402
import check_run  # noqa: E402
import kept_search  # noqa: E402
from background import Background  # noqa: E402
from check_schedule import Clock, Processes, count, exit_code, run_checks  # noqa: E402

SHOWN_LINES = 12  # of a check that failed; the log has all
DRY_PATIENCE = 4  # times longer limits: a dry run shows the order and the results, and its machine may be slow
LONGEST_BEFORE_SECONDS = 300  # CHECK_STARTED is of another command when it is longer ago


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", type=int, choices=list(check_calls.CALL_SECONDS), default=1)
    parser.add_argument("--resume", metavar="FILE")
    parser.add_argument("--dry", action="store_true", default=os.environ.get("RINGTRAIN_TEST_DEVICE") == "host")
    parser.add_argument("--only", default="", metavar="NAME", help="checks whose part or name contains this")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def started():
    """When the command began. Raises ValueError with advice."""
    text = os.environ.get("CHECK_STARTED") or str(time.time())
    try:
        seconds = time.time() - float(text)
    except ValueError:
        raise ValueError(f"CHECK_STARTED is '{text}'; expected seconds since the epoch, as `date +%s` prints them") from None
    if not -2 <= seconds <= LONGEST_BEFORE_SECONDS:
        raise ValueError(f"CHECK_STARTED was {seconds:.0f} s ago: set it to $(date +%s) at the beginning of this command")
    return float(text)


def version():
    program = check_run.RINGTRAIN
    code, text = Processes().run([str(program), "--version"], 10, dict(os.environ), check_run.ROOT) if program.exists() else (1, "")
    return text.splitlines()[0] if code == 0 and text else "not built"


def take_shipped_plans(run):
    """Copies a kit's plans to the folder of plans. What is there already stays."""
    if run.dry or not check_run.SHIPPED_PLANS.is_dir():
        return
    for path in check_run.SHIPPED_PLANS.rglob("*"):
        target = run.plans / path.relative_to(check_run.SHIPPED_PLANS)
        if path.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def take_earlier(run, resumed, file):
    """Takes what an earlier call has left. Returns a line about it."""
    folder = Path(file).resolve().parent
    run.before, run.switched_off = resumed
    check_report.take_tables(folder, run)
    taken = "no search"
    if kept_search.pieces_in(folder):
        taken = f"{kept_search.unpack(folder, run.plans)} files of a search"
        if folder != run.out:
            for piece in kept_search.pieces_in(folder):
                shutil.copy(piece, run.out)
    passed = sum(result["status"] == "passed" for result in run.before)
    off = "".join(f"; off: {what} ({why})" for what, why in run.switched_off.items())
    other = check_libraries.opened("\n".join(line for result in run.before for line in result.get("said", [])))[0]
    if run.cudnn and run.cudnn.version and other not in ("", run.cudnn.version):
        off += f"; that call used cuDNN {other}, so its plans and its search do not count for {run.cudnn.version}: do call 1 again"
    return f"resumed from {file}: {passed} checks have passed, {taken}{off}"


def patience_of(options):
    return DRY_PATIENCE if options.dry else 1


def call_seconds(options):
    return options.seconds or patience_of(options) * check_calls.CALL_SECONDS[options.call]


def run_call(options, checks, head, run):
    """Runs the checks of a call. Returns their results."""
    results = run.results

    def report(result):
        results.append(result)
        print(check_report.line_of(result), flush=True)
        gate = result["name"] == check_calls.GATE
        if gate or result["status"] in ("failed", "out of time"):
            for line in result.get("said", [])[0 if gate else -SHOWN_LINES:]:
                print(f"     | {line}", flush=True)
        check_report.write_report(head, results, run)

    patience = patience_of(options)
    checks = [check._replace(seconds=patience * check.seconds) for check in checks]
    run.end = limit = call_seconds(options)
    parts = {check_calls.RESUMED: patience * check_calls.RESUMED_SECONDS} if not options.seconds else {}
    run_checks(checks, run, run.clock, limit, report, run.probe, run.before, parts)
    return results


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything that was started is ended, too
    options = parse_arguments()
    try:
        resumed = check_report.read_results(options.resume) if options.resume else ([], {})
        clock = Clock(started())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    checks = [c for c in check_calls.checks_of(options.call, resumed[0]) if options.only.lower() in f"{c.part}: {c.name}".lower()]
    if options.list or not checks:
        for check in checks:
            print(f"call {options.call}  {check.seconds:4d} s  {check.part}: {check.name}")
        return 0 if checks else 1

    out = Path(os.environ.get("OUT") or check_run.ROOT / "results/gpu/check").resolve()
    out.mkdir(parents=True, exist_ok=True)
    head = {"call": options.call, "command": " ".join(["tests/gpu/check.sh", *sys.argv[1:]]), "version": version(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    scratch = Path(tempfile.mkdtemp(prefix="ringtrain-check-"))
    (scratch / "tables").mkdir()
    with open(out / f"check-{options.call}.log", "w", buffering=1) as log, Background(log) as background:
        try:
            cudnn = None
            if not options.dry:  # before all else, because the driver and the libraries take seconds
                background.record_clocks(scratch / "tables" / f"clocks-{options.call}.csv")
                cudnn = check_libraries.choose(check_run.SHIPPED_PLANS)
                check_libraries.use(cudnn)
                background.read_libraries()
            background.make_data(options.dry)
            run = check_run.Run(out, log, Processes(), clock, options.dry, scratch=scratch, cudnn=cudnn)
            head["gpu"] = run.gpu or "none"
            if cudnn:
                head["cudnn"] = cudnn.line
                print(f"cuDNN: {cudnn.line}", flush=True)
            print(f"GPU: {head['gpu']}; {clock.now():.0f} s of {call_seconds(options):.0f} s have passed", flush=True)
            take_shipped_plans(run)
            if options.resume:
                print(take_earlier(run, resumed, options.resume), flush=True)
            elif options.call == 2:
                check_report.take_tables(out, run)
            check_report.remove_old(run.tables, checks)
            results = run_call(options, checks, head, run)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    for line in check_report.rate_lines(results, run):
        print(line)
    if options.call == 1:
        print(f"the next call: tests/gpu/check.sh --call 2 --resume {out / 'check-1.json'}")
    code = exit_code(results)
    ended = next((result["ends_call"] for result in results if result.get("ends_call")), "")
    if ended:
        print(f"the call ended early: {ended}")
    print("check: " + ", ".join(f"{n} {status}" for status, n in count(results).items()) + f"; {clock.now():.0f} s; exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
