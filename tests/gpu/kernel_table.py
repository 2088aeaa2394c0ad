#!/usr/bin/env python3
"""Compares each command of ringtrain's ResNet-50 step on a GPU, timed alone, with the bound of the same work.

  tests/gpu/kernel_table.py [--precision bf16] [--batch 256]     runs build/bench/cuda_commands
  tests/gpu/kernel_table.py --commands FILE.csv                  takes its output of one precision

resnet50_kernels.csv holds, per image, the bytes and FLOPs of every kernel of a step whose batch norms are fused as in
NVIDIA's MLPerf submissions (statistics in epilogues, scale-bias-ReLU in prologues, dReLU and the norm's sums after the
data gradient). A kernel's bound is the larger of bytes / bandwidth and FLOPs / peak. The bytes of weights are
divided by 256 images, so they are right for batch 256. Commands and kernels are matched by layer and kind: work that is
fused into a convolution here counts in that convolution's line of the bound. The command that loses most time comes
first. For a device that bounds.py does not know, --tflops and --terabytes give its rates; without them there is no
bound. Writes results/gpu/resnet50_kernels.csv and .md.
"""
import argparse
import csv
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import bounds
from bench_gpu import name_of_gpu

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = ["forward", "norm forward", "data gradient", "weight gradient", "norm backward", "other"]


def kernel_place(name):
    """Returns (layer, kind) of a kernel of the bound: l1.0.conv3:dbn_apply -> layer1.0.conv3, norm backward."""
    layer, _, what = name.partition(":")
    layer = re.sub(r"^l(\d)\.", r"layer\1.", layer).replace("down", "downsample")
    if what == "fprop":
        kind = "forward"
    elif what == "dgrad":
        kind = "data gradient"
    elif what == "wgrad":
        kind = "weight gradient"
    elif "dbn" in what or what == "bwd":
        kind = "norm backward"
    elif what in ("sbar", "bn_relu_maxpool", "fwd"):
        kind = "norm forward"
    else:
        return "other", "other"
    return {"stem": "conv1", "avgpool": "fc"}.get(layer, layer), kind


def command_place(part, name):
    """Returns (layer, kind) of a command: layer1.0.bn3 backward -> layer1.0.conv3, norm backward."""
    if "pool" in name:
        return "fc" if "average" in name else "conv1", f"norm {part}"
    found = re.search(r"(layer\d\.\d+\.)?(conv\d|bn\d|downsample|fc)", name)
    if part == "weights" or not found:
        return "other", "other"
    layer = (found[1] or "") + found[2].replace("bn", "conv")
    if "weight gradient" in name:
        return layer, "weight gradient"
    if "data gradient" in name:
        return layer, "data gradient"
    is_norm = found[2].startswith("bn") or re.search(r"downsample\.1|relu|factors|sums", name)
    if part == "forward":
        return layer, "norm forward" if is_norm else "forward"
    return layer, "norm backward"


def read_commands(options):
    if options.commands:
        return Path(options.commands).read_text()
    program = ROOT / "build/bench/cuda_commands"
    if not program.exists():
        sys.exit(f"{Path(sys.argv[0]).name}: error: build/bench/cuda_commands is not built: make build/bench/cuda_commands")
    done = subprocess.run([program, f"batch={options.batch}", f"precision={options.precision}", f"group={options.group}",
                           f"search_seconds={options.search_seconds}", f"flops_per_second={options.rates[0]}",
                           f"bytes_per_second={options.rates[1]}", *options.given],
                          text=True, capture_output=True)
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        sys.exit(done.returncode)
    said = done.stderr.splitlines()
    options.gaps = said[next((i for i, line in enumerate(said) if line.startswith("part: ")), len(said)):]
    if options.commands_to:
        with open(options.commands_to, "a") as file:  # all precisions go into one table
            head, *lines = done.stdout.splitlines()
            file.writelines(([] if file.tell() else [f"precision,{head}\n"]) + [f"{options.precision},{line}\n" for line in lines])
    return done.stdout


