#!/usr/bin/env python3
"""The training step of the char-LSTM in PyTorch, as its users write it: nn.LSTM, nn.Linear on every position, mean
cross-entropy, Adam. Random tokens, so nothing is spent on input. Prints one JSON object.

  build/pytorch/bin/python tests/bench/pytorch_lstm.py --layers 4 --hidden 128 --steps 8 --batch 4096 --precision bf16
  ... --ranks 2    DistributedDataParallel over gloo, the batch and the threads shared out among the ranks

samples_per_second: median, minimum and maximum over windows of the whole step. With --input both, the faster of the two
ways to make the one-hot input is the result (one_hot per step, or rows of an identity matrix), and both are listed.
matmul_gflops: this machine's rate of a 2048^3 matrix product in the same precision and process: best of several, before
and after.
"""
import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(f"error: {sys.executable} has no torch; tests/bench/setup_pytorch.sh makes an environment that has")


class CharLstm(torch.nn.Module):
    def __init__(self, options, way):
        super().__init__()
        self.vocabulary, self.way = options.vocabulary, way
        self.lstm = torch.nn.LSTM(options.vocabulary, options.hidden, options.layers, batch_first=True,
                                  dropout=options.dropout if options.layers > 1 else 0.0)
        self.linear = torch.nn.Linear(options.hidden, options.vocabulary)
        self.register_buffer("identity", torch.eye(options.vocabulary), persistent=False)

    def forward(self, tokens):
        if self.way == "one-hot":
            x = torch.nn.functional.one_hot(tokens, self.vocabulary).float()
        else:
            x = torch.nn.functional.embedding(tokens, self.identity)
        return self.linear(self.lstm(x)[0])


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


def make_step(options, way, ranks):
    torch.manual_seed(1)
    model = CharLstm(options, way)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-3)
    batches = [torch.randint(options.vocabulary, (options.batch // ranks, options.steps + 1)) for _ in range(4)]
    cast = (lambda: torch.autocast("cpu", torch.bfloat16)) if options.precision == "bf16" else contextlib.nullcontext

    def step(number):
        tokens = batches[number % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        with cast():
            logits = wrapped(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, options.vocabulary), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def measure(options, way, ranks, agree):
    """Samples per second of each window. `agree` makes a number the same on all ranks (rank 0's)."""
    step = make_step(options, way, ranks)
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
        agree(0)  # all ranks have finished
        rates.append(steps * options.batch / (time.perf_counter() - start))
    return rates


def summary(rates):
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}


def run_rank(rank, options, ranks, port, cpus):
    agree = lambda value: value
    if ranks > 1:
        # As mpirun binds ringtrain's ranks: equal shares of the cores.
        share = len(cpus) // ranks
        if share:
            os.sched_setaffinity(0, cpus[rank * share:(rank + 1) * share])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)

        def agree(value):
            box = torch.tensor([float(value)])
            torch.distributed.broadcast(box, 0)
            return box.item()

    torch.set_num_threads(max(1, options.threads // ranks))
    ways = ["one-hot", "embedding"] if options.input == "both" else [options.input]
    matmul = matmul_gflops(options.precision)
    rates = {way: measure(options, way, ranks, agree) for way in ways}
    matmul = max(matmul, matmul_gflops(options.precision))
    if ranks > 1:
        total = torch.tensor([matmul])
        torch.distributed.all_reduce(total)
        matmul = total.item()
    if rank == 0:
        best = max(ways, key=lambda way: statistics.median(rates[way]))
        report = summary(rates[best])
        print(json.dumps({
            "samples_per_second": report, "chars_per_second": {k: v * options.steps for k, v in report.items()},
            "input": best, "inputs": {way: summary(r) for way, r in rates.items()}, "matmul_gflops": matmul,
            "ranks": ranks, "threads": options.threads, "precision": options.precision, "batch": options.batch,
            "steps": options.steps, "layers": options.layers, "hidden": options.hidden, "vocabulary": options.vocabulary,
            "torch": torch.__version__, "python": platform.python_version(),
        }), flush=True)
    if ranks > 1:
        torch.distributed.barrier()
        os._exit(0)  # gloo's threads now and then abort a process that tears them down in order


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8, help="positions of a sample, T [8]")
    parser.add_argument("--batch", type=int, default=4096, help="samples per update over all ranks [4096]")
    parser.add_argument("--vocabulary", type=int, default=31)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast [fp32]")
    parser.add_argument("--input", choices=["one-hot", "embedding", "both"], default="both")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="over all ranks [the cores]")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--window-seconds", type=float, default=1.0)
    parser.add_argument("--warmup-seconds", type=float, default=2.0)
    options = parser.parse_args()
    if options.batch % options.ranks:
        parser.error(f"--batch {options.batch} cannot be shared out among {options.ranks} ranks")
    cpus = sorted(os.sched_getaffinity(0))
    if options.ranks == 1:
        run_rank(0, options, 1, 0, cpus)
    else:
        torch.multiprocessing.spawn(run_rank, (options, options.ranks, free_port(), cpus), nprocs=options.ranks)


if __name__ == "__main__":
    main()
