#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets to tests/fuzz/corpus/TARGET/*. They are small on purpose. More pictures and
weights come from tests/golden, and experiments and studies come from configs (tests/fuzz/run.sh)."""
import io
import json
import struct
import tarfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent / "corpus"
GOLDEN = Path(__file__).resolve().parent.parent / "golden"
OVERRIDES = "\n==== overrides\n"
EXPERIMENT = """name: pets
model: {kind: char_lstm, hidden: 64, layers: 2}
data: {train: data/pets-train, validation: data/pets-validation}
batch: {global: 256, worker: 64}
optimizer: {kind: adam}
learning_rate: {base: 0.001}
stop: {epochs: 2}
"""


def put(target, name, content):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, depth, colour, data, more=b"", interlace=0, pack=zlib.compress):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", pack(data)) + chunk(b"IEND", b"")


def stored(data):
    """Stores data in zlib's format without compression, so that a changed byte is a changed pixel."""
    return zlib.compress(data, 0)


def palette():
    return chunk(b"PLTE", bytes(range(12)))


def tar(format_, names):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format_) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 5
            archive.addfile(info, io.BytesIO(b"12345"))
    # Leaves out the padding to 20 blocks. Two empty blocks end the archive.
    data = out.getvalue().rstrip(b"\0")
    return data + b"\0" * (-len(data) % 512 + 1024)


def safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


put("experiment", "names", EXPERIMENT)
put("experiment", "overrides", EXPERIMENT + OVERRIDES[1:] + "batch.global=512\nlearning_rate.warmup_epochs=0.5\nseed=7\n")
put("experiment", "images", """name: pictures
precision: bf16
model: {kind: resnet18}
data: {train: data/pictures-train, validation: data/pictures-validation, image_size: 32, crop_area: [0.2, 1.0]}
batch: {global: 128, worker: 32, micro: auto, schedule: [{epoch: 1, times: 2}]}
optimizer: {kind: lars, momentum: 0.9, weight_decay: 1.0e-4, trust_coefficient: 0.001}
learning_rate: {base: 0.1, base_batch: 256, scaling: linear, schedule: steps, steps_at: [30, 60], warmup_epochs: 5}
stop: {epochs: 90, target_metric: accuracy, target_value: 0.75}
""")
put("experiment", "yaml", "name: &a \"pe\\u00e9ts\"\nseed: 0x10\nmodel: {kind: char_lstm, hidden: !!int \"64\"}\n"
    "data:\n  train: >-\n    folded\n    text\n  validation: *a\n? batch\n: {global: 1e2, worker: .5}\nstop: {steps: ~}\n")
put("study", "grid", "name: grid\nexperiment: experiment.yaml\nranks_per_trial: [1, 4]\nvary:\n  batch_per_rank: [64, 32]\n"
    "  learning_rate.base: [0.001, 0.004]\nrules:\n  - batch.global: batch_per_rank * ranks\nwhere:\n  - ranks <= 4\nrepeat: 2\nlimits:\n  epochs: 1\n")
put("study", "halving", "name: halving\nexperiment: experiment.yaml\nvary:\n  learning_rate.base: {log_uniform: [0.001, 0.1]}\n"
    "draws: {count: 9, sequence: sobol}\nsearch: halving\nbudget: {samples: 9000, factor: 3}\n")
put("study", "small", "name: one\nexperiment: experiment.yaml\nvary: {seed: [1, 2]}\n")
put("expression", "rules", "0.001 * sqrt(batch.global / 4096)\nbatch_per_rank * ranks = 16384\n-2^2^-1 + min(1, 2, log2(x))\n(((1)))\n1e-8 <= round(a) / 3\n")
put("safetensors", "two", safetensors({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                                       "b.c": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [8, 12]}}, bytes(range(12))))
put("safetensors", "kinds", safetensors({"h": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]}, "d": {"dtype": "F64", "shape": [1], "data_offsets": [2, 10]},
                                         "i": {"dtype": "I64", "shape": [1], "data_offsets": [10, 18]}, "n": {"dtype": "F32", "shape": [0, 3], "data_offsets": [18, 18]}}, bytes(18)))
