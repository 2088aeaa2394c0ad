"""Shared by the comparisons with PyTorch: running both sides in turn (A B B A), windows of a run's own records, the
facts that every recorded figure needs, options and files."""
import argparse
import csv
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "bench"


def fail(message):
    sys.exit(f"{Path(sys.argv[0]).name}: error: {message}")


def call(command, **options):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, text=True, capture_output=True, **options)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def ringtrain_command(experiment, run_dir, ranks, threads, wrapper=()):
    return ["tests/mpirun.sh", ranks, *wrapper, "bin/ringtrain", "train", experiment, f"run.dir={run_dir}",
            f"run.threads={max(1, threads // ranks)}"]


def windows(steps, warmup_seconds, window_seconds):
    """Samples per second of consecutive windows by the run's own clock. The first seconds are left out."""
    start = next((step for step in steps if step["elapsed_seconds"] >= warmup_seconds), None)
    rates = []
    for step in steps:
        if start and step["elapsed_seconds"] - start["elapsed_seconds"] >= window_seconds:
            rates.append((step["samples"] - start["samples"]) / (step["elapsed_seconds"] - start["elapsed_seconds"]))
            start = step
    return rates


def run_ringtrain(write_experiment, what, ranks, options, step_seconds):
    """Returns the rates of the windows, the records of the steps after the warm-up, and the peak of resident memory,
    summed over all ranks. write_experiment(seconds) gives the path of an experiment that runs for `seconds`.
    `step_seconds` is about the time of a step, since a window holds at least one step."""
    run_dir, peaks = WORK / "run", WORK / "peaks"
    for folder in run_dir, peaks:
        shutil.rmtree(folder, ignore_errors=True)
    peaks.mkdir(parents=True)
    seconds = options.warmup_seconds + step_seconds + options.windows * (options.window_seconds + step_seconds)
    wrapper = [sys.executable, "tests/bench/peak_memory.py", peaks]
    call(ringtrain_command(write_experiment(seconds), run_dir, ranks, options.threads, wrapper))
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    rates = windows(steps, options.warmup_seconds, options.window_seconds)
    if len(rates) < 2:
        fail(f"{what} on {ranks} ranks: too few windows; a step takes {steps[-1]['seconds']:.2f} s, so make --window-seconds "
             "larger")
    measured = [step for step in steps if step["elapsed_seconds"] >= options.warmup_seconds]
    return rates, measured, sum(int(path.read_text()) for path in peaks.glob("*.peak"))


def run_pytorch(script, ranks, precision, batch, options, *more):
    out = call([options.python, f"tests/bench/{script}", "--batch", batch, "--precision", precision, "--ranks", ranks,
                "--threads", options.threads, "--windows", options.windows, "--window-seconds", options.window_seconds,
                "--warmup-seconds", options.warmup_seconds, *more])
    return json.loads(out.strip().splitlines()[-1])


def measure(pytorch, ringtrain, batch, gflop_per_sample):
    """Measures in the order A B B A. pytorch() returns PyTorch's report, and ringtrain(step_seconds) is like
    run_ringtrain. Returns the figures of the table's row, PyTorch's first report, and ringtrain's steps."""
    first = pytorch()
    runs = [ringtrain(batch / first["samples_per_second"]["median"]) for _ in range(2)]
    last = pytorch()
    ours = [rate for rates, _, _ in runs for rate in rates]
    peer = statistics.mean([report["samples_per_second"]["median"] for report in (first, last)])
    matmul = max(first["matmul_gflops"], last["matmul_gflops"])
    rate = statistics.median(ours)
    return {
        "ringtrain_samples_per_second": round(rate, 2), "ringtrain_min": round(min(ours), 2),
        "ringtrain_max": round(max(ours), 2), "pytorch_samples_per_second": round(peer, 2),
        "pytorch_min": round(min(r["samples_per_second"]["min"] for r in (first, last)), 2),
        "pytorch_max": round(max(r["samples_per_second"]["max"] for r in (first, last)), 2),
        "ratio": round(rate / peer, 3), "matmul_gflops": round(matmul, 1),
        "ringtrain_share_of_matmul": round(rate * gflop_per_sample / matmul, 3),
        "pytorch_share_of_matmul": round(peer * gflop_per_sample / matmul, 3),
        "ringtrain_peak_mib": round(max(peak for _, _, peak in runs) / 2**20),
        "pytorch_peak_mib": round(max(r["peak_memory_bytes"] for r in (first, last)) / 2**20),
        "pytorch_import_mib": round(first["import_memory_bytes"] / 2**20), "torch": first["torch"],
    }, first, [step for _, steps, _ in runs for step in steps]


