#!/usr/bin/env python3
"""Compares ringtrain's ResNet-50 at 224 px with torchvision's in PyTorch on one GPU, in the order PyTorch, ringtrain,
ringtrain, PyTorch.

  tests/gpu/resnet_bench.py                                   batch 256 and 512, bf16 and fp16, synthetic and real input
  tests/gpu/resnet_bench.py --precision bf16 --batch 256 --photographs FOLDER
  tests/gpu/resnet_bench.py --side ringtrain --input raw      ringtrain alone (or pytorch), one kind of input
  tests/gpu/resnet_bench.py --device cpu --tiny               shows that the scripts work, without a GPU

Writes results/gpu/resnet.csv (a row for every batch, precision and input) and resnet.md (the same as a table with
targets). Rates are images per second of whole steps in wall-clock time. They are medians over windows of both runs.
With input raw, pixels of the final size are stored decoded. With input jpeg, JPEGs of photographs are decoded, cropped
and flipped during the step. PyTorch runs eager, in CUDA graphs and compiled, with random pixels in device memory,
channels_last and autocast. `--worker N` also measures batch norm over groups of N samples (ringtrain alone). If
build/bench/cuda_commands exists, a table of all kernels follows (kernel_table.py).
"""
import hashlib
import subprocess
import sys
from pathlib import Path

import bounds
from bench_gpu import (ROOT, WORK, compare, fail, gpu_facts, make_parser, making, most_lost_first, parse, rates, reached_columns,
                       run_ringtrain, speed_columns, time_is_up)
from bench_tools import about, call, write
from made_up_photographs import make_photographs

BATCHES, IMAGES = [256, 512], 2048
PHOTOGRAPHS = ROOT / "../shared/data/imagenet-samples"  # n01440764_tench.JPEG ..., classes1000.txt
RATIO_TARGET, INPUT_TARGET = 1.5, 0.98
RECORD = 7953  # NVIDIA, MLPerf v4.0, per H200, fp16


