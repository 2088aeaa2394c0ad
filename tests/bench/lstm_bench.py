#!/usr/bin/env python3
"""Compares ringtrain's char-LSTM with PyTorch's on the same cores, in the order PyTorch, ringtrain, ringtrain, PyTorch.

  tests/bench/setup_pytorch.sh && make bench                     everything, about half an hour
  make bench ARGS="--only 4x512 --precision bf16 --ranks 1"      a part

Writes results/bench/lstm_cpu.csv (a row for every shape, precision and way of running) and lstm_cpu.md (the same as a
table, with targets). Rates are samples per second of whole steps in wall-clock time. They are medians over windows of
both runs.
"""
import random
import shutil
import statistics
import subprocess
import time

from bench_tools import (ROOT, WORK, about, call, chosen, fail, head, make_parser, measure, parse, ringtrain_command, run_pytorch,
                         run_ringtrain, way, write)

VOCABULARY = 31

# name, layers, hidden, positions, batch
SHAPES = [("4x128", 4, 128, 8, 256), ("4x128", 4, 128, 8, 4096), ("4x512", 4, 512, 64, 64), ("4x512", 4, 512, 64, 256)]
# (shape, batch, ranks, precision) -> ringtrain's rate / PyTorch's. SHARE_TARGETS hold shares of the matmul rate.
TARGETS = {("4x128", 4096, 1, "fp32"): 1.4, ("4x128", 4096, 1, "bf16"): 1.6,
           ("4x128", 256, 2, "fp32"): 1.5, ("4x128", 256, 2, "bf16"): 1.5,
           **{("4x512", batch, 1, "fp32"): 1.08 for batch in (64, 256)},
           **{("4x512", batch, 1, "bf16"): 1.15 for batch in (64, 256)}}
SHARE_TARGETS = {("4x512", "fp32"): 0.85, ("4x512", "bf16"): 0.85, ("4x128", "fp32"): 0.7, ("4x128", "bf16"): 0.6}


def flops_per_sample(layers, hidden, positions, vocabulary=VOCABULARY):
    """FLOPs of the forward pass, and twice that for the backward pass. The first layer's one-hot input is a gather,
    which needs none."""
    per_position = layers * 4 * hidden * hidden + (layers - 1) * 4 * hidden * hidden + hidden * vocabulary
    return 3 * 2 * positions * per_position


def make_data():
    """Makes random names of study31's letters, and random text of as many symbols."""
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


def measure_shape(shape, precision, ranks, options):
    name, layers, hidden, positions, batch = shape
    figures, first, _ = measure(
        lambda: run_pytorch("pytorch_lstm.py", ranks, precision, batch, options, "--layers", layers, "--hidden", hidden,
                            "--steps", positions, "--vocabulary", VOCABULARY),
        lambda step_seconds: run_ringtrain(lambda seconds: experiment(shape, precision, seconds), f"{shape} {precision}", ranks,
                                           options, step_seconds),
        batch, flops_per_sample(layers, hidden, positions) / 1e9)
    return {"shape": name, "positions": positions, "batch": batch, "precision": precision, "way": way(ranks, options.threads),
            "ranks": ranks, **figures, "pytorch_input": first["input"], "target": TARGETS.get((name, batch, ranks, precision), ""),
            "share_target": SHARE_TARGETS[(name, precision)]}


def launch_seconds(options, ranks, tries=3):
    """Seconds from the start of mpirun to the first finished step in metrics.jsonl, for the pet-name model at batch
    256."""
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


def table(rows, facts, launches):
    lines = head("Char-LSTM on CPU cores: how fast is ringtrain against PyTorch?", facts, "samples/s",
                 "A step counts 3 x the\n  FLOPs of the forward pass. The one-hot layer counts as a gather.")
    lines += ["", "| model | T | batch | | precision | ringtrain | PyTorch | ratio | target | share | PyTorch's | target |",
              "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append(
            f"| {r['shape']} | {r['positions']} | {r['batch']} | {r['way']} | {r['precision']} "
            f"| {r['ringtrain_samples_per_second']:,.0f} [{r['ringtrain_min']:,.0f}, {r['ringtrain_max']:,.0f}] "
            f"| {r['pytorch_samples_per_second']:,.0f} [{r['pytorch_min']:,.0f}, {r['pytorch_max']:,.0f}] "
            f"| {r['ratio']:.2f} | {r['target'] or '-'} | {r['ringtrain_share_of_matmul']:.0%} of {r['matmul_gflops']:.0f} GFLOP/s "
            f"| {r['pytorch_share_of_matmul']:.0%} | {r['share_target']:.0%} |")
    if launches:
        lines += ["", "From the launch (mpirun) to the first finished step, the 4 x 128 model with batch 256 takes "
                  + " and ".join(f"{seconds:.2f} s on {ranks} rank{'s' if ranks > 1 else ''}" for ranks, seconds in launches.items())
                  + " (target 1.5 s)."]
    return lines


def main():
    parser = make_parser(__doc__, "results/bench/lstm_cpu")
    parser.add_argument("--only", choices=["4x128", "4x512"], help="one model")
    parser.add_argument("--no-launch", action="store_true", help="do not measure the time to the first step")
    options = parse(parser)
    make_data()
    shapes = [s for s in SHAPES if options.only in (None, s[0]) and options.batch in (None, s[4])]
    if not shapes:
        fail(f"no shape has batch {options.batch}")
    rows = []
    for shape in shapes:
        for ranks in chosen(options.ranks, [1, 2]):
            for precision in chosen(options.precision, ["fp32", "bf16"]):
                row = measure_shape(shape, precision, ranks, options)
                rows.append(row)
                print(f"{row['shape']} batch {row['batch']} {row['precision']} {row['way']}: "
                      f"{row['ringtrain_samples_per_second']:,.0f} against {row['pytorch_samples_per_second']:,.0f} samples/s, "
                      f"ratio {row['ratio']:.2f}" + (f" (target {row['target']})" if row["target"] else ""), flush=True)
    launches = {} if options.no_launch else {ranks: launch_seconds(options, ranks) for ranks in (1, 2)}
    facts = about(options, rows[0]["torch"],
                  input="ringtrain reads made-up names and text from HDF5. PyTorch has random tokens in memory.")
    write(options, rows, facts, table(rows, facts, launches))


if __name__ == "__main__":
    main()
