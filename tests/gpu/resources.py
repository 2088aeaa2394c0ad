#!/usr/bin/env python3
"""Checks the registers and memory that the compiled CUDA kernels need, as ptxas reported them during compilation.

  tests/gpu/resources.py            compares with src/backend/cuda/device/recorded/kernel_resources.csv; the exit code is 1 when a kernel
                                    spills registers to memory, or when a kernel's row is not the recorded one
  tests/gpu/resources.py --record   writes the table; rows of kinds of GPU that are not built stay as they are

The table is compiled into the program, which sizes grids by it (src/backend/cuda/kernels/compiled.h). Another version
of nvcc chooses other registers, so rows are compared only with the version that the table names. Spills are always
checked.
"""
import argparse
import csv
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD = ROOT / "src/backend/cuda/device/recorded/kernel_resources.csv"
KEY = ["kernel", "type", "sm"]
COLUMNS = KEY + ["registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "shared_bytes"]
TYPES = {"float": "fp32", "Bf16": "bf16", "Fp16": "fp16"}


def setting(name):
    """Reads a setting of build/cuda.mk."""
    match = re.search(rf"^{name} := (.*)$", (ROOT / "build" / "cuda.mk").read_text(), re.M)
    return match.group(1).strip() if match else ""


def nvcc_version():
    text = subprocess.run([*setting("NVCC").split(), "--version"], text=True, capture_output=True, check=True).stdout
    return re.search(r"V([\d.]+)", text).group(1)


def demangle(names):
    return subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True).stdout.split("\n")


def rows_of(text):
    entries = re.findall(
        r"Compiling entry function '(\S+)' for 'sm_(\w+)'\n(?:.*\n)*?"
        r" *(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*Used (\d+) registers(.*)\n", text)
    for (_, sm, stack, stores, loads, registers, rest), name in zip(entries, demangle([e[0] for e in entries])):
        kernel, of_type = re.search(r"(\w+)(?:<(?:\w+::)*(\w+)[^>]*>)?\(", name).groups()
        shared = re.search(r"(\d+) bytes smem", rest)
        yield dict(zip(COLUMNS, [kernel, TYPES.get(of_type, of_type or "-"), int(sm), int(registers), int(stack), int(stores),
                                 int(loads), int(shared.group(1)) if shared else 0]))


def compiled():
    logs = sorted((ROOT / "build" / "obj" / "backend" / "cuda" / "kernels" / "table").glob("*.cu.ptxas"))
    if not logs:
        sys.exit("error: no kernels were compiled (build/obj/backend/cuda/kernels/table/*.cu.ptxas); run make first")
    return sorted((row for log in logs for row in rows_of(log.read_text())), key=lambda row: [row[k] for k in KEY])


def with_others(rows):
    """Adds the recorded rows of the kinds of GPU that this build has no kernels for."""
    built = {row["sm"] for row in rows}
    with RECORD.open() as file:
        version = file.readline().split()[2].rstrip(";")
        others = [row for row in csv.DictReader(file) if int(row["sm"]) not in built]
    if others and version != nvcc_version():
        sys.exit(f"error: the record is of nvcc {version}; record with CUDA_ARCHITECTURES=all, so that no row of it stays")
    return sorted([*rows, *others], key=lambda row: [row["kernel"], row["type"], int(row["sm"])])


def write(rows):
    with RECORD.open("w", newline="") as file:
        file.write(f"# nvcc {nvcc_version()}; written by tests/gpu/resources.py --record\n")
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(f"{len(rows)} kernels: {RECORD.relative_to(ROOT)}")


def differences(rows):
    """Sentences about differences from the record."""
    if not RECORD.exists():
        return [f"{RECORD.relative_to(ROOT)} is missing"]
    with RECORD.open() as file:
        version = file.readline().split()[2].rstrip(";")
        recorded = {tuple(row[k] for k in KEY): row for row in csv.DictReader(file)}
    if version != nvcc_version():
        print(f"recorded with nvcc {version}, this is {nvcc_version()}: only spills are checked")
        return []
    found = {tuple(str(row[k]) for k in KEY): {c: str(row[c]) for c in COLUMNS} for row in rows}
    said, built = [], {key[2] for key in found}  # a build may be for some of the recorded kinds of GPU
    recorded = {key: row for key, row in recorded.items() if key[2] in built}
    for key in sorted(recorded.keys() | found.keys()):
        name = "{} {} sm_{}".format(*key)
        if key not in found or key not in recorded:
            said.append(f"{name}: {'is no longer compiled' if key in recorded else 'is new'}")
        else:
            said += [f"{name}: {column} {recorded[key][column]} -> {found[key][column]}"
                     for column in COLUMNS if recorded[key][column] != found[key][column]]
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    rows = compiled()
    spills = [f"{row['kernel']} {row['type']} sm_{row['sm']}: spills {row['spill_store_bytes']} bytes"
              for row in rows if row["spill_store_bytes"] or row["spill_load_bytes"]]
    if arguments.record:
        write(with_others(rows) if RECORD.exists() else rows)
    problems = spills if arguments.record else spills + differences(rows)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems and not spills:
        print("If that was meant: tests/gpu/resources.py --record", file=sys.stderr)
    if not problems:
        print(f"{len(rows)} kernels, no spills")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
