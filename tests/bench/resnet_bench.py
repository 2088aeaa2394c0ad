#!/usr/bin/env python3
"""Compares ringtrain's ResNet-50 at 224 px with torchvision's in PyTorch on the same cores, in the order PyTorch,
ringtrain, ringtrain, PyTorch.

  tests/bench/setup_pytorch.sh && make build/bench/resnet_layers
  tests/bench/resnet_bench.py                                                everything, about 25 minutes on 2 cores
  tests/bench/resnet_bench.py --precision bf16 --ranks 1                     a part

Writes results/bench/resnet_cpu.csv (a row for every precision and way of running) and resnet_cpu.md (the same as a
table, with targets). Rates are images per second of whole steps in wall-clock time. They are medians over windows of
both runs. Ringtrain decodes and crops photographs from HDF5 in the background, on the same cores. PyTorch has random
pixels in memory.
"""
import re
import statistics
from pathlib import Path

from bench_tools import (ROOT, WORK, about, call, chosen, head, make_parser, measure, parse, run_pytorch, run_ringtrain, way,
                         write)
from made_up_photographs import make_photographs

BATCH, SIZE = 16, 224
PHOTOGRAPHS = ROOT / "../shared/data/imagenet-samples"  # n01440764_tench.JPEG ..., classes1000.txt
# Made-up images are a data set of another name, so that they are not taken for photographs that are there later.
DATA = WORK / ("imagenet_samples" if (PHOTOGRAPHS / "classes1000.txt").exists() else "made_up_images")
# (ranks, precision) -> ringtrain's rate / PyTorch's. SHARE_TARGET is the share of the matmul rate.
TARGETS = {(1, "fp32"): 1.1, (1, "bf16"): 1.2, (2, "fp32"): 1.15, (2, "bf16"): 1.35}
SHARE_TARGET = 0.85
WAIT_TARGET, PRIMITIVES_TARGET = 0.01, 0.9

# Multiplications of the convolutions and the dense layer in the forward pass. The first convolution needs no gradient
# of its input.
FORWARD, FIRST = 4_089_184_256, 64 * 112 * 112 * 3 * 7 * 7
GFLOP_PER_IMAGE = 2 * (3 * FORWARD - FIRST) / 1e9


def make_data():
    """Makes a data set of photographs with 1000 classes, or of made-up ones. Returns which."""
    photographs, classes = PHOTOGRAPHS, PHOTOGRAPHS / "classes1000.txt"
    what = "the photographs of shared/data/imagenet-samples"
    if not classes.exists():
        what = "made-up images"
        photographs = WORK / "photographs"
        classes = photographs / "classes1000.txt"
        if not classes.exists():
            make_photographs(photographs)
    if not list(WORK.glob(f"{DATA.name}-train-*.h5")):
        WORK.mkdir(parents=True, exist_ok=True)
        images = sorted(path.name for path in Path(photographs).glob("*.JPEG"))
        listing = WORK / "photographs.txt"
        listing.write_text("".join(f"{name} {name.split('_')[0]}\n" for name in images))
        call(["bin/ringtrain-data", "images", photographs, "--list", listing, "--class-list", classes, "--split", "train",
              "--out", DATA, "--broken", "skip"])
    return what


def experiment(ranks, precision, batch, seconds):
    path = WORK / "experiment.yaml"
    path.write_text(f"""name: resnet_bench
precision: {precision}
model: {{kind: resnet, depth: 50, stem: imagenet}}
data: {{train: {DATA}-train, image_size: {SIZE}}}
batch: {{global: {batch}, worker: {batch // ranks}}}
optimizer: {{kind: sgd, momentum: 0.9, weight_decay: 0.0001}}
learning_rate: {{base: 0.01}}
stop: {{seconds: {seconds}}}
evaluate: {{every_epochs: 0}}
checkpoint: {{every_epochs: 0, best: false}}
run: {{log_every_steps: 1000000}}
""")
    return path


def share_of_primitives(precision, batch, options):
    """Returns the rate of a step divided by the rate of the bare oneDNN primitives, run one after the other in a
    process of their own. Returns "" if build/bench/resnet_layers is not built."""
    program = ROOT / "build/bench/resnet_layers"
    if not program.exists():
        return ""
    out = call([program, f"batch={batch}", f"precision={precision}", f"threads={options.threads}"])
    return float(re.search(r"step at ([\d.]+) of them", out)[1])