put("safetensors", "none", safetensors({}))
for name in ("1x1", "2x2", "5x3", "17x33", "progressive_grey", "cmyk", "truncated_header"):
    put("jpeg", name, (GOLDEN / "images" / f"{name}.jpg").read_bytes())
    put("record", name, (GOLDEN / "images" / f"{name}.jpg").read_bytes() + b"\x07\x33")
put("png", "grey", png(3, 2, 8, 0, b"\0abc\1def"))
put("png", "colour", png(2, 2, 8, 2, b"\0abcdef\4ghijkl"))
put("png", "sixteen", png(1, 2, 16, 6, b"\0abcdefgh\2ijklmnop"))
put("png", "palette", png(4, 1, 2, 3, b"\0\x1b", palette()))
put("png", "interlaced", png(5, 5, 8, 2, bytes(100), interlace=1, pack=stored))
put("png", "stored", png(4, 3, 8, 2, b"".join(bytes([kind]) + bytes(range(12)) for kind in (1, 3, 4)), pack=stored))
put("png", "bits", png(9, 2, 1, 0, b"\0\xaa\x80\0\x55\0", chunk(b"tRNS", b"\0\1"), pack=stored))
put("png", "grey_alpha", png(2, 2, 8, 4, b"\0abcd\2efgh", chunk(b"gAMA", struct.pack(">I", 45455)), pack=stored))
put("record", "png", png(9, 8, 8, 2, (b"\0" + bytes(range(27))) * 8) + b"\x03\x03")
put("tar", "ustar", tar(tarfile.USTAR_FORMAT, ["./a/1.jpg", "a/2.png"]))
put("tar", "pax", tar(tarfile.PAX_FORMAT, ["\u00e9/" + "x" * 120 + ".jpg"]))
put("tar", "gnu", tar(tarfile.GNU_FORMAT, ["y" * 130 + ".jpg", "b.jpg"]))
put("csv", "names", "id,Name,age\n1,\"An\"\"na\",3\n2,Bo,\"4\n5\"\n")
put("csv", "semicolons", "\ufeffkey;pet name\r\n1;M\u00e9l\u00e9\r\n2;\"x;y\"\r\n")
put("csv", "lines", "Anna\nbo-bo\n  C. D. \nM\u00e9l\u00e9\n")
put("class_list", "classes", "n01440764 tench\nn01443537 gold fish\n" + OVERRIDES[1:] + "val/1.JPEG n01443537\nval/a b.JPEG n01440764\n")
put("class_list", "numbers", "a 0\nb c 1\nd\t2\n")
put("preflight", "step", json.dumps({
    "version": "1", "hosts": ["a", "b"], "ranks": 2, "ranks_per_node": 1,
    "comm": [{"scope": "network", "ranks": 2, "bytes": 1024, "seconds": 1e-5, "sums": 4}],
    "fit": {"network": {"alpha": 1e-6, "beta": 1e-9}}, "input": [{"host": "a", "bytes_per_second": 1e9, "samples_per_second": 100.0}],
    "step": {"model": "m", "micro_batch": 4, "accumulation": 1, "rows_per_rank": 4, "forward": 0.1, "backward": 0.2, "update": 0.01,
             "passes": [{"micro_batch": 4, "forward": 0.1, "backward": 0.2}], "jitter": 0.01, "seconds": 0.3, "input_seconds": 0.0,
             "input_wait": 0.0, "parameters": 10, "elements": 16, "bucket_mib": 1.0, "element_bytes": 4.0, "watermark": [[0.1, 0.5]],
             "ranks": 2, "ranks_per_node": 1, "threads": 1, "cores_per_node": 2, "on_device": False, "whole_workers": False},
    "clock_skew_seconds": [0.0, 1e-4], "slow": [{"host": "b", "what": "step", "times_median": 1.2}]}))
