#!/usr/bin/env python3
"""Runs the program's own collectives on simulated ranks of a cluster (SimGrid's SMPI): make simulate [RANKS=64]
[ARGS="..."].

Prints a line for each part of a job, and appends it to a file with --csv. The start of the job always comes first.
--what job: a broadcast of the weights, a whole training step, counters, and a gather for a checkpoint. The computation
of the step is replaced by sleeps. The time of the whole step is compared with the result of `ringtrain predict`.
--what step: the step only.
--what collectives: a sum of ResNet-50's gradient in buckets that are all ready at once, counters, and a gather.
The parts can also be named one by one: --what broadcast,counters. tests/simulate/README.md lists the assumptions and
explains the figures.
"""
import argparse
import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "tests" / "simulate"
BUILD = ROOT / "build" / "simulate"
PROGRAM = ROOT / "bin" / "ringtrain"
EXPERIMENT = ROOT / "configs" / "imagenet_resnet50_8192.yaml"
MEASURED = HERE / "resnet50_step.json"
SOURCES = [
    *(f"tests/simulate/{name}.cpp" for name in ("simulate", "memory", "node_exchange", "waits")),
    *(f"src/cluster/{name}.cpp" for name in (
        "binding", "communicator", "gradient_reducer", "launcher", "mpi_communicator", "mpi_sums", "rank_group",
        "session", "sum_algorithms", "watchdog")),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "src" / "base").glob("*.cpp"))),
]
# SimGrid uses the given latency and bandwidth without TCP's correction factors. Tests of requests and readings of the
# clock take no time (waits.h). If the program leaves the algorithm to MPI, SimGrid uses one that libraries take for few
# bytes. For Allreduce, this is Open MPI's choice.
OPTIONS = {
    "network/model": "CM02", "network/crosstraffic": "0", "smpi/simulate-computation": "no", "smpi/test": "0",
    "smpi/wtime": "0", "smpi/iprobe": "0", "smpi/send-is-detached-thresh": "0", "smpi/coll-selector": "ompi",
    "smpi/allgather": "rdb", "smpi/allgatherv": "mpich_rdb", "smpi/bcast": "binomial_tree",
    "smpi/shared-malloc-blocksize": "4194304",
}
PARTS = ("sum", "counters", "gather", "broadcast", "step")
JOBS = {"job": "broadcast,step,counters,gather", "collectives": "sum,counters,gather"}
STATED = ("message_gb_s", "memory_gb_s", "node_us", "network_gb_s", "network_us")
COLUMNS = ("commit", "what", "topology", "ranks", "ranks_per_node", "algorithm", "bucket_elements", *STATED, "faster",
           "look_us", "spare_core", "seconds", "of_bound", "predicted_seconds", "efficiency", "predicted_efficiency",
           "host_seconds", "elements")


