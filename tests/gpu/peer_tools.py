"""Shared by PyTorch's sides of the GPU benchmarks: the ways to run a training step (eager, compiled, CUDA graphs),
windows of timed steps, peak memory, and the rates that the device reaches in a matrix product and in a copy. A side
reads one JSON object from its input, {"cases": [...], "device": ..., "windows": ..., "window_seconds": ...,
"warmup_seconds": ..., "case_seconds": ...}. It prints the machine's JSON object first, because the run may be ended
early, and then one object per case."""
import contextlib
import gc
import json
import statistics
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(f"error: {sys.executable} has no torch")

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Training:
    """One training step of `model`, where loss(model, batch) returns a scalar. It uses fp32 weights and autocast, or
    weights of the precision itself."""

    def __init__(self, model, make_optimizer, loss, batches, case, device):
        self.model, self.loss, self.batches, self.device = model, loss, batches, device
        dtype = TYPES[case["precision"]]
        pure = "16-bit weights" in case["way"]
        cast = dtype != torch.float32 and not pure
        self.autocast = (lambda: torch.autocast(device, dtype)) if cast else contextlib.nullcontext
        scaled = case["precision"] == "fp16" and device == "cuda" and not pure
        self.scaler = torch.amp.GradScaler(device) if scaled else None
        if case["way"].startswith("compiled"):
            self.model = torch.compile(model)
        self.optimizer = make_optimizer(model.parameters())
        self.step = self.make_graph() if case["way"].startswith("graphs") else self.eager

    def train_on(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss(self.model, batch)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    def eager(self, number):
        return self.train_on(self.batches[number % len(self.batches)])

    def make_graph(self):
        """Captures the whole step once. Before each replay, its batch is copied to where the graph reads it."""
        if self.device != "cuda":
            raise RuntimeError("CUDA graphs need a GPU")
        static = [part.clone() for part in self.batches[0]]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                self.train_on(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.train_on(static)

        def step(number):
            for to, part in zip(static, self.batches[number % len(self.batches)]):
                to.copy_(part)
            graph.replay()
            return loss

        return step


def rates(step, samples, options, device):
    """Returns the samples per second of each window."""
    start, done, loss = time.perf_counter(), 0, None
    while done < 3 or time.perf_counter() - start < options["warmup_seconds"]:
        loss = step(done)
        synchronize(device)
        done += 1
        if time.perf_counter() - start > options["case_seconds"]:
            raise RuntimeError(f"no steady steps within {options['case_seconds']} s")
    start = time.perf_counter()
    for number in range(3):
        step(number)
    synchronize(device)
    steps = max(2, round(options["window_seconds"] * 3 / (time.perf_counter() - start)))
    result = []
    for _ in range(options["windows"]):
        start = time.perf_counter()
        for number in range(steps):
            loss = step(number)
        synchronize(device)
        result.append(steps * samples / (time.perf_counter() - start))
    if not torch.isfinite(loss.detach().float()).all():
        raise RuntimeError("the loss is not finite")
    return result


def best_time(work, device, tries=10):
    work()
    synchronize(device)
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        work()
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def ceilings(precision, device):
    """Returns the FLOP/s of a large matrix product on random numbers, and the bytes per second of a copy (read and
    written)."""
    size = 8192 if device == "cuda" else 512
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a, b = (torch.randn(size, size, device=device).to(TYPES[precision]) for _ in range(2))
    flops = 2 * size**3 / best_time(lambda: a @ b, device)
    x = torch.empty(2**31 if device == "cuda" else 2**24, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return flops, 2 * x.numel() / best_time(lambda: y.copy_(x), device)


def run_case(make_training, case, options):
    device = options["device"]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case["precision"] != "fp32"
    torch.backends.cudnn.benchmark = True
    training = make_training(case, device)
    values = rates(training.step, case["batch"], options, device)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return {"samples_per_second": {"median": statistics.median(values), "min": min(values), "max": max(values)},
            "peak_memory_bytes": peak}


def main(make_training):
    options = json.load(sys.stdin)
    device = options["device"]
    machine = {"torch": torch.__version__, "device": "cpu", "ceilings": {}}
    if device == "cuda":
        machine |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    for precision in sorted({case["precision"] for case in options["cases"]}):
        flops, bytes_per_second = ceilings(precision, device)
        machine["ceilings"][precision] = {"flops": flops, "bytes_per_second": bytes_per_second}
    print(json.dumps({"machine": machine}), flush=True)
    for case in options["cases"]:
        try:
            result = run_case(make_training, case, options)
        except Exception as error:  # a way that does not run is a result; the table shows its reason
            result = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]}
        print(json.dumps({"case": case, **result}), flush=True)
        gc.collect()
        torch.compiler.reset()
        if device == "cuda":
            torch.cuda.empty_cache()
