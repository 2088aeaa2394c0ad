"""The .wandb files in which the package wandb keeps what a run logged: LevelDB's log format around its own records.

A file begins with ":W&B", two bytes of magic number and one of version. It consists of blocks of 32 KiB. Each part of a record
has a checksum (4 bytes), a length (2) and a kind (1: whole, 2: first, 3: middle, 4: last). The last bytes of a block, where
fewer than seven are left, are empty."""

import json
import struct

BLOCK, HEADER, IDENT = 32 * 1024, 7, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def parts(data):
    """(kind, bytes) in order, up to the first part that is not all there."""
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
    """The records that are whole."""
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
    """(rows, summary): what was logged, as dictionaries."""
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