def run(command, what, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"error: {what} failed (exit code {done.returncode}): {' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def compile_all():
    """Compiles the platform, and the program's own files for SMPI, which replaces MPI and the clock."""
    BUILD.mkdir(parents=True, exist_ok=True)
    objects = []
    utf8proc = dict(re.findall(r"^UTF8PROC_(CFLAGS|LIBS) := (.*)$", (ROOT / "build" / "config.mk").read_text(), re.MULTILINE))
    headers = max(path.stat().st_mtime for folder in (ROOT / "src", HERE) for path in folder.rglob("*.h"))
    for source in SOURCES:
        made = BUILD / (Path(source).stem + ".o")
        objects.append(made)
        if made.exists() and made.stat().st_mtime > max(headers, (ROOT / source).stat().st_mtime):
            continue
        print("compile", source, flush=True)
        run(["smpicxx", "-std=c++20", "-O2", "-w", f"-I{ROOT}/src", f"-I{ROOT}/build/generated", "-include",
             HERE / "waits.h", *shlex.split(utf8proc["CFLAGS"]), "-c", ROOT / source, "-o", made], "compiling")
    run(["smpicxx", *objects, *shlex.split(utf8proc["LIBS"]), "-o", BUILD / "simulate"], "linking")
    run(["c++", "-std=c++20", "-O2", "-shared", "-fPIC", HERE / "platform.cpp", "-o", BUILD / "platform.so", "-lsimgrid"],
        "compiling")


def planned_sums(ranks):
    """Returns (values of the gradient, values of a bucket) as the program plans them for `ranks` CPU ranks of 32
    samples."""
    text = run([PROGRAM, "plan", EXPERIMENT, "--ranks", ranks, f"batch.global={32 * ranks}"], "planning")
    found = re.search(r"^ +sums +([\d,]+) gradients in buckets of ([\d,]+)$", text, re.MULTILINE)
    if found is None:
        sys.exit(f"error: `{PROGRAM.name} plan` does not say which sums {ranks} ranks make")
    return [int(text.replace(",", "")) for text in found.groups()]


def rank_gb_s(o):
    """The GB/s at which a rank reads within its node while all ranks of the node read."""
    return min(o.message_gb_s, o.memory_gb_s / o.ranks_per_node)


def bound(ranks, elements, o):
    """The seconds in which a node must send its share, which is 2 (n - 1) / n of the gradient with n nodes. With one
    node, n is the number of its ranks, which read."""
    nodes = ranks // o.ranks_per_node
    count, gb_s = (ranks, rank_gb_s(o)) if nodes == 1 else (nodes, o.network_gb_s)
    return 2 * (count - 1) / count * elements * 4 / (gb_s * 1e9)


def stated_preflight(o):
    """The measurements by `ringtrain bench` of ResNet-50's step on one core, made `o.faster` times faster, with the
    given links."""
    text = json.loads(MEASURED.read_text())
    step = text["step"]
    for place in (step, *step["passes"]):
        for key in ("forward", "backward", "update"):
            if key in place:
                place[key] /= o.faster
    if o.spare_core:
        step["on_device"] = True
    step.update(ranks_per_node=o.ranks_per_node, cores_per_node=2 * o.ranks_per_node, full_node_pass=0, jitter=0,
                seconds=step["forward"] + step["backward"] + step["update"], input_seconds=0, input_wait=0)
    links = {"node": (o.node_us, rank_gb_s(o)), "network": (o.network_us, o.network_gb_s)}
    text.update(ranks_per_node=o.ranks_per_node, comm=[], input=[], fit={
        name: {"alpha": us * 1e-6, "beta": 1e-9 / gb_s, "gap": us * 1e-6, "error": 0} for name, (us, gb_s) in links.items()})
    return text


def predicted(ranks, algorithm, preflight, o, folder):
    """Returns (seconds, efficiency) of the weakly scaled step, with the sums that the program takes for these links."""
    file, table = folder / "preflight.json", folder / "predicted.csv"
    file.write_text(json.dumps(preflight))
    links = [f"communication.node_gb_s={rank_gb_s(o)}", f"communication.node_latency_us={o.node_us}",
             f"communication.network_gb_s={o.network_gb_s}", f"communication.network_latency_us={o.network_us}",
             f"communication.algorithm={'mpi' if algorithm == 'library' else algorithm}"]
    run([PROGRAM, "predict", EXPERIMENT, *links, "--preflight", file, "--ranks", ranks, "--csv", table], "predicting")
    with open(table, newline="") as lines:
        (row,) = (row for row in csv.DictReader(lines) if row["scaling"] == "weak" and row["chosen"] == "true")
    return float(row["step_seconds"]), float(row["efficiency"])


def simulate(ranks, algorithm, elements, bucket, preflight, o, folder):
    """Returns {name: simulated seconds}."""
    nodes = ranks // o.ranks_per_node
    hosts, watermark = folder / "hosts", folder / "watermark"
    hosts.write_text("".join(f"n{rank // o.ranks_per_node}\n" for rank in range(ranks)))
    step = preflight["step"]
    watermark.write_text("".join(f"{at} {share}\n" for at, share in step["watermark"]))
    stated = (o.message_gb_s, o.node_us, o.network_gb_s, o.network_us)
    environment = {**os.environ, "RINGTRAIN_PLATFORM": " ".join(map(str, (o.topology, nodes, *stated)))}
    text = run(["smpirun", "-np", ranks, "-platform", BUILD / "platform.so", "-hostfile", hosts,
                *(f"--cfg={key}:{value}" for key, value in OPTIONS.items()), "--log=root.thresh:warning",
                BUILD / "simulate", o.what, algorithm, o.ranks_per_node, rank_gb_s(o), o.node_us, o.network_gb_s,
                o.network_us, elements, bucket, watermark, step["forward"], step["backward"], step["update"], o.look_us],
               f"the simulation of {ranks} ranks", cwd=folder, env=environment)
    seconds = {words[0]: float(words[1]) for words in map(str.split, text.splitlines()) if len(words) == 2}
    if missing := [part for part in o.what.split(",") if part not in seconds]:
        sys.exit(f"error: the simulation of {ranks} ranks ended before its {missing[0]}")
    return seconds


def check(parser, o):
    o.what = ",".join(JOBS.get(part, part) for part in o.what.split(","))
    if unknown := [part for part in o.what.split(",") if part not in PARTS]:
        parser.error(f"--what {unknown[0]}: choose {', '.join((*JOBS, *PARTS))}, or several parts with commas")
    for ranks in o.ranks:
        nodes = ranks // o.ranks_per_node
        if ranks < o.ranks_per_node or ranks % o.ranks_per_node:
            parser.error(f"{ranks} ranks do not fill nodes of {o.ranks_per_node}")
        if nodes > 32 and nodes % 32:
            parser.error(f"{ranks} ranks are {nodes} nodes, which do not fill groups of 32: choose a multiple of "
                         f"{32 * o.ranks_per_node} ranks")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int, nargs="+", help="numbers of ranks")
    parser.add_argument("--what", default="job",
                        help=f"{', '.join(JOBS)}, or parts with commas: {', '.join(PARTS)} [job]")
    parser.add_argument("--elements", type=int, default=0, help="number of elements of the vector; 0: those of ResNet-50's gradient [0]")
    parser.add_argument("--topology", choices=("fat_tree", "dragonfly"), default="fat_tree")
    parser.add_argument("--ranks-per-node", type=int, default=16)
    parser.add_argument("--algorithm", nargs="+", default=["auto"],
                        help="values of communication.algorithm, or library: MPI_Allreduce with Open MPI's choices [auto]")
    parser.add_argument("--message-gb-s", type=float, default=12, help="largest bandwidth of a message [12]")
    parser.add_argument("--memory-gb-s", type=float, default=200, help="bandwidth of a node's memory, for the values that its ranks read [200]")
    parser.add_argument("--node-us", type=float, default=1, help="latency within a node [1]")
    parser.add_argument("--network-gb-s", type=float, default=12, help="bandwidth of a node's network [12]")
    parser.add_argument("--network-us", type=float, default=2, help="latency between nodes [2]")
    parser.add_argument("--faster", type=float, default=10,
                        help="a rank computes this many times faster than the measured core [10]")
    parser.add_argument("--look-us", type=float, default=0,
                        help="a rank that computes looks at its messages every so many microseconds, not only at watermarks [0]")
    parser.add_argument("--spare-core", action="store_true",
                        help="`predict` assumes that sums are the work of another core; in the simulation, a rank that reads does not compute")
    parser.add_argument("--csv", type=Path, help="lines are appended to this file")
    o = parser.parse_args()
    check(parser, o)
    compile_all()
    commit = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    preflight = stated_preflight(o)
    step = preflight["step"]
    alone = step["forward"] + step["backward"] + step["update"]
    is_new = o.csv is not None and not o.csv.exists()
    with tempfile.TemporaryDirectory(prefix="simulate-") as folder, open(o.csv or os.devnull, "a", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        if is_new:
            table.writerow(COLUMNS)
        for ranks in o.ranks:
            elements, bucket = planned_sums(ranks)
            elements = o.elements or elements
            for algorithm in o.algorithm:
                begin = time.time()
                seconds = simulate(ranks, algorithm, elements, bucket, preflight, o, Path(folder))
                took = time.time() - begin
                for what, value in seconds.items():
                    of_bound, of_predict, note = "", ["", "", ""], ""
                    if what == "sum":
                        of_bound = f"{value / bound(ranks, elements, o):.2f}"
                        note = f", {of_bound} times what the nodes' network needs"
                    if what == "step":
                        other, efficiency = predicted(ranks, algorithm, preflight, o, Path(folder))
                        of_predict = [f"{other:.6g}", f"{alone / value:.4f}", f"{efficiency:.4f}"]
                        note = (f", efficiency {100 * alone / value:.1f} %; predicted {1e3 * other:.3f} ms, "
                                f"{100 * efficiency:.1f} %")
                    table.writerow([commit, what, o.topology, ranks, o.ranks_per_node, algorithm, bucket,
                                    *(getattr(o, name) for name in STATED), o.faster, o.look_us, int(o.spare_core),
                                    f"{value:.6g}", of_bound, *of_predict, f"{took:.0f}", elements])
                    file.flush()
                    print(f"{ranks} ranks, {algorithm}: {what} {1e3 * value:.3f} ms{note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
