#!/usr/bin/env python3
"""The training step of the char-LSTM in PyTorch, as its users write it: nn.LSTM, nn.Linear on every position, mean
cross-entropy, Adam. Tokens are random, so the input takes no time. Prints one JSON object.

  build/pytorch/bin/python tests/bench/pytorch_lstm.py --layers 4 --hidden 128 --steps 8 --batch 4096 --precision bf16
  ... --ranks 2    DistributedDataParallel over gloo; the ranks share the batch and the threads

samples_per_second holds median, minimum and maximum over windows of the whole step. With --input both, both ways of
making the one-hot input (one_hot per step, or rows of an identity matrix) are listed, and the faster one is the result.
matmul_gflops is this machine's rate of a 2048^3 matrix product in the same precision and process, the best of several
before and after.
"""
import contextlib
import statistics

from pytorch_tools import add_options, make_parser, measure, run, summary, torch


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


def make_step(options, way):
    torch.manual_seed(1)
    model = CharLstm(options, way)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if options.ranks > 1 else model
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-3)
    batches = [torch.randint(options.vocabulary, (options.batch // options.ranks, options.steps + 1)) for _ in range(4)]
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


def body(options, agree):
    ways = ["one-hot", "embedding"] if options.input == "both" else [options.input]
    rates = {way: measure(make_step(options, way), options, agree) for way in ways}
    best = max(ways, key=lambda way: statistics.median(rates[way]))
    report = summary(rates[best])
    return {"samples_per_second": report, "chars_per_second": {k: v * options.steps for k, v in report.items()},
            "input": best, "inputs": {way: summary(r) for way, r in rates.items()},
            **{key: getattr(options, key) for key in ("steps", "layers", "hidden", "vocabulary")}}


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8, help="positions of a sample, T [8]")
    parser.add_argument("--vocabulary", type=int, default=31)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--input", choices=["one-hot", "embedding", "both"], default="both")
    add_options(parser, batch=4096)
    run(body, parser)


if __name__ == "__main__":
    main()
