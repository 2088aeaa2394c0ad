"""Checks that measure speed: images and characters per second of both sides, and the table of kernels."""
import csv
import shutil
import sys

import bounds
from check_run import COMMANDS, RINGTRAIN, ROOT, outcome
from check_schedule import NotRun

BATCH = 256  # ResNet-50's batch where speed is measured
LSTM_BATCH = 4096
RESNET = ["--batch", BATCH, "--windows", 3, "--window-seconds", 0.7, "--warmup-seconds", 1.5, "--search-seconds", 0]
LSTM = ["--batch", LSTM_BATCH, "--windows", 3, "--window-seconds", 0.5, "--warmup-seconds", 1, "--search-seconds", 2]
AFTER_SECONDS = 3  # what a benchmark needs to write its files, and to end before it is ended


def bench(run, name, seconds, table, *options, family=""):
    """Runs a benchmark. Returns its exit code, its output and the rows of its table, which is also kept.
    `family` says which of ringtrain's networks it runs, "ResNet" or "Lstm"."""
    program, output = ROOT / "tests/gpu" / name, run.scratch / "bench"
    for old in run.scratch.glob("bench.*"):
        old.unlink()
    tiny = ["--device", "cpu", "--tiny"] if run.dry else ["--gpu", run.gpu_name()]
    set_ = [word for option in run.off_options(family) for word in ("--set", option)] if family else []
    code, text = run.call([sys.executable, program, "--minutes", f"{max(3, seconds - AFTER_SECONDS) / 60:.3f}", "--output", output, *tiny, *set_, *options],
                          seconds)
    rows = []
    if output.with_suffix(".csv").exists():
        shutil.copy(output.with_suffix(".csv"), run.tables / f"{table}.csv")
        with open(output.with_suffix(".csv")) as file:
            rows = list(csv.DictReader(file))
    for row in rows:
        if row.get("reached_flops"):
            run.reached[row["precision"]] = float(row["reached_flops"]), float(row["reached_bytes_per_second"])
    return code, text, rows


def rates_of(rows, side, unit, factor=lambda row: 1):
    """The rates of one side in the last table, by model. `size` is what the bound needs."""
    found = []
    for row in rows:
        value = row[side]
        model = row.get("shape") or f"ResNet-{row['depth']}"
        keys = ("layers", "hidden", "positions") if row.get("shape") else ("depth", "size")
        why = row.get("ringtrain_failed") if side == "ringtrain" else row.get("pytorch_graphs", "not reached")
        found.append({"model": model, "batch": int(row["batch"]), "precision": row["precision"], "input": row.get("input", ""), "side": side,
                      "rate": float(value) * factor(row) if value else 0, "unit": unit, "size": {key: int(row[key]) for key in keys if row.get(key)},
                      "why": "" if value else why or "not reached"})
    return found


def positions(row):
    return int(row["positions"])


def bound_of(rate, run):
    """Returns (bound, target, images or characters of a step). Bound and target are None where they are not known."""
    size, batch = rate["size"], rate["batch"]
    rates = run.rates(rate["precision"])
    if rate["model"] == "ResNet-50" and size.get("size") == 224:
        return bounds.resnet50_images_per_second(batch, rates), bounds.images_target(run.gpu_name()), batch
    if "hidden" in size and size["hidden"] >= 128:
        shape = [size["layers"], size["hidden"], size["positions"], batch]
        return (bounds.lstm_characters_per_second(*shape, rates), bounds.characters_target(run.gpu_name(), rate["model"], *shape),
                batch * size["positions"])
    return None, None, batch * size.get("positions", 1)


def rate_text(rate, run):
    """"6,000 images/s, 46 % of the bound"."""
    bound = bound_of(rate, run)[0]
    return f"{rate['rate']:,.0f} {rate['unit']}, " + (f"{rate['rate'] / bound:.0%} of the bound" if bound else "its bound is unknown")


def measured(run, code, text, rates, also=()):
    """The result of a measurement. Rates of the precisions in `also` are wanted, but the check passes without them."""
    missing = [f"{r['model']}, {r['precision']}: {r['why']}" for r in rates if not r["rate"] and r["precision"] not in also]
    result = outcome(code, text, rates=rates)
    if code == 0 and (missing or not rates):
        result |= {"status": "failed", "why": (missing or ["no rate was measured"])[0]}
    result["notes"] = [f"{r['precision']} {rate_text(r, run)}" if also else rate_text(r, run) for r in rates if r["rate"]]
    return result


def need_precision(run, precision):
    # The CPU stands for the GPU in a dry call. It does not train in fp16, and trains in bf16 only with AVX-512 BF16.
    if precision == "fp16":
        run.need_real_gpu("fp16")
    with open("/proc/cpuinfo") as file:
        if precision == "bf16" and "avx512_bf16" not in file.read():
            run.need_real_gpu("bf16 without AVX-512 BF16")
    run.need_gpu()


