#!/usr/bin/env python3
"""Runs all checks that need a GPU: tests/gpu/check.sh [--call 1|2] [--take FOLDER] [--dry] [--only NAME] [--list]

  --call 1        the first ten minutes with a GPU, the most valuable checks first: kernels and operations, graphs, one
                  search for fusions and plans, images/s, characters/s, PyTorch in CUDA graphs, the kernel table
  --call 2        the next ten minutes: ranks on one GPU, abort, resume, memory, sanitizer, the other comparisons
  --take FOLDER   use the results of an earlier call's search (its search.tar.gz), so that no part has to search
  --dry           the same checks in the same order with the host device and the CPU instead of the GPU, on narrow
                  networks; this tests the checks and says nothing about speed

Every check has its own time limit, and its failure does not stop the others. The limits of a call add up to at most 570
s. Files go to $OUT (results/gpu/check when it is not set). A call writes at most 8: check-CALL.json, .md and .log,
device.json, operations.csv, kernels.csv, search.tar.gz. They are complete after every check. A call keeps what only the
other call writes. Plans are kept in results/gpu/plans for the next call on the same machine.
Exit code 0: every check passed, or was left out by --dry. 1: a check failed or ran out of time. 2: a check was not
run, and a line says why.
The checks use the programs of the folder that contains tests/gpu. That is a checkout after `make all tests
build/bench/cuda_commands`, or a bundle.
"""
import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_parts  # noqa: E402
import kept_search  # noqa: E402
from check_schedule import Clock, Processes, count, exit_code, run_checks  # noqa: E402

CALL_SECONDS = 570


def remove_old(out, checks):
    """Removes what an earlier run of these checks has left in the files that checks add to."""
    names, parts = {check.name for check in checks}, {check.part for check in checks}
    if "device description" in names:
        (out / "device.json").unlink(missing_ok=True)
    if check_parts.TABLE in parts:
        (out / "kernels.csv").unlink(missing_ok=True)
    table = out / "operations.csv"  # a row begins with an operation's kind and precision
    if table.exists():
        rows = table.read_text().splitlines(keepends=True)
        table.write_text("".join(row for row in rows if f"operations {' '.join(row.split()[1:2])}" not in names))


def line_of(result):
    """Returns one check's line of the table, followed by its output where that matters."""
    tests = ", ".join(f"{n} {kind}" for kind, n in result.get("tests", {}).items() if n)
    more = "; ".join(filter(None, [tests, result.get("why", ""), *result.get("notes", [])]))
    line = f"{result['status']:<12} {result['seconds']:6.1f} of {result['limit_seconds']:3d} s  {result['part']}: {result['name']}"
    return line + (f"  ({more})" if more else "")


def rate_lines(results):
    """Lists the rates of both sides next to each other. For a side that failed it gives the reason."""
    rates = {}
    for rate in (r for result in results for r in result.get("rates", [])):
        rates.setdefault((rate["model"], rate["batch"], rate["precision"], rate["unit"]), {})[rate["side"] + rate["input"]] = rate
    if not rates:
        return []
    lines = ["| model | batch | precision | ringtrain | JPEG input | PyTorch, CUDA graphs | ratio | bound | target | unit |", "|---" * 10 + "|"]
    for (model, batch, precision, unit), sides in rates.items():
        raw, jpeg = sides.get("ringtrainraw") or sides.get("ringtrain"), sides.get("ringtrainjpeg")
        peer = sides.get("pytorchraw") or sides.get("pytorch")
        shown = [f"{r['rate']:,.0f}" if r and r["rate"] else r["why"] if r else "-" for r in (raw, jpeg, peer)]
        any_ = raw or jpeg or peer
        ratio = f"{raw['rate'] / peer['rate']:.2f}" if raw and peer and raw["rate"] and peer["rate"] else "-"
        lines.append(f"| {model} | {batch} | {precision} | {' | '.join(shown)} | {ratio} | {any_['bound']:,.0f} | {any_['target']:,.0f} | {unit} |")
    return lines


def report_lines(head, results):
    lines = [f"# GPU checks, call {head['call']}", "", *[f"- {key}: {value}" for key, value in head.items()], ""]
    lines += ["```", *[line_of(result) for result in results], "```", ""]
    rates = rate_lines(results)
    lines += [*rates, ""] if rates else []
    for result in results:
        lines += [f"## {result['part']}: {result['name']}", "", *result["tables"], ""] if result.get("tables") else []
    return lines


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", type=int, choices=list(check_parts.CALLS), default=1)
    parser.add_argument("--take", metavar="FOLDER")
    parser.add_argument("--dry", action="store_true", default=os.environ.get("RINGTRAIN_TEST_DEVICE") == "host")
    parser.add_argument("--only", default="", metavar="NAME", help="checks whose part or name contains this")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def version():
    program = check_parts.RINGTRAIN
    code, text = Processes().run([str(program), "--version"], 10, dict(os.environ), check_parts.ROOT) if program.exists() else (1, "")
    return text.splitlines()[0] if code == 0 and text else "not built"


def main():
    options = parse_arguments()
    checks = [c for c in check_parts.CALLS[options.call] if options.only.lower() in f"{c.part}: {c.name}".lower()]
    if options.list or not checks:
        for check in checks:
            print(f"call {options.call}  {check.seconds:4d} s  {check.part}: {check.name}")
        return 0 if checks else 1

    out = Path(os.environ.get("OUT") or check_parts.ROOT / "results/gpu/check").resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not options.only:
        remove_old(out, checks)
    head = {"call": options.call, "command": " ".join(["tests/gpu/check.sh", *sys.argv[1:]]), "version": version(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with open(out / f"check-{options.call}.log", "w") as log:
        run = check_parts.Run(out, log, Processes(), Clock(), options.dry)
        if options.dry:
            run.plans = run.scratch / "plans"  # the host device's plans must not mix with a GPU's
        head["gpu"] = run.gpu or "none"
        print(f"GPU: {head['gpu']}", flush=True)
        if options.take:
            try:
                print(f"taken from {options.take}: {kept_search.unpack(options.take, run.plans)} files of a search", flush=True)
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        results = []

        def report(result):
            results.append(result)
            print(line_of(result), flush=True)
            if result["status"] in ("failed", "out of time"):
                print("\n".join("     | " + line for line in result.get("said", [])), flush=True)
            (out / f"check-{options.call}.json").write_text(json.dumps({**head, "checks": results}, indent=1) + "\n")
            (out / f"check-{options.call}.md").write_text("\n".join(report_lines(head, results)) + "\n")

        run_checks(checks, run, run.clock, CALL_SECONDS, report)
        shutil.rmtree(run.scratch, ignore_errors=True)
    print("\n".join(rate_lines(results)))
    if kept_search.pieces_in(out):
        print(f"the next call takes what was found: tests/gpu/check.sh --call 2 --take {out}")
    code = exit_code(results)
    print("check: " + ", ".join(f"{n} {status}" for status, n in count(results).items()) + f"; exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
