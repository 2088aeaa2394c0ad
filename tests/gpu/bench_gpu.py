"""Shared by the GPU benchmarks: PyTorch's cases in one process before and after ringtrain's runs (A B B A), ringtrain's
runs on one GPU, options, and files. The tools of tests/bench do the rest."""
import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import bounds  # noqa: E402
from bench_tools import ROOT, WORK, fail, windows  # noqa: E402

WAYS = ["eager", "graphs", "compiled"]  # compiled last: it may take minutes
TIME_IS_UP = "time is up"


def make_parser(description, output):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch [this one]")
    parser.add_argument("--ringtrain", default="bin/ringtrain", help="the executable, or a bundle's start script [bin/ringtrain]")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: shows that the scripts work [cuda]")
    parser.add_argument("--tiny", action="store_true", help="sizes and times for a look at the scripts; says nothing about speed")
    parser.add_argument("--precision", choices=["bf16", "fp16", "tf32", "fp32"], action="append", help="[bf16 and fp16]")
    parser.add_argument("--batch", type=int, action="append", help="[all]")
    parser.add_argument("--side", choices=["both", "ringtrain", "pytorch"], default="both", help="one side alone, once [both]")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"ways to run PyTorch [{','.join(WAYS)}]")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--window-seconds", type=float, default=0.5)
    parser.add_argument("--warmup-seconds", type=float, default=1.0)
    parser.add_argument("--case-seconds", type=float, default=60.0, help="longest warm-up of one case of PyTorch [60]")
    parser.add_argument("--search-seconds", type=float, default=20.0, help="ringtrain's first search for fusions [20]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of ringtrain's runs, such as machine.graphs=false")
    parser.add_argument("--gpu", help="the GPU's name, which decides the bounds [as PyTorch or nvidia-smi says]")
    parser.add_argument("--minutes", type=float, default=7.0, help="minutes after which no new run is started [7]")
    parser.add_argument("--output", default=output, help=f"without .csv and .md [{output}]")
    return parser


def parse(parser):
    options = parser.parse_args()
    options.precisions = options.precision or ["bf16", "fp16"]
    options.ways = [way for way in options.ways.split(",") if way]
    options.deadline = time.monotonic() + 60 * options.minutes
    if options.tiny:
        options.windows, options.window_seconds, options.warmup_seconds = 3, 1e-6, 0.0
    if shutil.which(options.ringtrain) is None and not (ROOT / options.ringtrain).exists():
        fail(f"{options.ringtrain} does not exist: make, or name it with --ringtrain")
    WORK.mkdir(parents=True, exist_ok=True)
    if options.gpu is None:
        options.gpu = name_of_gpu() if options.device == "cuda" else ""
    return options


