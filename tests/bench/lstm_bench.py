#!/usr/bin/env python3
"""ringtrain's char-LSTM against PyTorch's on the same cores, side by side: PyTorch, ringtrain, ringtrain, PyTorch.

  tests/bench/setup_pytorch.sh && make bench                     everything, about half an hour
  make bench ARGS="--only 4x512 --precision bf16 --ranks 1"      a part

Writes results/bench/lstm_cpu.csv (a row for every shape, precision and way of running) and lstm_cpu.md (the same as a
table, with targets). Rates are samples per second of whole steps, wall-clock, medians over windows of both runs.
"""
import argparse
import csv
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "bench"
VOCABULARY = 31

# name, layers, hidden, positions, batch
SHAPES = [("4x128", 4, 128, 8, 256), ("4x128", 4, 128, 8, 4096), ("4x512", 4, 512, 64, 64), ("4x512", 4, 512, 64, 256)]
# (shape, batch, ranks, precision) -> ringtrain's rate / PyTorch's, and the share of the matmul rate.
TARGETS = {("4x128", 4096, 1, "fp32"): 1.4, ("4x128", 4096, 1, "bf16"): 1.6,
           ("4x128", 256, 2, "fp32"): 1.5, ("4x128", 256, 2, "bf16"): 1.5,
           **{("4x512", batch, 1, "fp32"): 1.08 for batch in (64, 256)},
           **{("4x512", batch, 1, "bf16"): 1.15 for batch in (64, 256)}}
SHARE_TARGETS = {("4x512", "fp32"): 0.85, ("4x512", "bf16"): 0.85, ("4x128", "fp32"): 0.7, ("4x128", "bf16"): 0.6}


def fail(message):
    sys.exit(f"lstm_bench.py: error: {message}")


def call(command, **options):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, text=True, capture_output=True, **options)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def flops_per_sample(layers, hidden, positions, vocabulary=VOCABULARY):
    """Forward, and twice that for backward; the first layer's one-hot input is a gather, which costs none."""
    per_position = layers * 4 * hidden * hidden + (layers - 1) * 4 * hidden * hidden + hidden * vocabulary
    return 3 * 2 * positions * per_position


def make_data():
    """Made-up names of study31's letters, and made-up running text of as many symbols."""
    WORK.mkdir(parents=True, exist_ok=True)
    dice = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    if not list(WORK.glob("names-train-*.h5")):
        names = {"".join(dice.choices(letters, k=dice.randint(3, 9))) for _ in range(20000)}
        (WORK / "names.txt").write_text("\n".join(sorted(names)) + "\n")
        call(["bin/ringtrain-data", "names", WORK / "names.txt", "--out", WORK / "names", "--alphabet", "study31", "--force"])
    if not list(WORK.glob("text-train-*.h5")):
        symbols = letters + " .,-\n"
        assert len(symbols) == VOCABULARY
        (WORK / "text.txt").write_text("".join(dice.choices(symbols, k=4_000_000)))
        call(["bin/ringtrain-data", "text", WORK / "text.txt", "--out", WORK / "text", "--force"])


def experiment(shape, precision, seconds):
    _, layers, hidden, positions, batch = shape
    data = "names" if positions == 8 else "text"
    path = WORK / "experiment.yaml"
    path.write_text(f"""name: lstm_bench
precision: {precision}
model: {{kind: char_lstm, layers: {layers}, hidden: {hidden}, dropout: 0.1}}
data: {{train: {WORK / data}-train, {f'sequence: {positions}' if data == 'text' else 'blanks: counted'}}}
batch: {{global: {batch}, worker: {batch // 4}}}
optimizer: {{kind: adam}}
learning_rate: {{base: 0.001}}
stop: {{seconds: {seconds}}}
checkpoint: {{every_epochs: 0, best: false}}
run: {{log_every_steps: 1000000}}
""")
    return path


def ringtrain_command(path, run_dir, ranks, threads):
    return ["tests/mpirun.sh", ranks, "bin/ringtrain", "train", path, f"run.dir={run_dir}", f"run.threads={max(1, threads // ranks)}"]


def windows(steps, warmup_seconds, window_seconds):
    """Samples per second of consecutive windows of the run's own clock, the first seconds left out."""
    start = next((step for step in steps if step["elapsed_seconds"] >= warmup_seconds), None)
    rates = []
    for step in steps:
        if start and step["elapsed_seconds"] - start["elapsed_seconds"] >= window_seconds:
            rates.append((step["samples"] - start["samples"]) / (step["elapsed_seconds"] - start["elapsed_seconds"]))
            start = step
    return rates


