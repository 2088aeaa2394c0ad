#!/usr/bin/env python3
"""Writes a data set whose tables are as long as ImageNet's and whose pictures have one byte each:
start_data.py FOLDER [SAMPLES [SHARDS]]   (1,281,167 samples in 128 shards)

`ringtrain bench start FOLDER/start.yaml` reads its tables and no picture. data_prep/README.md describes the schema."""
import os
import sys

import h5py
import numpy

# CRC-32C (Castagnoli) of one byte 0, as base/hash.h computes it.
CRC_OF_ZERO = 0x527D5351

folder = sys.argv[1]
samples = int(sys.argv[2]) if len(sys.argv) > 2 else 1_281_167
shards = int(sys.argv[3]) if len(sys.argv) > 3 else 128
os.makedirs(folder, exist_ok=True)
for shard in range(shards):
    first, last = samples * shard // shards, samples * (shard + 1) // shards
    n = last - first
    with h5py.File(f"{folder}/start-train-{shard:05}-of-{shards:05}.h5", "w") as file:
        for name, value in (("schema", "ringtrain"), ("kind", "image"), ("split", "train"), ("dataset_name", "start"),
                            ("dataset_uuid", "start")):
            file.attrs[name] = numpy.bytes_(value)
        for name, value in (("num_samples", n), ("num_samples_total", samples), ("shard_index", shard),
                            ("num_shards", shards), ("num_classes", 1000), ("complete", 1)):
            file.attrs[name] = numpy.int64(value)
        file.attrs["schema_version"] = numpy.array([1, 0], dtype="i8")
        file.attrs["mean"] = file.attrs["std"] = numpy.array([0.5, 0.5, 0.5])
        file["images"] = numpy.zeros(n, "u1")
        file["images"].attrs["encoding"] = numpy.bytes_("jpeg")
        file["offsets"] = numpy.arange(n + 1, dtype="u8")
        file["labels"] = numpy.arange(first, last, dtype="i8").astype("i4") % 1000
        file["shapes"] = numpy.tile(numpy.array([1, 1, 3], dtype="i4"), (n, 1))
        file["sample_ids"] = numpy.arange(first, last, dtype="u8")
        file["crc32c"] = numpy.full(n, CRC_OF_ZERO, "u4")
        names = [f"n{k:08}".encode() for k in range(1000)]
        file["class_names"] = file["class_ids"] = numpy.array(names)
with open(f"{folder}/start.yaml", "w") as file:
    file.write(f"""name: start
model: {{kind: resnet, depth: 18, width: 16, stem: small}}
data: {{train: {folder}/start-train, validation: "", image_size: 32, augmentation: pad_crop, pad: 2}}
batch: {{global: 64, worker: 1, micro: 1}}
optimizer: {{kind: sgd}}
learning_rate: {{base: 0.1}}
stop: {{steps: 10}}
""")