def images_per_second(precision, kind, table, kept=False):
    """`kept`: no earlier check has built the plans, so they must be kept."""
    def check(run, seconds):
        need_precision(run, precision)
        run.need(RINGTRAIN)
        if kept:
            run.need_kept_plans(precision)
        code, text, rows = bench(run, "resnet_bench.py", seconds, table, *RESNET, "--side", "ringtrain", "--precision", precision, "--input", kind,
                                 family="ResNet")
        return measured(run, code, text, rates_of(rows, "ringtrain", "images/s"))
    return check


def characters_per_second(precision, shape, table):
    def check(run, seconds):
        need_precision(run, precision)
        run.need(RINGTRAIN)
        code, text, rows = bench(run, "lstm_bench.py", seconds, table, *LSTM, "--side", "ringtrain", "--precision", precision, "--only", shape,
                                 family="Lstm")
        return measured(run, code, text, rates_of(rows, "ringtrain", "characters/s", positions))
    return check


def pytorch_graphs(name, unit, precisions, table, *options, factor=lambda row: 1):
    """PyTorch in CUDA graphs, in the order of the precisions. Only the first one decides whether the check passes."""
    def check(run, seconds):
        run.need_real_gpu("PyTorch in CUDA graphs")
        given = [word for precision in precisions for word in ("--precision", precision)]
        code, text, rows = bench(run, name, seconds, table, "--side", "pytorch", "--ways", "graphs", *given, *options)
        return measured(run, code, text, rates_of(rows, "pytorch", unit, factor), also=precisions[1:])
    return check


PYTORCH_RESNET, PYTORCH_SECONDS = "PyTorch, ResNet-50 in CUDA graphs", 45


def beside_pytorch(run, seconds):
    """Measures ResNet-50 in bf16 again, and PyTorch before it when there is no rate of PyTorch yet."""
    run.need_real_gpu("a comparison")
    end = run.clock.now() + seconds
    known = [rate for result in run.before + run.results for rate in result.get("rates", [])
             if rate["side"] == "pytorch" and rate["model"] == "ResNet-50" and rate["precision"] == "bf16" and rate["rate"]]
    peer = {"rates": []}
    if not known:
        peer = pytorch_graphs("resnet_bench.py", "images/s", ["bf16"], "again_pytorch_resnet", *RESNET, "--input", "raw")(run, PYTORCH_SECONDS)
    mine = images_per_second("bf16", "raw", "again_resnet_bf16_raw")(run, end - run.clock.now())
    notes = [*mine.get("notes", []), *(f"PyTorch: {note}" for note in peer.get("notes", []))]
    result = {**mine, "rates": mine["rates"] + peer["rates"], "notes": notes}
    if mine["status"] == "passed" and not known and peer["status"] != "passed":
        result |= {"status": "failed", "why": f"PyTorch: {peer.get('why') or peer['status']}", "said": peer["said"]}
    return result


def kernel_table(precision):
    def check(run, seconds):
        run.need_gpu()
        run.need(COMMANDS)
        size = ["--batch", 2, "size=32", "width=16", "repeat=1"] if run.dry else ["--batch", BATCH]
        rates = run.rates(precision)
        known = ["--tflops", rates[0] / 1e12, "--terabytes", rates[1] / 1e12] if rates else []
        code, text = run.call([sys.executable, ROOT / "tests/gpu/kernel_table.py", "--precision", precision, "--search-seconds", 0, "--gpu",
                               run.gpu_name(), *known, "--commands-to", run.tables / "kernels.csv", "--output", run.scratch / "kernels", *size],
                              seconds)
        table = run.scratch / "kernels.md"
        result = outcome(code, text)
        if code == 0 and table.exists():
            result["tables"] = [table.read_text()]
            shutil.copy(run.scratch / "kernels.csv", run.tables / f"kernel_table_{precision}.csv")
        return result
    return check


def lstm_kernels(hidden):
    """Lists the kernels of a training step of PyTorch's LSTM, most time first."""
    def check(run, seconds):
        run.need_real_gpu("PyTorch's profiler")
        table = run.tables / f"lstm_kernels_4x{hidden}.csv"
        code, text = run.call([sys.executable, ROOT / "tests/gpu/lstm_kernels.py", "--hidden", hidden, "--batch", LSTM_BATCH, "--table", table], seconds)
        if code not in (0, None) and "has no torch" in text:
            raise NotRun(text.strip().splitlines()[-1])
        result = outcome(code, text)
        if code == 0:  # PyTorch may print warnings around the table
            result["tables"] = ["\n".join(line for line in text.splitlines() if line.startswith(("PyTorch ", "|")) or not line)]
        return result
    return check


def comparison(name, family, table, *options):
    """Makes a check that runs PyTorch, ringtrain, ringtrain and PyTorch."""
    def check(run, seconds):
        run.need_real_gpu("a comparison")
        code, text, _ = bench(run, name, seconds, table, *options, family=family)
        result = outcome(code, text)
        page = run.scratch / "bench.md"
        if code == 0 and page.exists():
            result["tables"] = [page.read_text()]
        return result
    return check