def measure_way(ranks, precision, options):
    batch = options.batch or BATCH
    figures, first, steps = measure(
        lambda: run_pytorch("pytorch_resnet.py", ranks, precision, batch, options),
        lambda step_seconds: run_ringtrain(lambda seconds: experiment(ranks, precision, batch, seconds),
                                           f"ResNet-50 {precision}", ranks, options, step_seconds),
        batch, GFLOP_PER_IMAGE)
    seconds = sum(step["seconds"] for step in steps)
    shares = {f"{part}_share": round(sum(step[f"{part}_seconds"] for step in steps) / seconds, 4)
              for part in ("input", "forward", "backward", "communication", "update")}
    primitives = share_of_primitives(precision, batch, options) if ranks == 1 else ""
    return {"depth": 50, "image_size": SIZE, "batch": batch, "precision": precision, "way": way(ranks, options.threads),
            "ranks": ranks, **figures, "target": TARGETS[ranks, precision] if batch == BATCH else "",
            "share_target": SHARE_TARGET, **shares, "share_of_primitives": primitives,
            "step_seconds": round(statistics.median(step["seconds"] for step in steps), 4), "torchvision": first["torchvision"]}


def table(rows, facts):
    lines = head("ResNet-50 on CPU cores: how fast is ringtrain against PyTorch?", facts, "images/s",
                 f"An image counts {GFLOP_PER_IMAGE:.2f}\n  GFLOP: 3 x the forward pass, without the gradient of the pixels.")
    lines += ["- **memory**: the peak of resident memory over all ranks. The last column has the same for PyTorch. The brackets hold the"
              " part that importing PyTorch\n  takes.", "",
              "| batch | | precision | ringtrain | PyTorch | ratio | target | share | PyTorch's | target | memory | PyTorch's |",
              "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append(
            f"| {r['batch']} | {r['way']} | {r['precision']} "
            f"| {r['ringtrain_samples_per_second']:.2f} [{r['ringtrain_min']:.2f}, {r['ringtrain_max']:.2f}] "
            f"| {r['pytorch_samples_per_second']:.2f} [{r['pytorch_min']:.2f}, {r['pytorch_max']:.2f}] "
            f"| {r['ratio']:.2f} | {r['target'] or '-'} | {r['ringtrain_share_of_matmul']:.0%} of {r['matmul_gflops']:.0f} GFLOP/s "
            f"| {r['pytorch_share_of_matmul']:.0%} | {r['share_target']:.0%} "
            f"| {r['ringtrain_peak_mib']:,} MiB | {r['pytorch_peak_mib']:,} [{r['pytorch_import_mib']:,}] MiB |")
    of_primitives = [f"{r['share_of_primitives']:.2f} in {r['precision']}" for r in rows if r["share_of_primitives"] != ""]
    if of_primitives:
        lines += ["", "The rate of a step of one process, divided by the rate of its bare oneDNN primitives "
                  f"(target {PRIMITIVES_TARGET}), is {' and '.join(of_primitives)}."]
    lines += ["", "## Where ringtrain's steps spend their time", "", f"The target for waiting for input is below {WAIT_TARGET:.0%}.", "",
              "| | precision | step, s | input | forward | backward | communication | update |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        parts = " | ".join(f"{r[f'{part}_share']:.1%}" for part in ("input", "forward", "backward", "communication", "update"))
        lines.append(f"| {r['way']} | {r['precision']} | {r['step_seconds']:.3f} | {parts} |")
    return lines


def main():
    parser = make_parser(__doc__, "results/bench/resnet_cpu")
    parser.set_defaults(windows=4, window_seconds=12.0, warmup_seconds=8.0)
    options = parse(parser)
    what = make_data()
    rows = []
    for ranks in chosen(options.ranks, [1, 2]):
        for precision in chosen(options.precision, ["fp32", "bf16"]):
            row = measure_way(ranks, precision, options)
            rows.append(row)
            print(f"batch {row['batch']} {precision} {row['way']}: {row['ringtrain_samples_per_second']:.2f} against "
                  f"{row['pytorch_samples_per_second']:.2f} images/s, ratio {row['ratio']:.2f} (target {row['target'] or '-'}), "
                  f"{row['ringtrain_share_of_matmul']:.0%} of {row['matmul_gflops']:.0f} GFLOP/s", flush=True)
    facts = about(options, f"{rows[0]['torch']}, torchvision {rows[0]['torchvision']}",
                  input=f"ringtrain decodes, crops and flips {what} during the step. PyTorch has random pixels in memory.")
    write(options, rows, facts, table(rows, facts))


if __name__ == "__main__":
    main()
