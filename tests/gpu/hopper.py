#!/usr/bin/env python3
"""Checks the kernels of bin/libringtrain-hopper.so by reading their compiled code. It needs no GPU.

  tests/gpu/hopper.py            compares with src/backend/cuda/device/recorded/hopper_kernels.csv; the exit code is 1 when a kernel uses
                                 local memory (spilled registers, for example), multiplies or loads in another way than
                                 its tile says, or when its row is not the recorded one
  tests/gpu/hopper.py --record   writes the table

The table says for each kernel how many registers it uses, how many HGMMA instructions of which shape it has, how many
loads by the copy engine in im2col mode and in other modes, and how many stores in im2col mode. Where the compiler
can prove that a tree's result is not used, it leaves two dummy HGMMA of another shape. Shape and number are therefore
checked against the tile: a step of 64 channels (in a weight gradient: 64 pixels) needs (rows / 64) x (64 / 16)
products. The code has them twice, for the first step and for the loop over the other steps.

Another version of nvcc chooses other registers, so rows are compared only with the version that the table names. The
other checks are always made.
"""
import argparse
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "bin" / "libringtrain-hopper.so"
OBJECTS = ROOT / "build" / "obj" / "backend" / "cuda" / "hopper" / "instance"
INSTANCES = ROOT / "src/backend/cuda/hopper/instance.h"
RECORD = ROOT / "src/backend/cuda/device/recorded/hopper_kernels.csv"
COLUMNS = ["kernel", "registers", "stack_bytes", "local_bytes", "local_accesses", "products", "product", "im2col_loads",
           "other_loads", "im2col_stores"]
TYPES = {"bf16": "BF16", "fp16": "F16"}


def run(*command):
    return subprocess.run([str(c) for c in command], text=True, capture_output=True, check=True).stdout


def nvcc_version():
    setting = re.search(r"^NVCC := (.*)$", (ROOT / "build" / "cuda.mk").read_text(), re.M).group(1)
    return re.search(r"V([\d.]+)", run(*setting.split(), "--version")).group(1)


def row_of(tool, path):
    """The table's row of an object file with one kernel."""
    usage = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", run(tool, "--dump-resource-usage", path))
    code = run(tool, "-sass", path)
    products = re.findall(r"\bHGMMA\.(\d+x\d+x\d+\.F32(?:\.BF16)?)", code)
    if len(usage) != 1 or len(set(products)) != 1:
        sys.exit(f"error: {path.name} has {len(usage)} kernels and the products {sorted(set(products))}; one of each was expected")
    loads = re.findall(r"\bUTMALDG\.[\w.]+", code)
    return dict(zip(COLUMNS, [
        path.name.removesuffix(".cu.o"), *map(int, usage[0]), len(re.findall(r"\b(?:LDL|STL)\b", code)), len(products),
        products[0], sum("IM2COL" in load for load in loads), sum("IM2COL" not in load for load in loads),
        len(re.findall(r"\bUTMASTG\.[\w.]*IM2COL", code))]))


def problems_of(row):
    """Faults of a kernel that do not depend on the recorded row."""
    name = row["kernel"]
    kind, element, rows, columns = re.fullmatch(r"(\w+)_(bf16|fp16)_(\d+)x(\d+)", name).groups()
    for column in ("stack_bytes", "local_bytes", "local_accesses"):
        if row[column]:
            yield f"{name}: {column} is {row[column]}: it keeps values in local memory"
    shape = f"64x{columns}x16.F32" + (".BF16" if element == "bf16" else "")
    wanted = 2 * (int(rows) // 64) * (64 // 16)
    if (row["product"], row["products"]) != (shape, wanted):
        yield f"{name}: {row['products']} HGMMA {row['product']}; its tile wants {wanted} HGMMA {shape}"
    if not row["im2col_loads"]:
        yield f"{name}: it does not load by the copy engine's im2col mode"
    if kind != "weight_gradient" and not row["im2col_stores"]:
        yield f"{name}: it does not store by the copy engine"


def differences(rows):
    if not RECORD.exists():
        return [f"{RECORD.relative_to(ROOT)} is missing"]
    with RECORD.open() as file:
        version = file.readline().split()[2].rstrip(";")
        recorded = {row["kernel"]: row for row in csv.DictReader(file)}
    if version != nvcc_version():
        print(f"recorded with nvcc {version}, this is {nvcc_version()}: rows are not compared")
        return []
    found = {row["kernel"]: {c: str(row[c]) for c in COLUMNS} for row in rows}
    said = []
    for name in sorted(recorded.keys() | found.keys()):
        if name not in found or name not in recorded:
            said.append(f"{name}: {'is no longer compiled' if name in recorded else 'is new'}")
        else:
            said += [f"{name}: {c} {recorded[name][c]} -> {found[name][c]}" for c in COLUMNS if recorded[name][c] != found[name][c]]
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    if not LIBRARY.exists():
        sys.exit("error: there is no bin/libringtrain-hopper.so; run make hopper first")
    tools = subprocess.run([ROOT / ".ci" / "cuobjdump.sh"], text=True, capture_output=True, cwd=ROOT)
    if tools.returncode:
        sys.exit(f"error: cuobjdump was not found and could not be fetched: {tools.stderr.strip().splitlines()[-1]}")
    folder = (ROOT / tools.stdout.strip().splitlines()[-1]).resolve()
    # cuobjdump starts nvdisasm, which must be on PATH.
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    # The folder may also have objects of kernels that are no longer in the list.
    names = sorted(re.findall(r"^  X\((\w+),", INSTANCES.read_text(), re.M))
    rows = [row_of(folder / "cuobjdump", path) for name in names if (path := OBJECTS / f"{name}.cu.o").exists()]
    wrong = [problem for row in rows for problem in problems_of(row)]
    if len(rows) > 12:
        wrong.append(f"{len(rows)} kernels; the library is to have at most 12")
    if arguments.record:
        with RECORD.open("w", newline="") as file:
            file.write(f"# nvcc {nvcc_version()}; written by tests/gpu/hopper.py --record\n")
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
        print(f"{len(rows)} kernels: {RECORD.relative_to(ROOT)}")
    changed = [] if arguments.record else differences(rows)
    for problem in wrong + changed:
        print(f"error: {problem}", file=sys.stderr)
    if changed and not wrong:
        print("If that was meant: tests/gpu/hopper.py --record", file=sys.stderr)
    if not wrong + changed:
        print(f"{len(rows)} kernels for Hopper: no local memory, products and im2col loads as their tiles say")
    return 1 if wrong + changed else 0


if __name__ == "__main__":
    sys.exit(main())
