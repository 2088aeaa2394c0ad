"""Reads .wandb files, in which the package wandb keeps what a run logged. They have LevelDB's log format with wandb's
records.

A file begins with ":W&B", two bytes of magic number and one byte of version. It consists of blocks of 32 KiB. A record
is divided into parts. Each part begins with a checksum (4 bytes), a length (2 bytes) and a kind (1 byte: 1 whole, 2
first, 3 middle, 4 last). If fewer than seven bytes are left in a block, they are empty."""

import json
import struct

BLOCK, HEADER, IDENT = 32 * 1024, 7, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def parts(data):
    """Yields (kind, bytes) of the parts in order. Stops at the first part that is incomplete."""
    place = IDENT
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        if kind == 0 or place + HEADER + length > len(data):
            return
        yield kind, data[place + HEADER : place + HEADER + length]
        place += HEADER + length


def records(path, wandb_internal_pb2):
    """Yields the complete records."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:4] != b":W&B":
        return
    collected = b""
    for kind, piece in parts(data):
        collected = piece if kind in (WHOLE, FIRST) else collected + piece
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(collected)
            yield record


def history(path, wandb_internal_pb2):
    """Returns (rows, summary), what the run logged, as dictionaries."""
    rows, summary = [], {}
    for record in records(path, wandb_internal_pb2):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({name_of(item): json.loads(item.value_json) for item in record.history.item})
        elif kind == "summary":
            summary.update({name_of(item): json.loads(item.value_json) for item in record.summary.update})
    return rows, summary


def name_of(item):
    return item.key or "/".join(item.nested_key)
