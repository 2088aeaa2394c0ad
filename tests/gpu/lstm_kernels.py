#!/usr/bin/env python3
"""Lists the kernels that a training step of PyTorch's LSTM runs on a GPU, those with the most time first.

  tests/gpu/lstm_kernels.py [--hidden 512] [--batch 4096] [--table FILE.csv]

The model is that of lstm_bench.py: 4 layers, 50 positions, 128 symbols, autocast of bf16, under which PyTorch computes
the LSTM in fp16, and fused Adam (peer_lstm.py). After the warm-up, torch.profiler records one step. The script prints a
table, and writes the same rows to a file.
"""
import argparse
import csv
import json
import sys
import tempfile
import time
from pathlib import Path

LAYERS, POSITIONS, VOCABULARY, WARM_UP_STEPS = 4, 50, 128, 4
MOST_KERNELS, MOST_CHARACTERS = 25, 110
KINDS = ("kernel", "gpu_memcpy", "gpu_memset")  # of events in a trace of torch.profiler


def rows_of(trace):
    """The kernels of a trace in Chrome's form: name, calls, total us, mean us, most time first."""
    found = {}
    for event in trace["traceEvents"]:
        if event.get("cat") in KINDS and event.get("ph") == "X":
            calls, total = found.get(event["name"], (0, 0.0))
            found[event["name"]] = calls + 1, total + float(event["dur"])
    rows = [{"kernel": " ".join(name.split())[:MOST_CHARACTERS], "calls": calls, "total_us": round(total, 1), "mean_us": round(total / calls, 2)}
            for name, (calls, total) in found.items()]
    return sorted(rows, key=lambda row: (-row["total_us"], row["kernel"]))


def table_of(rows, facts):
    total = sum(row["total_us"] for row in rows)
    lines = [f"{facts}. {sum(row['calls'] for row in rows)} kernels and copies take {total / 1e3:.2f} ms.", "",
             "| kernel | calls | total us | mean us | share |", "|---|---|---|---|---|"]
    for row in rows[:MOST_KERNELS]:
        name = row["kernel"].replace("|", "\\|")
        lines.append(f"| {name} | {row['calls']} | {row['total_us']:.1f} | {row['mean_us']:.2f} | {row['total_us'] / total if total else 0:.1%} |")
    return lines


def record(options):
    """Trains, and returns (the trace of one step, the facts)."""
    import peer_lstm
    from peer_tools import torch
    device = "cuda" if torch.cuda.is_available() else sys.exit("error: PyTorch sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    case = {"layers": LAYERS, "hidden": options.hidden, "positions": POSITIONS, "vocabulary": VOCABULARY, "batch": options.batch, "dropout": 0.0,
            "precision": "bf16", "way": "eager"}
    training = peer_lstm.make_training(case, device)
    for number in range(WARM_UP_STEPS):
        begin = time.perf_counter()
        training.step(number)
        torch.cuda.synchronize()
        milliseconds = 1e3 * (time.perf_counter() - begin)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        training.step(0)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text())
    return trace, (f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}: LSTM {LAYERS}x{options.hidden}, "
                   f"batch {options.batch}, {POSITIONS} positions, bf16; a step without profiler takes {milliseconds:.2f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--table", help="a CSV with these rows")
    options = parser.parse_args()
    trace, facts = record(options)
    rows = rows_of(trace)
    if not rows:
        sys.exit("error: the profiler has recorded no kernel")
    if options.table:
        with open(options.table, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=rows[0])
            writer.writeheader()
            writer.writerows(rows[:MOST_KERNELS])
    print("\n".join(table_of(rows, facts)))


if __name__ == "__main__":
    main()