def name_of_gpu():
    """The name of the first GPU, or "" without nvidia-smi."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return (subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.splitlines() or [""])[0].strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


# Writes a PNG without other packages. The picture is smooth colours with noise. The rows are added as large integers, in
# which no byte overflows into the next one.
def write_png(path, width, height, seed):
    dice = random.Random(seed)
    noise = int.from_bytes(b"\x1f" * (3 * width), "big")
    rows = b""
    for y in range(height):
        if y % 16 == 0:
            smooth = b"".join(bytes(dice.randrange(200) for _ in range(3)) * 16 for _ in range(-(-width // 16)))[:3 * width]
        row = int.from_bytes(smooth, "big") + (int.from_bytes(dice.randbytes(3 * width), "big") & noise)
        rows += b"\0" + row.to_bytes(3 * width, "big")
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


@contextlib.contextmanager
def making(what):
    """Lets one process at a time make these data. The others wait, and then find them."""
    with open(WORK / f"{what}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def time_is_up(options, share=1.0):
    """Returns whether this share of the time is over."""
    return time.monotonic() > options.deadline - (1 - share) * 60 * options.minutes


def ask_peer(script, cases, options, seconds):
    """Returns what PyTorch's process has printed as (reports, machine, the reason why it ended early or "")."""
    request = {"cases": cases, **{key: getattr(options, key) for key in
                                  ("device", "windows", "window_seconds", "warmup_seconds", "case_seconds")}}
    process = subprocess.Popen([options.python, str(ROOT / "tests/gpu" / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        out, err = process.communicate(json.dumps(request), timeout=seconds)
        why = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1] if process.returncode != 0 else ""
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        why = TIME_IS_UP
    reports, machine = [], {}
    for line in out.splitlines():
        try:
            if line.startswith('{"machine"'):
                machine = json.loads(line)["machine"]
            elif line.startswith("{"):
                reports.append(json.loads(line))
        except ValueError:
            break  # the process was ended while it wrote this line
    return reports, machine, why


def run_peer(script, cases, options, share=1.0):
    """Returns PyTorch's reports in the order of the cases, and its machine. Stops early when this share of the time is
    over. If a case ends the process, the report has a line for it, and the other cases run in a new process, because a
    GPU's error stays with its process."""
    until = options.deadline - (1 - share) * 60 * options.minutes
    reports, machine, left = [], {}, list(cases)
    while left:
        found, described, why = ask_peer(script, left, options, max(5.0, until - time.monotonic()))
        machine = machine or described
        if why and why != TIME_IS_UP and len(found) < len(left):
            found.append({"case": left[len(found)], "failed": why[:200]})
        reports += found
        left = left[len(found):]
        if not described and not machine:  # PyTorch cannot start: it is missing, or it has no GPU
            reports += [{"case": case, "failed": why[:200]} for case in left]
            left = []
        if not why or why == TIME_IS_UP or time.monotonic() > until:
            break
    for report in reports:
        text = report.get("failed") or f"{report['samples_per_second']['median']:,.0f} samples/s"
        print(f"  PyTorch {describe(report['case'])}: {text}", flush=True)
    for case in left:
        print(f"  PyTorch {describe(case)}: not reached", flush=True)
    return reports, machine


def describe(case):
    return ", ".join(f"{key} {value}" for key, value in case.items())


def run_ringtrain(experiment, options, step_seconds):
    """Returns (samples per second of each window, the reason of a failure, records of the measured steps) of one run on
    one device. experiment(seconds) gives the path of an experiment that takes `seconds` after the search."""
    run_dir = WORK / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    seconds = options.warmup_seconds + step_seconds + options.windows * (options.window_seconds + step_seconds)
    command = [str(options.ringtrain), "train", str(experiment(seconds)), f"run.dir={run_dir}", f"machine.device={options.device}",
               f"machine.search_seconds={options.search_seconds}", f"machine.plan_cache={os.environ.get('RINGTRAIN_PLAN_CACHE') or WORK / 'plans'}",
               *options.set]
    if options.tiny:  # every step is a window on a machine of any speed
        command += ["stop.seconds=0", f"stop.steps={options.windows + 2}"]
    with open(WORK / "run.log", "w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        left = options.deadline - time.monotonic()
        try:
            code = process.wait(timeout=max(5, min(options.case_seconds + seconds + options.search_seconds, left)))
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
        log.seek(0)
        said = log.read().splitlines()
    if code != 0:
        print("\n".join("    | " + line for line in said[-20:]), flush=True)
        last = (said or ["it printed nothing"])[-1]
        if code is None:
            return [], f"took too long; its last line: {last}"[:200], []
        return [], next((line for line in said if "error" in line.lower()), last if said else f"exit code {code}")[:200], []
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    found = windows(steps, options.warmup_seconds, options.window_seconds)
    if len(found) < 2:
        return [], "too few windows", []
    return found, "", [step for step in steps if step["elapsed_seconds"] >= options.warmup_seconds]


def compare(script, key, cases, ringtrain, options, own_key=None):
    """Runs all cases in the order A B B A. A case is a dict without a way. First PyTorch runs in every way, then
    ringtrain(case, step_seconds) runs twice, then PyTorch runs in each case's best way. With one side only, that side
    runs once. Returns the figures of each case, and the machine. PyTorch runs cases with the same key(case) once, and
    ringtrain runs cases with the same own_key(case) once. No side can take the other's time: PyTorch's first run ends
    at 0.4 of the time, and ringtrain ends at 0.9."""
    own_key = own_key or key
    peers = list({key(case): case for case in reversed(cases)}.values())[::-1] if options.side != "ringtrain" else []
    asked = [{**case, "way": way} for way in options.ways for case in peers]
    first, machine = run_peer(script, asked, options, 0.4 if options.side == "both" else 1.0)
    best = {}
    for report in first:
        if "failed" not in report and "16-bit weights" not in report["case"]["way"]:
            name = key(report["case"])
            if name not in best or report["samples_per_second"]["median"] > best[name]["samples_per_second"]["median"]:
                best[name] = report
    ours = {}
    for _ in range({"both": 2, "ringtrain": 1, "pytorch": 0}[options.side]):
        for case in cases:
            if time_is_up(options, 0.9):
                break
            peer = best.get(key(case))
            step_seconds = case["batch"] / peer["samples_per_second"]["median"] if peer else 1.0 if options.side == "both" else 0.1
            found, failed, steps = ringtrain(case, step_seconds)
            entry = ours.setdefault(own_key(case), {"rates": [], "failed": "", "steps": []})
            entry["rates"] += found
            entry["steps"] += steps
            entry["failed"] = failed
            print(f"  ringtrain {describe(case)}: {failed or f'{statistics.median(found):,.0f} samples/s'}", flush=True)
    again = [best[key(case)]["case"] for case in peers if key(case) in best]
    last, _ = run_peer(script, again, options) if again and options.side == "both" and not time_is_up(options) else ([], {})
    rows = [figures(key(case), key, first, last, best, ours.get(own_key(case))) for case in cases]
    return rows, machine


def figures(name, key, first, last, best, mine):
    row = {}
    for report in first:
        if key(report["case"]) == name:
            row[f"pytorch_{report['case']['way']}"] = report.get("failed") or round(report["samples_per_second"]["median"], 1)
    peers = [r["samples_per_second"] for r in [best.get(name)] + [r for r in last if key(r["case"]) == name and "failed" not in r] if r]
    mine = mine or {"rates": [], "failed": "not reached", "steps": []}
    row["pytorch_best_way"] = best[name]["case"]["way"] if name in best else ""
    row["pytorch"] = round(statistics.mean(r["median"] for r in peers), 1) if peers else ""
    row["pytorch_min"] = round(min(r["min"] for r in peers), 1) if peers else ""
    row["pytorch_max"] = round(max(r["max"] for r in peers), 1) if peers else ""
    row["pytorch_peak_mib"] = round(best[name]["peak_memory_bytes"] / 2**20) if name in best else ""
    row["ringtrain"] = round(statistics.median(mine["rates"]), 1) if mine["rates"] else ""
    row["ringtrain_min"] = round(min(mine["rates"]), 1) if mine["rates"] else ""
    row["ringtrain_max"] = round(max(mine["rates"]), 1) if mine["rates"] else ""
    row["ringtrain_failed"] = "" if mine["rates"] else mine["failed"]
    seconds = sum(step["seconds"] for step in mine["steps"])
    row["input_wait_share"] = round(sum(s["input_seconds"] for s in mine["steps"]) / seconds, 4) if seconds else ""
    row["ratio"] = round(row["ringtrain"] / row["pytorch"], 3) if row["pytorch"] and row["ringtrain"] else ""
    return row


def gpu_facts(machine, options):
    facts = {"command": " ".join([f"tests/gpu/{Path(sys.argv[0]).name}", *sys.argv[1:]]), "device": machine.get("device", "not reached"), "cuda": machine.get("cuda", ""), "cudnn of PyTorch": machine.get("cudnn", "")}
    facts["bounds for"] = machine.get("device") or options.gpu or "unknown"
    for precision, reached in machine.get("ceilings", {}).items():
        facts[f"reached in {precision}"] = (f"matrix product {reached['flops'] / 1e12:.0f} TFLOP/s, "
                                            f"copy {reached['bytes_per_second'] / 1e12:.2f} TB/s")
    if options.tiny or options.device == "cpu":
        facts["note"] = "a look at the scripts: these sizes and this device say nothing about speed"
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        facts["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return facts


def rates(machine, options, precision):
    """Returns (FLOP/s, bytes per second) of this device (bounds.py), or None when they are not known."""
    reached = machine.get("ceilings", {}).get(precision)
    measured = (reached["flops"], reached["bytes_per_second"]) if reached else None
    return bounds.rates_of(options.gpu or machine.get("device"), precision, measured)


def reached_columns(machine, precision):
    """What PyTorch has reached in this run, for the table's row."""
    reached = machine.get("ceilings", {}).get(precision)
    return {"reached_flops": reached["flops"] if reached else "", "reached_bytes_per_second": reached["bytes_per_second"] if reached else ""}


def speed_columns(row, side, units, top):
    """Columns of one side's rate, in the units of the bound `top`. `units` are those of one step."""
    rate = row[side]
    lost = bounds.lost_milliseconds(units, rate, top)
    return {f"{side}_share_of_bound": round(rate / top, 3) if rate and top else "", f"{side}_lost_ms": round(lost, 3) if lost is not None else ""}


def most_lost_first(rows):
    """Rows in the order of the milliseconds that ringtrain loses in a step, or PyTorch where ringtrain has no rate."""
    lost = lambda row: next((row[key] for key in ("ringtrain_lost_ms", "pytorch_lost_ms") if row.get(key) not in ("", None)), -1)
    return sorted(rows, key=lost, reverse=True)
