#!/usr/bin/env python3
"""Runs the program's own sums on simulated ranks of a cluster (SimGrid's SMPI): make simulate [RANKS=1024] [ARGS="..."].

Prints and, with --csv, appends a line for each of: a sum of ResNet-50's gradient in buckets that are all ready at once,
counters, a broadcast of the weights; with --what step a whole training step, with sleeps in the place of computing.
results/simulate/README.md says what is stated, and what the figures mean.
"""
import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import platforms

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "simulate"
ELEMENTS = 25_557_032
SOURCES = [
    "tests/simulate/simulate.cpp",
    *(f"src/cluster/{name}.cpp" for name in (
        "binding", "communicator", "device_choice", "fault_tolerance", "gradient_reducer", "mpi_communicator",
        "mpi_counter_sums", "mpi_lanes", "mpi_library_sums", "mpi_root_sums", "rank_group", "session", "slurm_job",
        "span_ranks", "start_guard", "sum_choice", "sum_schedule")),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "src" / "base").glob("*.cpp"))),
]
COLUMNS = ("commit", "what", "topology", "ranks", "ranks_per_node", "algorithm", "bucket_mib", "node_gb_s", "node_us",
           "network_gb_s", "network_us", "seconds", "of_bound", "host_seconds")


def build():
    """Compiles the program's own files for SMPI, which replaces MPI and the clock."""
    BUILD.mkdir(parents=True, exist_ok=True)
    objects = []
    headers = max(path.stat().st_mtime for path in (ROOT / "src").rglob("*.h"))
    for source in SOURCES:
        made = BUILD / (Path(source).stem + ".o")
        objects.append(str(made))
        if made.exists() and made.stat().st_mtime > max(headers, (ROOT / source).stat().st_mtime):
            continue
        print("compile", source, flush=True)
        subprocess.run(["smpicxx", "-std=c++20", "-O2", "-w", f"-I{ROOT}/src", f"-I{ROOT}/build/generated", "-c",
                        str(ROOT / source), "-o", str(made)], check=True)
    subprocess.run(["smpicxx", *objects, "-o", str(BUILD / "simulate")], check=True)


def bucket_mib(ranks):
    """As bucket_elements() of src/run/plan.h for CPU ranks."""
    return max(1.0, ranks * 4 / 1024)


def bound(ranks, o):
    """Seconds in which a node must send its share: 2 (n - 1) / n of the gradient over n nodes."""
    nodes = ranks // o.ranks_per_node
    if nodes < 2:
        return 2 * (ranks - 1) / ranks * ELEMENTS * 4 / (o.node_gb_s * 1e9)
    return 2 * (nodes - 1) / nodes * ELEMENTS * 4 / (o.network_gb_s * 1e9)


def simulate(ranks, algorithm, o, folder):
    """{what: simulated seconds}, and the seconds that it took."""
    base = folder / "platform"
    platforms.write(base, o.topology, ranks // o.ranks_per_node, o.ranks_per_node, o)
    mib = o.bucket_mib or bucket_mib(ranks)
    command = ["smpirun", "-np", str(ranks), "-platform", f"{base}.xml", "-hostfile", f"{base}.hosts",
               "--cfg=network/model:CM02",  # the stated latency and bandwidth, without factors of TCP
               "--cfg=smpi/test:1e-6", "--cfg=smpi/simulate-computation:no", "--cfg=smpi/allreduce:ompi",
               "--cfg=smpi/shared-malloc-blocksize:33554432", "--log=root.thresh:warning", str(BUILD / "simulate"), o.what,
               algorithm, *map(str, (o.node_gb_s, o.node_us, o.network_gb_s, o.network_us, mib, o.forward, o.backward,
                                     o.update))]
    begin = time.time()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        sys.exit(f"error: the simulation of {ranks} ranks failed (exit code {done.returncode}):\n{done.stderr[-2000:]}")
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: float(line[1]) for line in lines if len(line) == 2}, mib, time.time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int, nargs="+", help="numbers of ranks")
    parser.add_argument("--what", choices=("collectives", "step"), default="collectives")
    parser.add_argument("--topology", choices=sorted(platforms.TOPOLOGIES), default="fat_tree")
    parser.add_argument("--ranks-per-node", type=int, default=16)
    parser.add_argument("--algorithm", nargs="+", default=["auto"],
                        help="as communication.algorithm; library: MPI_Allreduce with Open MPI's choices [auto]")
    parser.add_argument("--node-gb-s", type=float, default=5, help="of a message within a node [5]")
    parser.add_argument("--node-us", type=float, default=1, help="latency within a node [1]")
    parser.add_argument("--network-gb-s", type=float, default=12, help="of a node's network [12]")
    parser.add_argument("--network-us", type=float, default=2, help="latency between nodes [2]")
    parser.add_argument("--bucket-mib", type=float, default=0, help="0: as the program chooses [0]")
    parser.add_argument("--forward", type=float, default=0.1, help="seconds of a step's forward pass [0.1]")
    parser.add_argument("--backward", type=float, default=0.2, help="seconds of its backward pass [0.2]")
    parser.add_argument("--update", type=float, default=0.01, help="seconds of its update [0.01]")
    parser.add_argument("--csv", type=Path, help="lines are appended to this file")
    o = parser.parse_args()
    for ranks in o.ranks:
        if ranks < o.ranks_per_node or ranks % o.ranks_per_node:
            parser.error(f"{ranks} ranks do not fill nodes of {o.ranks_per_node}")
    build()
    commit = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    is_new = o.csv is not None and not o.csv.exists()
    with tempfile.TemporaryDirectory(prefix="simulate-") as folder, open(o.csv or os.devnull, "a", newline="") as file:
        table = csv.writer(file)
        if is_new:
            table.writerow(COLUMNS)
        for ranks in o.ranks:
            for algorithm in o.algorithm:
                seconds, mib, took = simulate(ranks, algorithm, o, Path(folder))
                for what, value in seconds.items():
                    of_bound = f"{value / bound(ranks, o):.2f}" if what == "sum" else ""
                    table.writerow([commit, what, o.topology, ranks, o.ranks_per_node, algorithm, f"{mib:g}", o.node_gb_s,
                                    o.node_us, o.network_gb_s, o.network_us, f"{value:.6g}", of_bound, f"{took:.0f}"])
                    file.flush()
                    note = f", {of_bound} times what the nodes' network needs" if of_bound else ""
                    print(f"{ranks} ranks, {algorithm}: {what} {1e3 * value:.3f} ms{note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
