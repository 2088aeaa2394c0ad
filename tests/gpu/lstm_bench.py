#!/usr/bin/env python3
"""Compares ringtrain's char-LSTM with PyTorch's nn.LSTM on one GPU, in the order PyTorch, ringtrain, ringtrain,
PyTorch.

  tests/gpu/lstm_bench.py                                 4x128, 4x512, 4x1024 at batches 128 ... 16384, bf16 and fp16
  tests/gpu/lstm_bench.py --only 4x512 --batch 4096 --precision bf16
  tests/gpu/lstm_bench.py --device cpu --tiny             shows that the scripts work, without a GPU

Writes results/gpu/lstm.csv (a row for every shape, batch and precision) and lstm.md (the same as a table with targets).
Rates are characters per second of whole training steps in wall-clock time. They are medians over windows of both runs.
PyTorch runs eager, in CUDA graphs and compiled, with fp32 weights and autocast. CUDA graphs with 16-bit weights are
listed as well, but do not count in the ratio, because they train differently. The bound is that of a roofline: FLOPs,
memory traffic with the gates stored once, and 3 us for each of the 2 (positions + layers - 1) dependent steps, at the
rates of this GPU (bounds.py). The model that loses most milliseconds in a step comes first.
"""
import random

import bounds
from bench_gpu import (ROOT, WORK, compare, fail, gpu_facts, make_parser, making, most_lost_first, parse, rates, reached_columns,
                       run_ringtrain, speed_columns)
from bench_tools import about, call, write
from bounds import VOCABULARY

POSITIONS = 50
SHAPES = {"4x128": (4, 128), "4x512": (4, 512), "4x1024": (4, 1024)}
BATCHES = [128, 1024, 4096, 16384]
# This order measures the cases with targets first, in case time runs out.
ORDER = [(name, batch) for batch in (4096, 128, 1024, 16384) for name in ("4x512", "4x128", "4x1024")]
# RATIO_TARGETS: (shape, least batch, most) -> ratio to PyTorch.
RATIO_TARGETS = [("4x128", 0, 1024, 2.0), ("4x128", 0, 1 << 40, 1.3), ("4x512", 0, 256, 2.0), ("4x512", 0, 1 << 40, 1.3),
                 ("4x1024", 0, 256, 2.0), ("4x1024", 0, 1 << 40, 1.3)]


