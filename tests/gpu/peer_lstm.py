#!/usr/bin/env python3
"""The training step of the char-LSTM in PyTorch on a GPU: nn.LSTM, time-major, on rows of an identity matrix; nn.Linear
on every position; mean cross-entropy; fused Adam. Random tokens lie in device memory. See peer_tools.py. A case has
layers, hidden, positions, vocabulary, batch, dropout, precision and way."""
import peer_tools
from peer_tools import TYPES, Training, torch


class CharLstm(torch.nn.Module):
    def __init__(self, case, dtype):
        super().__init__()
        dropout = case["dropout"] if case["layers"] > 1 else 0.0
        self.lstm = torch.nn.LSTM(case["vocabulary"], case["hidden"], case["layers"], dropout=dropout)
        self.linear = torch.nn.Linear(case["hidden"], case["vocabulary"])
        self.register_buffer("identity", torch.eye(case["vocabulary"], dtype=dtype), persistent=False)

    def forward(self, tokens):
        return self.linear(self.lstm(torch.nn.functional.embedding(tokens, self.identity))[0])


def loss(model, batch):
    inputs, targets = batch
    logits = model(inputs)
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_training(case, device):
    pure = "16-bit weights" in case["way"]
    dtype = TYPES[case["precision"]]
    model = CharLstm(case, dtype).to(device)
    if pure:
        model = model.to(dtype)
    shape = (case["positions"] + 1, case["batch"])
    tokens = [torch.randint(case["vocabulary"], shape, device=device) for _ in range(4)]
    batches = [(t[:-1].contiguous(), t[1:].contiguous()) for t in tokens]
    on_gpu = device == "cuda"
    return Training(model, lambda p: torch.optim.Adam(p, lr=1e-3, fused=on_gpu, capturable=on_gpu), loss, batches, case, device)


if __name__ == "__main__":
    peer_tools.main(make_training)