put("preflight", "small", '{"version": "1", "hosts": [], "ranks": 1, "ranks_per_node": 1}')
put("plans", "packed", "conv a\t3\t4\tfound\t512\teng1{k=2}\nABCDconv b\t0\t0\trefused\t0\tno engine\n")
put("plans", "table", "site a\tjoined\t0.001\t\nsite b\tapart\t0\tjoined: no plan\n")
put("plans", "choices", '{"communication":{"nccl":"2.19"},"cudnn":"9.1","device":"NVIDIA H200"}\nconv a\t3\t4\tfound\t512\teng1\nABCD')
put("plans", "gpu", '{"deviceName": "GPU", "deviceVer": 900, "multiProcessorCount": 132, "totalGlobalMem": 1000000, "driverVer": 12040, "origin": "x"}')
put("run_files", "arrivals", "\x00step,update,worker,version,staleness,samples\n1,1,0,0,0,8\n2,2,1,0,1,16\n")
START = {"ranks": 2, "batch": {"global": 256}, "final_step": 9, "elapsed_seconds": 1.5, "stop_cost": {"step_seconds": 0.1},
         "outcome": "finished", "samples": 99, "best_validation_loss": 1.0, "best_step": 4}
put("run_files", "run", "\x01" + json.dumps({"name": "pets", "outcome": "finished", "starts": [START]}))
put("run_files", "metrics", "\x02" + json.dumps({"step": 1, "samples": 4, "loss": 2.5, "accuracy": 0.1}) + "\n"
    + json.dumps({"step": 2, "validation_loss": 2.25, "validation_accuracy": 0.2}) + "\n")
put("run_files", "trial", "\x03" + json.dumps({"name": "a", "state": "finished", "starts": 2, "job": "1", "updated": "2026-01-01T00:00:00Z",
                                               "outcome": {"outcome": "finished", "final_step": 3, "loss": 1.0}, "rung": 1, "rung_losses": [1.0, None]}))
put("run_files", "rung", "\x04" + json.dumps({"rung": 1, "samples": 100, "losses": {"a": 1.0, "b": None}, "promoted": ["a"]}))
for i, text in enumerate(["1..4096", "1,2,48", "results/names/parent@500steps", "0.5 epochs", "host pid 1234 job 4711 restart 0"]):
    put("run_files", f"option-{i}", "\x05" + text)
put("dataset_text", "good", b"")
put("dataset_text", "changed", b"\x00\x01\x02\x03" + struct.pack("<q", 5) + b"\x01\x03text\n")
put("dataset_text", "reshaped", b"\x02\x00\x00\x21\x02\x06\x00\x04\x00")
put("dataset_text", "flipped", b"\x04\x10\x08\x00\xff")
put("dataset_text", "values", b"\xf0\x05\x07" + struct.pack("<Q", 3) + b"\xf0\x02\x01" + struct.pack("<Q", 9))
put("dataset_images", "values", b"\xf0\x02\x05" + struct.pack("<Q", 17) + b"\xf0\x04\x02" + struct.pack("<Q", 1) + b"\x01")
put("dataset_images", "pixels", b"")
put("dataset_images", "jpegs", b"\x01")
put("dataset_images", "changed", b"\x00\x01\x02\x03" + struct.pack("<q", 5) + b"\x01\x03text\n\x03")
put("dataset_images", "reshaped", b"\x02\x00\x00\x21\x04\x03\x00\x08\x00\x09\x00\x03\x00")
put("dataset_images", "cut", b"\x05\x10\x08\x00")
put("checkpoint", "good", b"")
put("checkpoint", "values", b"\xf0\x01\x01" + struct.pack("<Q", 1 << 20))
put("checkpoint", "flipped", b"\x04\x10\x08\x00\xff")
put("checkpoint", "reshaped", b"\x02\x00\x05\x21\x02\x02\x00\x03\x00")
put("checkpoint", "texts", "Tvocabulary=[\"a\", 195, \"\\u00e9\"]\nkept_steps=1 2 3\nbest_loss:1.5\nbatch:512\nmicro_batch:8\n")
put("checkpoint", "texts_none", "Tnoise_groups={}\n")