def make_rows(commands, batch, flops, bandwidth):
    found = defaultdict(lambda: {"microseconds": 0.0, "bound_microseconds": 0.0, "commands": []})
    for command in csv.DictReader(commands.splitlines()):
        entry = found[command_place(command["part"], command["name"])]
        entry["microseconds"] += float(command["microseconds"])
        entry["commands"].append(command["name"])
    with open(Path(__file__).parent / "resnet50_kernels.csv") as file:
        for kernel in csv.DictReader(file):
            seconds = max(float(kernel["bytes_per_image"]) / bandwidth, float(kernel["flops_per_image"]) / flops)
            found[kernel_place(kernel["kernel"])]["bound_microseconds"] += 1e6 * batch * seconds
    rows = [{"layer": layer, "kind": kind, "microseconds": round(entry["microseconds"], 1),
             "bound_microseconds": round(entry["bound_microseconds"], 1),
             "share": round(entry["bound_microseconds"] / entry["microseconds"], 2) if entry["microseconds"] else "",
             "commands": "; ".join(entry["commands"])} for (layer, kind), entry in found.items()]
    return sorted(rows, key=lambda row: row["bound_microseconds"] - row["microseconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--group", type=int, default=0, help="samples that batch norm takes together [batch]")
    parser.add_argument("--search-seconds", type=float, default=60, help="longest time for the choice of fusions [60]")
    parser.add_argument("--commands", help="CSV that cuda_commands printed")
    parser.add_argument("--commands-to", help="file to which the output of cuda_commands is appended")
    parser.add_argument("--gpu", help="the GPU's name, which decides the bounds [as nvidia-smi says]")
    parser.add_argument("--tflops", type=float, help="TFLOP/s that a matrix product reaches [this GPU's in bounds.py]")
    parser.add_argument("--terabytes", type=float, help="TB/s that a copy reaches [this GPU's in bounds.py]")
    parser.add_argument("--output", default="results/gpu/resnet50_kernels", help="path of the output, without .csv and .md")
    parser.add_argument("given", nargs="*", metavar="OPTION=VALUE", help="options of cuda_commands, such as size=32 width=16")
    parser.set_defaults(gaps=[])
    options = parser.parse_args()
    gpu = name_of_gpu() if options.gpu is None else options.gpu
    given = (options.tflops * 1e12, options.terabytes * 1e12) if options.tflops and options.terabytes else None
    known = given or bounds.rates_of(gpu, options.precision)
    options.rates = known or (float("inf"), float("inf"))  # so that bounds are 0
    rows = make_rows(read_commands(options), options.batch, *options.rates)
    output = ROOT / options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{output}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=rows[0])
        writer.writeheader()
        writer.writerows(rows)
    total, bound = (sum(row[key] for row in rows) for key in ("microseconds", "bound_microseconds"))
    at = f"{known[0] / 1e12:.0f} TFLOP/s and {known[1] / 1e12:.2f} TB/s" if known else f"unknown rates ({gpu or 'no name'}), so all bounds are 0"
    lines = ["# ResNet-50 step, kernel by kernel", "",
             f"{options.precision}, batch {options.batch}; bound at {at}. Commands timed "
             f"alone: {total / 1e3:.2f} ms, bound {bound / 1e3:.2f} ms, share {bound / total if total else 0:.0%}. Most lost time first.", "",
             "| kind | ms | bound ms | share |", "|---|---|---|---|"]
    for kind in KINDS:
        mine, least = (sum(row[key] for row in rows if row["kind"] == kind) / 1e3 for key in ("microseconds", "bound_microseconds"))
        lines.append(f"| {kind} | {mine:.2f} | {least:.2f} | {least / mine if mine else 0:.0%} |")
    if options.gaps:
        lines += ["", "```", *options.gaps, "```"]
    lines += ["", "| layer | kind | us | bound us | share | commands |", "|---|---|---|---|---|---|"]
    lines += [f"| {r['layer']} | {r['kind']} | {r['microseconds']} | {r['bound_microseconds']} | {r['share']} | {r['commands']} |" for r in rows]
    Path(f"{output}.md").write_text("\n".join(lines) + "\n")
    print(f"wrote {output}.csv and {output}.md")


if __name__ == "__main__":
    main()
