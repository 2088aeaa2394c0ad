"""Shared by PyTorch's sides of the benchmarks: ranks and threads, windows of timed steps, and the rate of a matrix
product."""
import argparse
import json
import os
import platform
import resource
import socket
import statistics
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(f"error: {sys.executable} has no torch; tests/bench/setup_pytorch.sh makes an environment that has")


def matmul_gflops(precision, size=2048, tries=6):
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    best = float("inf")
    with torch.no_grad():
        for _ in range(tries):
            start = time.perf_counter()
            a @ b
            best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def peak_resident_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(step, options, agree):
    """Returns the samples per second of each window of step(number). `agree` gives all ranks the same number (rank
    0's)."""
    start, done = time.perf_counter(), 0
    while agree(done < 2 or time.perf_counter() - start < options.warmup_seconds):
        step(done)
        done += 1
    start = time.perf_counter()
    for number in range(2):
        step(number)
    seconds = (time.perf_counter() - start) / 2
    steps = int(agree(max(2, round(options.window_seconds / seconds))))
    rates = []
    for _ in range(options.windows):
        start = time.perf_counter()
        for number in range(steps):
            step(number)
        agree(0)  # waits until all ranks have finished
        rates.append(steps * options.batch / (time.perf_counter() - start))
    return rates


def summary(rates):
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}


def _run_rank(rank, body, options, port, cpus):
    agree = lambda value: value
    if options.ranks > 1:
        # Binds the ranks as mpirun binds ringtrain's, with equal shares of the cores.
        share = len(cpus) // options.ranks
        if share:
            os.sched_setaffinity(0, cpus[rank * share:(rank + 1) * share])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=options.ranks)

        def agree(value):
            box = torch.tensor([float(value)])
            torch.distributed.broadcast(box, 0)
            return box.item()

    torch.set_num_threads(max(1, options.threads // options.ranks))
    import_bytes = peak_resident_bytes()
    matmul = matmul_gflops(options.precision)
    report = body(options, agree)
    matmul = max(matmul, matmul_gflops(options.precision))
    sums = torch.tensor([matmul, peak_resident_bytes(), import_bytes], dtype=torch.float64)
    if options.ranks > 1:
        torch.distributed.all_reduce(sums)
    matmul, peak_bytes, import_bytes = sums.tolist()
    if rank == 0:
        print(json.dumps({**report, "matmul_gflops": matmul, "peak_memory_bytes": peak_bytes, "import_memory_bytes": import_bytes,
                          **{key: getattr(options, key) for key in ("ranks", "threads", "precision", "batch")},
                          "torch": torch.__version__, "python": platform.python_version()}), flush=True)
    if options.ranks > 1:
        torch.distributed.barrier()
        os._exit(0)  # gloo's threads sometimes abort a process that tears them down in order


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def add_options(parser, batch):
    parser.add_argument("--batch", type=int, default=batch, help=f"samples per update over all ranks [{batch}]")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast [fp32]")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of all ranks together [the number of cores]")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--window-seconds", type=float, default=1.0)
    parser.add_argument("--warmup-seconds", type=float, default=2.0)


def make_parser(description):
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def run(body, parser):
    """Prints the report of body(options, agree) on rank 0, where body is a function of a module. Adds what all
    benchmarks report: matmul_gflops (the best of several, before and after) and the peak of resident memory, summed
    over the ranks."""
    options = parser.parse_args()
    if options.batch % options.ranks:
        parser.error(f"--batch {options.batch} cannot be shared out among {options.ranks} ranks")
    cpus = sorted(os.sched_getaffinity(0))
    if options.ranks == 1:
        _run_rank(0, body, options, 0, cpus)
    else:
        torch.multiprocessing.spawn(_run_rank, (body, options, _free_port(), cpus), nprocs=options.ranks)