def way(ranks, threads):
    return f"{ranks} ranks (PyTorch: DDP, gloo)" if ranks > 1 else f"1 process, {threads} threads"


def chosen(option, everything):
    return everything if option is None else [option]


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in call(["lscpu"], env={**os.environ, "LC_ALL": "C"}).splitlines()
                if line.startswith("Model name")), platform.processor())
    features = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in Path("/proc/cpuinfo").read_text().split()]
    return f"{cpu} ({', '.join(features)})"


def about(options, torch, **more):
    """The facts that every recorded figure needs. Running the command again gives the same measurement. The paths of
    Python and of the output are left out, because they do not matter."""
    given = {key: value for key, value in vars(options).items() if value not in (None, False) and key not in ("python", "output")}
    version_text = call(["bin/ringtrain", "--version"])
    version = dict(line.split(": ", 1) for line in version_text.splitlines() if ": " in line)
    return {
        "date": datetime.date.today().isoformat(), "commit": version_text.split()[1], "machine": machine(),
        "versions": f"{version['compiler']}, oneDNN {version['oneDNN']}, {version['MPI']}; PyTorch {torch}",
        "command": f"tests/bench/{Path(sys.argv[0]).name} " + " ".join(
            f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}") for key, value in given.items()),
        **more,
    }


def head(title, facts, unit, counted):
    """The lines of a page before its table. `counted` says how the FLOPs behind the share are counted."""
    return [f"# {title}", "", f"    {facts['command']}", "",
            f"- Date: {facts['date']}. Commit: {facts['commit']}. Machine: {facts['machine']}.",
            f"- Versions: {facts['versions']}.", f"- Input: {facts['input']}", "", "How to read the table:", "",
            f"- **ringtrain, PyTorch**: {unit} of whole training steps, as median [minimum, maximum].",
            "- **ratio**: ringtrain's median divided by PyTorch's. The column after it has the target for the ratio.",
            "- **share**: the rate of ringtrain's step divided by the rate of a 2048^3 matrix product, which was measured in the same minutes."
            f" {counted}",
            "- **PyTorch's**: the same share for PyTorch. The column after it has the target for the share."]


def make_parser(description, output):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=str(ROOT / "build/pytorch/bin/python"), help="a Python with torch [build/pytorch/bin/python]")
    parser.add_argument("--batch", type=int, help="one batch size")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="one precision")
    parser.add_argument("--ranks", type=int, choices=[1, 2], help="1: one process; 2: two ranks [both]")
    parser.add_argument("--threads", type=int, default=2, help="cores used, over all ranks [2]")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--window-seconds", type=float, default=2.0)
    parser.add_argument("--warmup-seconds", type=float, default=2.0)
    parser.add_argument("--output", default=output, help=f"without .csv and .md [{output}]")
    return parser


def parse(parser):
    options = parser.parse_args()
    if shutil.which(options.python) is None:
        fail(f"{options.python} does not exist; tests/bench/setup_pytorch.sh makes it, or name a Python with torch with --python")
    if not (ROOT / "bin/ringtrain").exists():
        fail("bin/ringtrain is not built: make")
    return options


def write(options, rows, facts, lines):
    """Writes <output>.csv with a row for every measurement, and <output>.md with these lines."""
    output = ROOT / options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{output}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames={**rows[0], **facts})
        writer.writeheader()
        writer.writerows({**row, **facts} for row in rows)
    Path(f"{output}.md").write_text("\n".join(lines) + "\n")
    print(f"wrote {output}.csv and {output}.md")
