"""Finished data sets that another program has rewritten or damaged: verify and train must find the same."""
import os
import shutil
import subprocess

import h5py
import numpy

from made import Draw, Shard, encoded, smooth
from jobs import CONVERTER

FORMS = ["pixels", "records", "names", "text"]
# The arrays of each form, without the strings.
ARRAYS = {"pixels": ["images", "labels", "shapes", "sample_ids", "crc32c"], "records": ["images", "offsets", "labels", "shapes", "sample_ids", "crc32c"],
          "names": ["tokens", "crc32c", "sample_ids", "name_index"], "text": ["tokens", "crc32c"]}
NUMBERS = {"pixels": ["schema_version", "num_samples", "num_samples_total", "shard_index", "num_shards", "num_classes", "complete", "mean", "std"],
           "names": ["schema_version", "num_samples", "num_samples_total", "shard_index", "num_shards", "complete", "num_classes"]}
NUMBERS["records"], NUMBERS["text"] = NUMBERS["pixels"], NUMBERS["names"]
# Arrays that training does not read. Only verify can find what is wrong with them.
FOR_VERIFY = {"name_index", "sample_ids"}


def make_set(folder, draw, form):
    """Converts a small data set with two shards, and returns its prefix."""
    source = folder / "source"
    if form == "pixels":
        with h5py.File(source, "w") as file:
            file["x"] = numpy.random.default_rng(draw.randrange(999)).integers(0, 255, (40, 8, 9, 3), dtype="u1")
            file["y"] = numpy.arange(40) % 3
        words = ["import", source, "--images", "x", "--labels", "y"]
    elif form == "records":
        for number in range(20):
            path = source / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(smooth(draw, draw.randint(9, 20), draw.randint(9, 20))))
        words = ["images", source]
    elif form == "names":
        source.write_text("\n".join("".join(draw.choice("abelmno") for _ in range(draw.randint(2, 8))) for _ in range(40)) + "\n")
        words = ["names", source, "--alphabet", draw.choice(["auto", "study31"])]
    else:
        source.write_text("".join(draw.choice("abcde fgh\n") for _ in range(900)))
        words = ["text", source]
    done = subprocess.run([CONVERTER, *words, "--out", folder / "set", "--shards", "2"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    for path in folder.glob("set-validation*"):
        path.unlink()
    return folder / "set"


class Changed:
    """A data set and an unchanged copy. `path` is the shard to change."""

    def __init__(self, folder, draw, form):
        self.draw, self.form = draw, form
        self.prefix = make_set(folder, draw, form)
        self.unchanged = folder / "unchanged" / "set"
        self.unchanged.parent.mkdir()
        self.paths = sorted(folder.glob("set-train-*.h5"))
        for path in self.paths:
            shutil.copy(path, self.unchanged.parent)
        self.path = draw.choice(self.paths)

    def shard(self, same=False, says="", only_verify=False):
        return Shard(self.prefix, self.unchanged, same, says, only_verify)

    def open(self):
        return h5py.File(self.path, "r+")

    def array(self):
        return self.draw.choice(ARRAYS[self.form])


def replace(file, name, values, dtype=None, **storage):
    """Writes a data set again, with its attributes."""
    attributes = dict(file[name].attrs)
    del file[name]
    data = file.create_dataset(name, data=values, dtype=dtype or values.dtype, **storage)
    data.attrs.update(attributes)
    return data


def as_it_is(c):
    return c.shard(same=True)


def other_storage(c):
    name = c.array()
    kind = c.draw.choice(["chunks", "gzip", "checked", "byte order", "a link", "another file", "latest"])
    with c.open() as file:
        values = file[name][:]
        chunks = tuple(max(1, n // 2) for n in values.shape)
        if kind == "chunks":
            replace(file, name, values, chunks=chunks)
        elif kind == "gzip":
            replace(file, name, values, chunks=chunks, compression="gzip", shuffle=True)
        elif kind == "checked":
            replace(file, name, values, chunks=chunks, fletcher32=True)
        elif kind == "byte order":
            replace(file, name, values, values.dtype.newbyteorder(">"))
        elif kind == "a link":
            file.move(name, "moved")
            file[name] = h5py.SoftLink("/moved")
        elif kind == "another file":
            with h5py.File(c.path.parent / "other.h5", "w") as other:
                file.copy(name, other, name)
            del file[name]
            file[name] = h5py.ExternalLink("other.h5", name)
    if kind == "latest":
        new = c.path.with_name("new")
        with h5py.File(c.path) as old, h5py.File(new, "w", libver="latest") as file:
            for key in old:
                old.copy(key, file)
            file.attrs.update(old.attrs)
        os.replace(new, c.path)
    return c.shard(same=True), f"{name}: {kind}"


def other_attributes(c):
    """The same values in another byte order, width, or kind of text."""
    kind = c.draw.choice(["byte order", "i4", "fixed text", "variable text"])
    with c.open() as file:
        for name, value in list(file.attrs.items()):
            is_text = isinstance(value, (str, bytes, numpy.bytes_))
            if kind in ("fixed text", "variable text") and is_text:
                text = value if isinstance(value, str) else value.decode()
                file.attrs.create(name, numpy.bytes_(text) if kind == "fixed text" else text)
            elif not is_text and kind in ("byte order", "i4"):
                value = numpy.asarray(value)
                dtype = value.dtype.newbyteorder(">") if kind == "byte order" else numpy.dtype("i4" if value.dtype.kind in "iu" else value.dtype)
                file.attrs.create(name, value.astype(dtype), dtype=dtype)
    return c.shard(same=True), kind


def never_written(c):
    name = c.array()
    with c.open() as file:
        values = file[name][:]
        attributes = dict(file[name].attrs)
        del file[name]
        part = c.draw.random() < 0.5 and len(values) > 1
        data = file.create_dataset(name, values.shape, values.dtype, chunks=(max(1, len(values) // 2), *values.shape[1:]) if part else None)
        data.attrs.update(attributes)
        if part:
            data[:len(values) // 2] = values[:len(values) // 2]
    return c.shard(says="never written", only_verify=name in FOR_VERIFY), name


def a_filter(c):
    name = c.array()
    with c.open() as file:
        values = file[name][:]
        replace(file, name, values, chunks=values.shape, compression="lzf")
        stored = file[name].id.get_storage_size() < values.nbytes
    # lzf leaves what it cannot compress as it is, and such a chunk can be read.
    return c.shard(same=not stored, says="'lzf'" if stored else "", only_verify=name in FOR_VERIFY), name


def lost_array(c):
    name = c.array()
    if name in ("crc32c", "name_index") or (name == "sample_ids" and c.form == "names"):  # optional
        name = "images" if c.form in ("pixels", "records") else "tokens"
    with c.open() as file:
        del file[name]
    return c.shard(says=name), name


def other_shape(c):
    name, kind = c.array(), c.draw.choice(["one more", "one less", "another axis", "none"])
    with c.open() as file:
        values = file[name][:]
        values = {"one more": lambda: numpy.concatenate([values, values[:1]]), "one less": lambda: values[:-1],
                  "another axis": lambda: values[None], "none": lambda: values[:0]}[kind]()
        replace(file, name, values)
    return c.shard(says="expected|has|is", only_verify=name in FOR_VERIFY), f"{name}: {kind}"


def other_type(c):
    name = c.array()
    with c.open() as file:
        old = file[name].dtype
        new = c.draw.choice([t for t in ("i1", "u2", "f4", "i8", "S3", "f8") if numpy.dtype(t) != old])
        values = file[name][:]
        replace(file, name, values.astype(new))
    return c.shard(says="expected|not|type|is", only_verify=name in FOR_VERIFY), f"{name}: {old} as {new}"


def lost_attribute(c):
    name = c.draw.choice([*NUMBERS[c.form], "schema", "kind", "dataset_uuid"])
    with c.open() as file:
        del file.attrs[name]
    return c.shard(says="" if name == "num_classes" and c.form in ("names", "text") else name, only_verify=name == "num_classes"), name


def wrong_attribute(c):
    name = c.draw.choice(NUMBERS[c.form])
    with c.open() as file:
        value = numpy.asarray(file.attrs[name])
        change = c.draw.choice(["one more", "negative", "huge", "not a number", "text", "two"])
        new = {"one more": value + 1, "negative": -value - 1, "huge": value * 0 + 2**62, "not a number": value * numpy.nan, "text": "x",
               "two": numpy.stack([value, value])}[change]
        file.attrs[name] = new
    harmless = change == "one more" and name in ("mean", "std")
    return c.shard(says="" if harmless else ".", only_verify=c.form in ("names", "text") and name == "num_classes"), f"{name}: {change}"


def wrong_values(c):
    """A value that the pictures or the text cannot have."""
    with c.open() as file:
        if c.form in ("pixels", "records"):
            kind = c.draw.choice(["label", "negative label", "shape", *(["offsets"] if c.form == "records" else [])])
            at = c.draw.randrange(len(file["labels"]))
            if "label" in kind:
                file["labels"][at] = -1 if kind.startswith("neg") else 99
            elif kind == "shape":
                file["shapes"][at, 0] += 1
            else:
                file["offsets"][at] = 2**40
            return c.shard(says=kind.split()[-1].rstrip("s"), only_verify=kind == "shape"), kind
        at = c.draw.randrange(len(file["tokens"]))
        file["tokens"][at] = 255
    return c.shard(says="CRC-32C|id|symbols"), "id"


def flipped_data(c):
    """A bit of the pictures or of the text is another. The checksum finds it."""
    name = "images" if c.form in ("pixels", "records") else "tokens"
    with c.open() as file:
        values = file[name][:]
        values.reshape(-1)[c.draw.randrange(values.size)] ^= 1 << c.draw.randrange(8)
        file[name][...] = values
    return c.shard(says="CRC-32C|does not decode|symbols")


def flipped_bytes(c):
    content = bytearray(c.path.read_bytes())
    for _ in range(c.draw.choice([1, 1, 4])):
        content[c.draw.randrange(len(content))] ^= c.draw.randint(1, 255)
    c.path.write_bytes(content)
    return c.shard(only_verify=True)


def cut_off(c):
    size = c.path.stat().st_size
    os.truncate(c.path, c.draw.choice([0, 8, size // 2, size - 1]))
    return c.shard(says="cut off|damaged|HDF5|empty")


def wrong_files(c):
    kind = c.draw.choice(["a lost shard", "one too many", "of another set", "text", "the same twice", "another kind"])
    if kind == "a lost shard":
        c.path.unlink()
    elif kind == "one too many":
        shutil.copy(c.path, c.path.with_name("set-train-00002-of-00003.h5"))
    elif kind == "text":
        c.path.write_text("no HDF5")
    elif kind == "the same twice":
        shutil.copy(c.paths[0], c.paths[1])
    else:
        folder = c.path.parent / "other"
        folder.mkdir()
        other = make_set(folder, c.draw, c.form if kind == "of another set" else c.draw.choice([f for f in FORMS if f != c.form]))
        shutil.copy(f"{other}-train-{c.path.name[10:]}", c.path)
    return c.shard(says="."), kind


CHANGES = {f.__name__.replace("_", " "): f for f in (
    as_it_is, other_storage, other_attributes, never_written, a_filter, lost_array, other_shape, other_type, lost_attribute, wrong_attribute, wrong_values,
    flipped_data, flipped_bytes, cut_off, wrong_files)}
WEIGHTS = {"other storage": 4, "flipped bytes": 2, "other attributes": 2, "never written": 2, "wrong attribute": 2, "wrong values": 2}


def draw(generator: Draw):
    return generator.choice(FORMS), generator.choice([name for name in CHANGES for _ in range(WEIGHTS.get(name, 1))])


def make(folder, generator: Draw, form, change):
    made = CHANGES[change](Changed(folder, generator, form))
    return made if isinstance(made, tuple) else (made, "")