def make_data():
    """Makes random text of VOCABULARY symbols. It repeats, which makes it faster to make and costs the same to train on."""
    if list(WORK.glob(f"text{VOCABULARY}-train-*.h5")):
        return
    symbols = [chr(code) for code in [*range(0x20, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]][:VOCABULARY]
    assert len(symbols) == VOCABULARY
    text = WORK / f"text{VOCABULARY}.txt"
    text.write_text("".join(random.Random(1).choices(symbols, k=400_000)) * 10)
    call(["bin/ringtrain-data", "text", text, "--out", WORK / f"text{VOCABULARY}", "--force"])


def experiment(case, seconds):
    path = WORK / "gpu_lstm.yaml"
    path.write_text(f"""name: gpu_lstm_bench
precision: {case['precision']}
model: {{kind: char_lstm, layers: {case['layers']}, hidden: {case['hidden']}, dropout: {case['dropout']}}}
data: {{train: {WORK}/text{VOCABULARY}-train, sequence: {case['positions']}, loader_threads: 4}}
batch: {{global: {case['batch']}, worker: {case['batch']}, micro: {case['batch']}}}
optimizer: {{kind: adam}}
learning_rate: {{base: 0.001}}
stop: {{seconds: {seconds}}}
evaluate: {{every_epochs: 0}}
checkpoint: {{every_epochs: 0, best: false}}
run: {{log_every_steps: 1000000}}
""")
    return path


def make_cases(options):
    order = [(shape, batch) for shape, batch in ORDER
             if shape in (options.only or SHAPES) and (not options.batch or batch in options.batch)]
    order += [(shape, batch) for batch in options.batch or [] if batch not in BATCHES for shape in SHAPES if shape in (options.only or SHAPES)]
    if not order:
        fail(f"no shape has batch {options.batch}")
    if options.tiny:
        order = [("2x16", 16)]
    sizes = {**SHAPES, "2x16": (2, 16)}
    return [{"shape": shape, "layers": sizes[shape][0], "hidden": sizes[shape][1], "positions": 5 if options.tiny else options.positions,
             "vocabulary": VOCABULARY, "batch": batch, "dropout": options.dropout, "precision": precision}
            for precision in options.precisions for shape, batch in order]


def add_targets(row, case, machine, options):
    size = [case[key] for key in ("layers", "hidden", "positions", "batch")]
    characters = case["positions"] * case["batch"]
    row["flops_per_character"] = bounds.flops_per_character(*size[:2])
    top = bounds.lstm_characters_per_second(*size, rates(machine, options, case["precision"]))
    row["bound_chars_per_second"] = round(top) if top else ""
    for side in ("ringtrain", "pytorch"):
        row[f"{side}_chars_per_second"] = round(row[side] * case["positions"]) if row[side] else ""
        row |= speed_columns({side: row[f"{side}_chars_per_second"]}, side, characters, top)
    row["ratio_target"] = next((t for shape, least, most, t in RATIO_TARGETS
                                if shape == case["shape"] and least <= case["batch"] <= most), "")
    row["target_chars_per_second"] = bounds.characters_target(options.gpu or machine.get("device"), case["shape"], *size) or ""
    return row | reached_columns(machine, case["precision"])


def millions(value):
    return f"{value / 1e6:.3g}" if value else "-"


def table(rows, facts, ways):
    lines = ["# Char-LSTM on one GPU: ringtrain against PyTorch", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items()]
    lines += ["- millions of characters per second of whole training steps, medians; ratio to PyTorch's best way; bound: of a roofline"
              " at the rates of this GPU (see tests/gpu/bounds.py); lost: what a step takes longer than the bound", "",
              "| model | batch | precision | ringtrain | PyTorch | best way | ratio | target | bound | share | lost ms | PyTorch's | target Mchar/s |"
              + "".join(f" {way} |" for way in ways), "|---" * (13 + len(ways)) + "|"]
    for r in most_lost_first(rows):
        positions = r["positions"]
        each = "".join(f" {millions(r.get(f'pytorch_{way}') * positions)} |" if isinstance(r.get(f"pytorch_{way}"), float)
                       else f" {r.get(f'pytorch_{way}', 'not reached')} |" for way in ways)
        lines.append(
            f"| {r['shape']} | {r['batch']} | {r['precision']} | {millions(r['ringtrain_chars_per_second']) if r['ringtrain'] else r['ringtrain_failed']} "
            f"| {millions(r['pytorch_chars_per_second'])} | {r['pytorch_best_way']} | {r['ratio'] or '-'} | {r['ratio_target'] or '-'} "
            f"| {millions(r['bound_chars_per_second'])} | {r['ringtrain_share_of_bound'] or 'unknown'} | {r['ringtrain_lost_ms'] or '-'} "
            f"| {r['pytorch_share_of_bound'] or '-'} "
            f"| {millions(r['target_chars_per_second'])} |{each}")
    return lines


def main():
    parser = make_parser(__doc__, "results/gpu/lstm")
    parser.add_argument("--only", choices=list(SHAPES), action="append", help="these models [all]")
    parser.add_argument("--positions", type=int, default=POSITIONS, help=f"positions of a sample [{POSITIONS}]")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout between layers; above 0, cuDNN is called layer by layer [0]")
    parser.add_argument("--data-only", action="store_true", help="make the data set, and nothing else")
    options = parse(parser)
    if options.side == "both" and options.device == "cuda" and "graphs, 16-bit weights" not in options.ways:
        options.ways.insert(min(2, len(options.ways)), "graphs, 16-bit weights")
    if options.side != "pytorch":
        with making("text"):
            make_data()
    if options.data_only:
        return
    cases = make_cases(options)
    key = lambda case: (case["shape"], case["batch"], case["precision"])
    found, machine = compare("peer_lstm.py", key, cases,
                             lambda case, step_seconds: run_ringtrain(lambda seconds: experiment(case, seconds), options, step_seconds),
                             options)
    rows = [add_targets({**case, **row}, case, machine, options) for case, row in zip(cases, found)]
    facts = about(options, machine.get("torch", "not reached"), **gpu_facts(machine, options),
                  data="made-up text from HDF5; PyTorch: random tokens in device memory")
    write(options, rows, facts, table(rows, facts, options.ways))
    print((ROOT / f"{options.output}.md").read_text())


if __name__ == "__main__":
    main()