def make_data(options, size):
    """Makes two data sets of the same photographs: their JPEGs, and pixels of the final size. Their names differ for
    other photographs. Returns their names and descriptions."""
    photographs = Path(options.photographs).resolve() if options.photographs else PHOTOGRAPHS
    classes = photographs / "classes1000.txt"
    what = f"{len(list(photographs.glob('*.JPEG')))} photographs"
    if not classes.exists():
        if options.photographs:
            fail(f"{classes} does not exist (lines: class id and name)")
        what, photographs = "made-up images of a photograph's size", WORK / "photographs"
        classes = photographs / "classes1000.txt"
        if not classes.exists():
            make_photographs(photographs)
    # Makes several links with other names to every image, because an epoch has to hold several batches.
    images = sorted(photographs.glob("*.JPEG"))
    times = 1 if options.tiny else -(-IMAGES // len(images))
    source = "".join(f"{image.resolve()} {image.stat().st_size}\n" for image in images)
    mark = f"{times}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    folder, listing = WORK / f"links{mark}", WORK / "photographs.txt"
    folder.mkdir(exist_ok=True)
    lines = []
    for image in images:
        for number in range(times):
            link = folder / f"{image.stem}_{number}.JPEG"
            if not link.exists():
                link.symlink_to(image.resolve())
            lines.append(f"{link.name} {image.name.split('_')[0]}\n")
    listing.write_text("".join(lines))
    common = ["bin/ringtrain-data", "images", folder, "--list", listing, "--class-list", classes, "--split", "train", "--broken", "skip", "--force"]
    jpeg, raw = f"real{mark}", f"raw{size}x{mark}"
    if not list(WORK.glob(f"{jpeg}-train-*.h5")):
        call([*common, "--out", WORK / jpeg])
    if not list(WORK.glob(f"{raw}-train-*.h5")):
        call([*common, "--out", WORK / raw, "--size", size, "--encoding", "raw"])
    return {"jpeg": jpeg, "raw": raw}, f"{what}, each {times} times"


def experiment(case, data_sets, seconds):
    path = WORK / "gpu_resnet.yaml"
    data = data_sets[case["input"]]
    augmentation = "random_resized_crop" if case["input"] == "jpeg" else "none"
    path.write_text(f"""name: gpu_resnet_bench
precision: {case['precision']}
model: {{kind: resnet, depth: {case['depth']}, stem: imagenet}}
data: {{train: {WORK / data}-train, image_size: {case['size']}, augmentation: {augmentation}, flip: {str(case['input'] == 'jpeg').lower()}, loader_threads: {case['threads']}}}
batch: {{global: {case['batch']}, worker: {case['worker']}, micro: {case['batch']}}}
optimizer: {{kind: sgd, momentum: 0.9, weight_decay: 0.0001}}
learning_rate: {{base: 0.01}}
stop: {{seconds: {seconds}}}
evaluate: {{every_epochs: 0}}
checkpoint: {{every_epochs: 0, best: false}}
run: {{log_every_steps: 1000000}}
""")
    return path


def table(rows, facts, ways):
    lines = ["# ResNet-50 on one GPU: ringtrain against PyTorch", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items()]
    lines += [f"- images per second of whole training steps, medians; ratio to PyTorch's best way (target {RATIO_TARGET}); bound (c): kernels fused as in"
              " NVIDIA's MLPerf submission one after the other at the rates of this GPU (tests/gpu/bounds.py); lost: what a step takes longer than the"
              f" bound; target {rows[0]['rate_target']:.0f} on this GPU; the highest published on an H200 is {RECORD}",
              "", "| batch | worker | precision | input | ringtrain | PyTorch | best way | ratio | bound (c) | share | lost ms | PyTorch's | waits for input |"
              " PyTorch's peak MiB |" + "".join(f" {way} |" for way in ways), "|---" * (14 + len(ways)) + "|"]
    for r in most_lost_first(rows):
        each = "".join(f" {r.get(f'pytorch_{way}', '-')} |" for way in ways)
        lines.append(f"| {r['batch']} | {r['worker']} | {r['precision']} | {r['input']} | {r['ringtrain'] or r['ringtrain_failed']} | {r['pytorch'] or '-'} "
                     f"| {r['pytorch_best_way']} | {r['ratio'] or '-'} | {r['bound'] or 'unknown'} | {r['ringtrain_share_of_bound'] or 'unknown'} | {r['ringtrain_lost_ms'] or '-'} "
                     f"| {r['pytorch_share_of_bound'] or '-'} "
                     f"| {r['input_wait_share']} | {r['pytorch_peak_mib']} |{each}")
    by_key = {(r["batch"], r["worker"], r["precision"], r["input"]): r["ringtrain"] for r in rows}
    pairs = [f"{by_key[key] / by_key[(*key[:3], 'raw')]:.3f} (batch {key[0]}, {key[2]})" for key in by_key
             if key[3] == "jpeg" and by_key[key] and by_key.get((*key[:3], "raw"))]
    if pairs:
        lines += ["", f"JPEG input against raw (target {INPUT_TARGET}): {', '.join(pairs)}."]
    return lines


def run_kernel_table(options, machine):
    program = ROOT / "build/bench/cuda_commands"
    if options.device != "cuda" or not program.exists() or time_is_up(options, 0.8):
        return
    for precision in options.precisions:
        known = rates(machine, options, precision)
        subprocess.run([sys.executable, str(ROOT / "tests/gpu/kernel_table.py"), "--precision", precision, "--output",
                        f"{options.output}_kernels_{precision}",
                        *(["--tflops", str(known[0] / 1e12), "--terabytes", str(known[1] / 1e12)] if known else [])])


def main():
    parser = make_parser(__doc__, "results/gpu/resnet")
    parser.set_defaults(minutes=10.0, case_seconds=120.0, window_seconds=2.0, warmup_seconds=2.0, search_seconds=60.0)
    parser.add_argument("--photographs", help="folder of n01440764_name.JPEG ... with classes1000.txt [../shared/data/imagenet-samples, else made up]")
    parser.add_argument("--input", choices=["raw", "jpeg"], action="append", help="[both]")
    parser.add_argument("--data-only", action="store_true", help="make the data sets of both kinds of input, and nothing else")
    parser.add_argument("--worker", type=int, help="measures also with batch norm over groups of this many samples")
    parser.add_argument("--threads", type=int, default=14, help="threads of the loader [14]")
    parser.add_argument("--depth", type=int, default=50)
    options = parse(parser)
    size, depth = (32, 18) if options.tiny else (224, options.depth)
    data_sets, what = {}, "no data set"
    if options.side != "pytorch":
        with making("pictures"):
            data_sets, what = make_data(options, size)
    if options.data_only:
        return print(what)
    batches = [4] if options.tiny else options.batch or BATCHES
    cases = [{"depth": depth, "size": size, "batch": batch, "worker": batch, "precision": precision, "input": kind, "threads": options.threads}
             for kind in options.input or ["raw", "jpeg"] for precision in options.precisions for batch in batches]
    if options.worker:
        cases += [{**case, "worker": options.worker} for case in cases if case["input"] == "raw"]
    # PyTorch has one kind of input and one kind of batch norm, so it measures each batch and precision once.
    key = lambda case: (case["batch"], case["precision"])
    measured = []
    found, machine = compare("peer_resnet.py", key, cases,
                             lambda case, step_seconds: run_ringtrain(lambda seconds: experiment(case, data_sets, seconds), options, step_seconds),
                             options, own_key=lambda case: (*key(case), case["worker"], case["input"]))
    for case, row in zip(cases, found):
        known = rates(machine, options, case["precision"]) if (depth, size) == (50, 224) else None
        top = bounds.resnet50_images_per_second(case["batch"], known)
        measured.append({**case, **row, "bound": round(top) if top else "", **speed_columns(row, "ringtrain", case["batch"], top),
                         **speed_columns(row, "pytorch", case["batch"], top), "ratio_target": RATIO_TARGET,
                         "rate_target": bounds.images_target(options.gpu or machine.get("device")),
                         **reached_columns(machine, case["precision"])})
    facts = about(options, machine.get("torch", "not reached"), **gpu_facts(machine, options),
                  data=f"{what}; PyTorch: random pixels in device memory")
    write(options, measured, facts, table(measured, facts, options.ways))
    if options.side == "both":
        run_kernel_table(options, machine)
    print((ROOT / f"{options.output}.md").read_text())


if __name__ == "__main__":
    main()