def run_ringtrain(shape, precision, ranks, options, step_seconds):
    """Rates of the windows; `step_seconds`: about what a step takes, since a window holds at least one."""
    run_dir = WORK / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    seconds = options.warmup_seconds + step_seconds + options.windows * (options.window_seconds + step_seconds)
    path = experiment(shape, precision, seconds)
    call(ringtrain_command(path, run_dir, ranks, options.threads))
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    rates = windows(steps, options.warmup_seconds, options.window_seconds)
    if len(rates) < 2:
        fail(f"{shape} {precision} on {ranks} ranks: too few windows; a step takes "
             f"{steps[-1]['seconds']:.2f} s, so make --window-seconds larger")
    return rates


def run_pytorch(shape, precision, ranks, options):
    _, layers, hidden, positions, batch = shape
    out = call([options.python, "tests/bench/pytorch_lstm.py", "--layers", layers, "--hidden", hidden, "--steps", positions,
                "--batch", batch, "--precision", precision, "--ranks", ranks, "--threads", options.threads,
                "--windows", options.windows, "--window-seconds", options.window_seconds,
                "--warmup-seconds", options.warmup_seconds, "--vocabulary", VOCABULARY])
    return json.loads(out.strip().splitlines()[-1])


def measure(shape, precision, ranks, options):
    """A B B A."""
    first = run_pytorch(shape, precision, ranks, options)
    step_seconds = shape[-1] / first["samples_per_second"]["median"]
    ours = [rate for _ in range(2) for rate in run_ringtrain(shape, precision, ranks, options, step_seconds)]
    last = run_pytorch(shape, precision, ranks, options)
    name, layers, hidden, positions, batch = shape
    peer = statistics.mean([first["samples_per_second"]["median"], last["samples_per_second"]["median"]])
    matmul = max(first["matmul_gflops"], last["matmul_gflops"])
    rate = statistics.median(ours)
    gflops = flops_per_sample(layers, hidden, positions) / 1e9
    key = (name, batch, ranks, precision)
    return {
        "shape": name, "positions": positions, "batch": batch, "precision": precision,
        "way": f"{ranks} ranks (PyTorch: DDP, gloo)" if ranks > 1 else f"1 process, {options.threads} threads", "ranks": ranks,
        "ringtrain_samples_per_second": round(rate, 1), "ringtrain_min": round(min(ours), 1), "ringtrain_max": round(max(ours), 1),
        "pytorch_samples_per_second": round(peer, 1),
        "pytorch_min": round(min(r["samples_per_second"]["min"] for r in (first, last)), 1),
        "pytorch_max": round(max(r["samples_per_second"]["max"] for r in (first, last)), 1),
        "pytorch_input": first["input"], "ratio": round(rate / peer, 3), "target": TARGETS.get(key, ""),
        "matmul_gflops": round(matmul, 1), "ringtrain_share_of_matmul": round(rate * gflops / matmul, 3),
        "pytorch_share_of_matmul": round(peer * gflops / matmul, 3), "share_target": SHARE_TARGETS[(name, precision)],
        "torch": first["torch"],
    }


def launch_seconds(options, ranks, tries=3):
    """From the start of mpirun to the first finished step in metrics.jsonl: the pet-name model at batch 256."""
    times = []
    for _ in range(tries):
        run_dir = WORK / "launch"
        shutil.rmtree(run_dir, ignore_errors=True)
        path = experiment(SHAPES[0], "fp32", 600)
        command = [*ringtrain_command(path, run_dir, ranks, options.threads), "stop.seconds=0", "stop.steps=1"]
        metrics, start = run_dir / "metrics.jsonl", time.perf_counter()
        process = subprocess.Popen([str(part) for part in command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (metrics.exists() and "\n" in metrics.read_text()):
            if process.poll() not in (None, 0):
                fail(f"{' '.join(map(str, command))} ended with {process.returncode}")
            time.sleep(0.002)
        times.append(time.perf_counter() - start)
        process.wait()
    return statistics.median(times)


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in call(["lscpu"], env={**os.environ, "LC_ALL": "C"}).splitlines()
                if line.startswith("Model name")), platform.processor())
    features = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in Path("/proc/cpuinfo").read_text().split()]
    return f"{cpu} ({', '.join(features)})"


def command_line(options):
    """The command that gives the same measurement; where Python and the output lie does not matter to it."""
    given = {key: value for key, value in vars(options).items() if value not in (None, False) and key not in ("python", "output")}
    return "tests/bench/lstm_bench.py " + " ".join(f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}")
                                                   for key, value in given.items())


def write_table(path, rows, about, launches):
    lines = ["# Char-LSTM on CPU cores: ringtrain against PyTorch", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += ["- samples/s of whole training steps: median [minimum, maximum]; ratio of medians; share: the step's FLOPs (3 x forward,"
              " the one-hot layer a gather) over the rate of a 2048^3 matrix product measured in the same minutes", "",
              "| model | T | batch | | precision | ringtrain | PyTorch | ratio | target | share | PyTorch's | target |",
              "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append(
            f"| {r['shape']} | {r['positions']} | {r['batch']} | {r['way']} | {r['precision']} "
            f"| {r['ringtrain_samples_per_second']:,.0f} [{r['ringtrain_min']:,.0f}, {r['ringtrain_max']:,.0f}] "
            f"| {r['pytorch_samples_per_second']:,.0f} [{r['pytorch_min']:,.0f}, {r['pytorch_max']:,.0f}] "
            f"| {r['ratio']:.2f} | {r['target'] or '-'} | {r['ringtrain_share_of_matmul']:.0%} of {r['matmul_gflops']:.0f} GFLOP/s "
            f"| {r['pytorch_share_of_matmul']:.0%} | {r['share_target']:.0%} |")
    if launches:
        lines += ["", "Launch (mpirun) to first finished step, 4 x 128, batch 256: "
                  + ", ".join(f"{seconds:.2f} s on {ranks} rank{'s' if ranks > 1 else ''}" for ranks, seconds in launches.items())
                  + " (target 1.5 s)."]
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=str(ROOT / "build/pytorch/bin/python"), help="a Python with torch [build/pytorch/bin/python]")
    parser.add_argument("--only", choices=["4x128", "4x512"], help="one model")
    parser.add_argument("--batch", type=int, help="one batch size")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="one precision")
    parser.add_argument("--ranks", type=int, choices=[1, 2], help="1: one process; 2: two ranks [both]")
    parser.add_argument("--threads", type=int, default=2, help="cores used, over all ranks [2]")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--window-seconds", type=float, default=2.0)
    parser.add_argument("--warmup-seconds", type=float, default=2.0)
    parser.add_argument("--no-launch", action="store_true", help="do not measure the time to the first step")
    parser.add_argument("--output", default="results/bench/lstm_cpu", help="without .csv and .md [results/bench/lstm_cpu]")
    options = parser.parse_args()
    if shutil.which(options.python) is None:
        fail(f"{options.python} does not exist; tests/bench/setup_pytorch.sh makes it, or name a Python with torch with --python")
    if not (ROOT / "bin/ringtrain").exists():
        fail("bin/ringtrain is not built: make")
    make_data()
    shapes = [s for s in SHAPES if options.only in (None, s[0]) and options.batch in (None, s[4])]
    if not shapes:
        fail(f"no shape has batch {options.batch}")
    rows = []
    for shape in shapes:
        for ranks in [options.ranks] if options.ranks else [1, 2]:
            for precision in [options.precision] if options.precision else ["fp32", "bf16"]:
                row = measure(shape, precision, ranks, options)
                rows.append(row)
                print(f"{row['shape']} batch {row['batch']} {row['precision']} {row['way']}: "
                      f"{row['ringtrain_samples_per_second']:,.0f} against {row['pytorch_samples_per_second']:,.0f} samples/s, "
                      f"ratio {row['ratio']:.2f}" + (f" (target {row['target']})" if row["target"] else ""), flush=True)
    launches = {} if options.no_launch else {ranks: launch_seconds(options, ranks) for ranks in (1, 2)}
    version = dict(line.split(": ", 1) for line in call(["bin/ringtrain", "--version"]).splitlines() if ": " in line)
    about = {
        "date": datetime.date.today().isoformat(), "commit": call(["bin/ringtrain", "--version"]).split()[1],
        "machine": machine(), "versions": f"{version['compiler']}, oneDNN {version['oneDNN']}, {version['MPI']}; PyTorch {rows[0]['torch']}",
        "command": command_line(options), "input": "made-up names and text from HDF5; PyTorch: random tokens in memory",
    }
    output = ROOT / options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{output}.csv", "w", newline="") as file:
        columns = {**rows[0], **about}
        writer = csv.DictWriter(file, fieldnames=columns)
        writer.writeheader()
        writer.writerows({**row, **about} for row in rows)
    write_table(Path(f"{output}.md"), rows, about, launches)
    print(f"wrote {output}.csv and {output}.md")


if __name__ == "__main__":
    main()
