"""HDF5 files of pictures and labels: valid ones of many forms, each turned wrong or odd in one way."""
import os

import h5py
import numpy
from h5py import h5d, h5p, h5s, h5t

from made import EITHER, REFUSED, Draw, Made, Pictures, encoded, smooth

MATLAB = {"MATLAB_class": numpy.bytes_("uint8")}


class Arrays:
    """The pictures and labels of one input, and how they are stored."""

    def __init__(self, folder, draw):
        self.folder, self.draw = folder, draw
        self.classes = draw.randint(2, 5)
        self.count = draw.randrange(24, 61)
        height, width = draw.sample(range(6, 13), 2)
        self.pixels = numpy.random.default_rng(draw.randrange(1 << 30)).integers(1, 255, (self.count, height, width, 3), dtype="u1")
        self.labels = numpy.array([i % self.classes for i in range(self.count)])
        draw.shuffle(self.labels)
        self.images, self.targets = draw.choice([("x", "y"), ("images", "labels"), ("data/train/pictures", "data/train/label")])
        self.options = {}  # of h5py.File
        self.path = folder / draw.choice(["pictures.h5", "a.hdf5", "set.mat", "two words.h5"])

    def file(self, name):
        return h5py.File(self.folder / name, "w")

    def store(self, file, values, **more):
        file.create_dataset(self.images, data=values, **more)


# ---- forms of the pictures: (arrays, file) writes them ---------------------------------------------------------------

def contiguous(a, file):
    a.store(file, a.pixels)


def chunked(a, file):
    a.store(file, a.pixels, chunks=tuple(a.draw.randint(1, n) for n in a.pixels.shape))


def compressed(a, file):
    a.store(file, a.pixels, chunks=(a.draw.randint(1, 10), *a.pixels.shape[1:]), compression="gzip", compression_opts=a.draw.randint(0, 9),
            shuffle=a.draw.random() < 0.5, fletcher32=a.draw.random() < 0.5)


def scaled(a, file):
    a.store(file, a.pixels, chunks=(a.draw.randint(1, 10), *a.pixels.shape[1:]), scaleoffset=0)


def grown(a, file):
    data = file.create_dataset(a.images, (0, *a.pixels.shape[1:]), "u1", maxshape=(None, *a.pixels.shape[1:]), chunks=(5, *a.pixels.shape[1:]))
    for first in range(0, a.count, 7):
        data.resize(min(first + 7, a.count), 0)
        data[first:first + 7] = a.pixels[first:first + 7]


def compact(a, file):
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_layout(h5d.COMPACT)
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    h5d.create(file.id, a.images.encode(), h5t.NATIVE_UINT8, h5s.create_simple(a.pixels.shape), how, links).write(h5s.ALL, h5s.ALL, a.pixels)


def virtual(a, file):
    parts = a.draw.randint(1, 4)
    edges = sorted({0, a.count, *(a.draw.randrange(1, a.count) for _ in range(parts - 1))})
    layout = h5py.VirtualLayout(a.pixels.shape, "u1")
    for number, (first, end) in enumerate(zip(edges, edges[1:], strict=False)):
        with a.file(f"part{number}.h5") as part:
            part.create_dataset("p", data=a.pixels[first:end], chunks=a.draw.choice([None, (1, *a.pixels.shape[1:])]))
        layout[first:end] = h5py.VirtualSource(f"part{number}.h5", "p", (end - first, *a.pixels.shape[1:]))
    file.create_virtual_dataset(a.images, layout)


def interleaved(a, file):
    layout = h5py.VirtualLayout(a.pixels.shape, "u1")
    for start in range(3):
        part = a.pixels[start::3]
        file[f"third{start}"] = part
        layout[start::3] = h5py.VirtualSource(".", f"third{start}", part.shape)
    file.create_virtual_dataset(a.images, layout)


def external(a, file):
    raw, how = a.pixels.tobytes(), h5p.create(h5p.DATASET_CREATE)
    edges = sorted({0, len(raw), *(a.draw.randrange(1, len(raw)) for _ in range(a.draw.randint(0, 2)))})
    for number, (first, end) in enumerate(zip(edges, edges[1:], strict=False)):
        before = a.draw.choice([0, 3, 4096])
        (a.folder / f"raw{number}.bin").write_bytes(bytes(before) + raw[first:end])
        how.set_external(f"raw{number}.bin".encode(), before, end - first)
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    h5d.create(file.id, a.images.encode(), h5t.NATIVE_UINT8, h5s.create_simple(a.pixels.shape), how, links)


def soft_link(a, file):
    file["somewhere/else"] = a.pixels
    file[a.images] = h5py.SoftLink("/somewhere/else")


def external_link(a, file):
    with a.file("all.h5") as other:
        other["pictures"] = a.pixels
    file[a.images] = h5py.ExternalLink("all.h5", "/pictures")


def channels_first(a, file):
    a.store(file, a.pixels.transpose(0, 3, 1, 2))


def named_axes(a, file):
    letters = a.draw.choice(["HWCN", "CHWN", "NWHC", "WHCN", "NCWH", "CNHW"])
    a.layout = ["--layout", letters]
    a.store(file, a.pixels.transpose(["NHWC".index(letter) for letter in letters]))


def matlab(a, file):
    order = a.draw.choice([(0, 3, 2, 1), (3, 2, 1, 0), (0, 2, 1, 3)])  # H x W x C x N, N x H x W x C, C x H x W x N
    a.store(file, a.pixels.transpose(order), chunks=a.draw.choice([None, True]))
    file[a.images].attrs.update(MATLAB)


def grey(a, file):
    a.pixels = a.pixels[..., :1]
    a.store(file, a.pixels[..., 0])


def one_channel(a, file):
    a.pixels = a.pixels[..., :1]
    a.store(file, a.pixels)


def allocated_early(a, file):
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5d.FILL_TIME_NEVER)
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    h5d.create(file.id, a.images.encode(), h5t.NATIVE_UINT8, h5s.create_simple(a.pixels.shape), how, links).write(h5s.ALL, h5s.ALL, a.pixels)


FORMS = {f.__name__.replace("_", " "): f for f in (
    contiguous, chunked, compressed, scaled, grown, compact, virtual, interleaved, external, soft_link, external_link, channels_first,
    named_axes, matlab, grey, one_channel, allocated_early)}


# ---- forms of the labels ---------------------------------------------------------------------------------------------

def label_types(a):
    types = {name: a.labels.astype(name) for name in ("i1", "u1", "<i2", ">i2", "<u4", ">i4", "<i8", ">i8", "<u8", ">u8", "f2", "<f4", ">f4", ">f8")}
    types["enum"] = a.labels.astype("i2").astype(h5py.enum_dtype({f"kind {i}": i for i in range(a.classes)}, basetype=">i2"))
    if a.classes == 2:
        types["bool"] = a.labels == 1
    return types


def write_labels(a, file, values=None):
    values = label_types(a)[a.draw.take(label_types(a))] if values is None else values
    names = None if values.dtype == bool else h5py.check_enum_dtype(values.dtype)
    a.class_ids = sorted(names, key=names.get) if names else None
    shape = a.draw.choice([(a.count,)] * 2 + [(a.count, 1), (1, a.count)]) if values.shape == (a.count,) else values.shape
    file.create_dataset(a.targets, data=values.reshape(shape), dtype=values.dtype, chunks=a.draw.choice([None, None, tuple(max(1, n // 2) for n in shape)]) if values.size > 1 else None)


# ---- changes: each returns a Made ------------------------------------------------------------------------------------

def command(a, *more):
    return ["import", str(a.path), "--images", a.images, "--labels", a.targets, *getattr(a, "layout", []), *map(str, more)]


def wanted(a, rows=None, labels=None, classes=None):
    labels = a.labels if labels is None else labels
    rows = range(a.count) if rows is None else rows
    highest = max(int(labels[i]) for i in rows)
    records = {f"{a.images}[{i}]": (int(labels[i]), a.pixels[i]) for i in rows}
    return Pictures(records, getattr(a, "class_ids", None) or [str(i) for i in range(classes or highest + 1)])


def write(a, form, values=None, labels=None):
    with h5py.File(a.path, "w", **a.options) as file:
        FORMS[form](a, file)
        if labels != "none":
            write_labels(a, file, values)


def as_it_is(a, form):
    a.options = a.draw.choice([{}, {"libver": "latest"}, {"userblock_size": 512}, {"track_order": True}])
    write(a, form)
    return Made(command(a), wanted=wanted(a), found=a.count)


def some_rows(a, form):
    write(a, form)
    first, end = sorted(a.draw.sample(range(a.count + 1), 2))
    return Made(command(a, "--rows", f"{first}:{end}"), wanted=wanted(a, range(first, end)), found=a.count)


def two_ranges(a, form):
    write(a, form)
    middle = a.draw.randrange(1, a.count)
    return Made(command(a, "--rows", f"0:{middle}", "--validation-rows", f"{middle}:{a.count}"), wanted=wanted(a), found=a.count)


def a_share(a, form):
    write(a, form)
    return Made(command(a, "--validation", a.draw.choice(["0.1", "0.5"]), "--shards", a.draw.randint(1, 3)), wanted=wanted(a), found=a.count)


def rows_outside(a, form):
    write(a, form)
    rows = a.draw.choice([f"0:{a.count + 1}", "5:5", "9:3", f"{a.count}:{a.count + 2}", "-1:5"])
    return Made(command(a, f"--rows={rows}"), REFUSED, says=r"rows .*FIRST:END|--rows.*expected", named="rows")


def labels_from_1(a, form):
    write(a, form, a.labels + 1)
    return Made(command(a), wanted=wanted(a, labels=a.labels + 1), notes=["class 0 has no pictures"], found=a.count)


def an_empty_class(a, form):
    labels = numpy.where(a.labels == 1, a.classes, a.labels)
    write(a, form, labels)
    return Made(command(a), wanted=wanted(a, labels=labels), notes=[r"1 of \d+ classes have no image in the train split: '1'"], found=a.count)


def one_class(a, form):
    write(a, form, a.labels * 0)
    return Made(command(a), wanted=wanted(a, labels=a.labels * 0), notes=["only one class"], found=a.count)


WRONG_LABELS = {
    "negative": (lambda a: numpy.where(numpy.arange(a.count) == 5, -1, a.labels), r"row 5 .* is -1, expected 0 to"),
    "not a number": (lambda a: numpy.where(numpy.arange(a.count) == 7, numpy.nan, a.labels), "no whole numbers, such as nan in row 7"),
    "infinite": (lambda a: numpy.where(numpy.arange(a.count) == 7, numpy.inf, a.labels), "no whole numbers, such as inf in row 7"),
    "fractions": (lambda a: a.labels + 0.5, "no whole numbers, such as"),
    "normalised": (lambda a: a.labels / max(a.classes - 1, 1) / 3, "no whole numbers, such as"),
    "huge": (lambda a: a.labels + 2**40, "which is not a label"),
    "beyond 64 bits": (lambda a: a.labels.astype("u8") + numpy.uint64(2**63), "label|whole numbers|too large|expected 0 to"),
    "huge floats": (lambda a: a.labels + 1e300, "whole numbers|not a label|too large"),
    "text": (lambda a: numpy.array([f"kind {i}".encode() for i in a.labels]), "holds text"),
    "one-hot": (lambda a: numpy.eye(a.classes + 2)[a.labels], r"has the shape .*expected \(N\)"),
    "one too many": (lambda a: numpy.append(a.labels, 0), r"has \d+ rows, but .* has \d+"),
    "one too few": (lambda a: a.labels[1:], r"has \d+ rows, but .* has \d+"),
    "a number": (lambda a: numpy.array(3), r"shape \(\)|expected \(N\)|is a single value"),
    "complex": (lambda a: a.labels * 1j, "compound|complex|expected whole numbers|holds"),
    "none": (lambda a: a.labels[:0], r"is empty|has 0|rows, but"),
}


def wrong_labels(a, form):
    kind = a.draw.take(WRONG_LABELS)
    make, says = WRONG_LABELS[kind]
    write(a, form, make(a))
    return Made(command(a), REFUSED, says=says), kind


WRONG_PIXELS = {
    "floats": (lambda a: a.pixels / 255, "holds f64, not u8"),
    "bool": (lambda a: a.pixels > 99, "holds bool, not u8"),
    "signed": (lambda a: (a.pixels // 2).astype("i1"), "holds i8, not u8"),
    "16 bits": (lambda a: a.pixels.astype(">u2") * 257, "not u8"),
    "text": (lambda a: numpy.array([b"a.jpg"] * a.count), "holds|text|expected"),
    "two channels": (lambda a: a.pixels[..., :2], "channels|shape|layout"),
    "four channels": (lambda a: numpy.concatenate([a.pixels, a.pixels[..., :1]], 3), "channels|shape|layout"),
    "five axes": (lambda a: a.pixels[None], "axes|shape"),
    "two axes": (lambda a: a.pixels.reshape(a.count, -1), "axes|shape"),
    "no height": (lambda a: a.pixels[:, :0], "height|shape|empty|0 x"),
    "no rows": (lambda a: a.pixels[:0], "has 0 rows|is empty"),
    "a scalar": (lambda a: numpy.uint8(3), "axes|shape"),
    "nothing": (lambda a: h5py.Empty("u1"), "without values|empty"),
    "compound": (lambda a: numpy.zeros(a.count, [("a", "u1"), ("b", "f4")]), "holds|compound|not u8"),
}


def wrong_pixels(a, form):
    kind = a.draw.take(WRONG_PIXELS)
    make, says = WRONG_PIXELS[kind]
    with h5py.File(a.path, "w") as file:
        a.store(file, make(a))
        write_labels(a, file)
    return Made(command(a), REFUSED, says=says), kind


def encoded_records(a, form):
    """Values of variable length that hold JPEG files, as Fuel's do. Sometimes one of them is broken."""
    files = [encoded(smooth(a.draw, 8 + i % 5, 9, a.draw.choice([1, 3]))) for i in range(a.count)]
    broken = a.draw.choice(["", "", "cut", "empty", "text"])
    at = a.draw.randrange(a.count)
    if broken:
        files[at] = {"cut": files[at][:len(files[at]) * 2 // 3], "empty": b"", "text": b"no picture"}[broken]
    with h5py.File(a.path, "w") as file:
        data = file.create_dataset(a.images, (a.count,), h5py.vlen_dtype(numpy.dtype("u1")))
        for i, each in enumerate(files):
            data[i] = numpy.frombuffer(each, "u1")
        write_labels(a, file)
    kept = {f"{a.images}[{i}]": (int(a.labels[i]), each) for i, each in enumerate(files) if not broken or i != at}
    right = Made(command(a, *(["--broken", "skip"] if broken else [])), wanted=Pictures(kept, [str(i) for i in range(a.classes)]), found=a.count,
                 notes=["broken +1, left out"] if broken else [])
    if broken and a.draw.random() < 0.5:
        return Made(command(a), REFUSED, says=rf"1 of {a.count} images cannot be used"), f"{broken}, fail"
    return right, broken or "whole"


def never_written(a, form):
    """Chunks of the pictures or of the labels that were never written."""
    chunk = a.draw.randint(2, 8)
    missing = a.draw.randrange((a.count + chunk - 1) // chunk)
    of_labels = a.draw.random() < 0.3
    fill = a.draw.choice([None, 0, 7])
    with h5py.File(a.path, "w") as file:
        values = a.labels if of_labels else a.pixels
        data = file.create_dataset(a.targets if of_labels else a.images, values.shape, values.dtype, chunks=(chunk, *values.shape[1:]), fillvalue=fill)
        for first in range(0, a.count, chunk):
            if first // chunk != missing:
                data[first:first + chunk] = values[first:first + chunk]
        contiguous(a, file) if of_labels else write_labels(a, file)
    first, end = missing * chunk, min(missing * chunk + chunk, a.count) - 1
    says = rf"rows {first} to {end} of {a.count} were never written" if first != end else rf"row {first} of {a.count} was never written"
    if a.draw.random() < 0.4 and end < a.count - 2:
        return Made(command(a, "--rows", f"{end + 1}:{a.count}"), wanted=wanted(a, range(end + 1, a.count))), "the other rows"
    return Made(command(a), REFUSED, says=says), f"labels {of_labels}, fill {fill}"


def lost_part(a, form):
    """A file that the first one needs is missing, short, empty, or no HDF5 file."""
    form = a.draw.choice(["virtual", "external", "external link"])
    write(a, form)
    parts = sorted(p for p in a.folder.iterdir() if p != a.path)
    part, how = a.draw.choice(parts), a.draw.choice(["missing", "short", "empty", "text"])
    if how == "missing":
        part.unlink()
    elif how == "text" and part.suffix == ".h5":
        part.write_text("no HDF5")
    else:
        os.truncate(part, 0 if how == "empty" else part.stat().st_size * 2 // 3)
    return Made(command(a), REFUSED, says=part.name, named=part.name), f"{form}: {how}"


def cut_off(a, form):
    write(a, form)
    size = a.path.stat().st_size
    os.truncate(a.path, a.draw.choice([0, 1, 8, 96, 511, size // 2, size - 1, a.draw.randrange(size)]))
    return Made(command(a), REFUSED, says="cut off|not an HDF5 file|is empty|damaged|truncated")


def flipped_bytes(a, form):
    """A byte of the file, or some, are others. Pixels have no checksum, so the data may be other pixels."""
    write(a, form)
    content = bytearray(a.path.read_bytes())
    last = a.draw.choice([200, 2048, len(content)])
    for _ in range(a.draw.choice([1, 1, 3])):
        content[a.draw.randrange(min(last, len(content)))] ^= a.draw.randint(1, 255)
    a.path.write_bytes(content)
    return Made(command(a), EITHER)


def damaged_chunk(a, form):
    with h5py.File(a.path, "w") as file:
        a.store(file, a.pixels, chunks=(4, *a.pixels.shape[1:]), **a.draw.choice([{"fletcher32": True}, {"compression": "gzip"}]))
        write_labels(a, file)
        place = file[a.images].id.get_chunk_info(a.draw.randrange(file[a.images].id.get_num_chunks()))
    with open(a.path, "r+b") as file:
        file.seek(place.byte_offset + place.size // 2)
        old = file.read(16)
        file.seek(place.byte_offset + place.size // 2)
        file.write(bytes(b ^ 0x5A for b in old))  # HDF5's checksum cannot tell the bytes ff ff from 00 00
    # gzip has its own checksum.
    return Made(command(a), REFUSED, says="cannot read rows")


def a_missing_filter(a, form):
    with h5py.File(a.path, "w") as file:
        a.store(file, a.pixels * 0 + 9, compression="lzf", chunks=(8, *a.pixels.shape[1:]))
        write_labels(a, file)
    return Made(command(a), REFUSED, says="compressed with 'lzf'")


NO_HDF5 = {
    "text": b"name,label\na,1\n", "zip": b"PK\x03\x04" + bytes(99), "numpy": b"\x93NUMPY\x01\x00" + bytes(200), "empty": b"",
    "MATLAB 5": b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x01IM" + bytes(300), "HDF4": b"\x0e\x03\x13\x01" + bytes(200),
    "NetCDF 3": b"CDF\x01" + bytes(200), "gzip": b"\x1f\x8b\x08" + bytes(90), "the mark alone": b"\x89HDF\r\n\x1a\n",
    "the mark and zeros": b"\x89HDF\r\n\x1a\n" + bytes(2000),
}


def no_hdf5(a, form):
    kind = a.draw.take([*NO_HDF5, "a folder", "nothing"])
    if kind == "a folder":
        a.path.mkdir()
    elif kind != "nothing":
        a.path.write_bytes(NO_HDF5[kind])
    return Made(command(a), REFUSED, says="."), kind


def wrong_key(a, form):
    write(a, form)
    kind = a.draw.choice(["no such pictures", "no such labels", "a group", "both the same", "a lost link"])
    if kind == "no such labels":
        a.targets = "nothing/here"
    elif kind == "both the same":
        a.targets = a.images
    elif kind == "a lost link":
        with h5py.File(a.path, "r+") as file:
            file["lost"] = a.draw.choice([h5py.SoftLink("/nowhere"), h5py.SoftLink("/lost"), h5py.ExternalLink("gone.h5", "/x")])
        a.images = "lost"
    elif kind == "a group":
        with h5py.File(a.path, "r+") as file:
            file.create_group("group")
        a.images = "group"
    else:
        a.images = a.draw.choice(["X", "pictures/x", "/", ""])
    return Made(command(a), REFUSED, says="."), kind


CHANGES = {f.__name__.replace("_", " "): f for f in (
    as_it_is, some_rows, two_ranges, a_share, rows_outside, labels_from_1, an_empty_class, one_class, wrong_labels, wrong_pixels, encoded_records,
    never_written, lost_part, cut_off, flipped_bytes, damaged_chunk, a_missing_filter, no_hdf5, wrong_key)}
# Half of the inputs are right ones in all forms.
WEIGHTS = {"as it is": 8, "a share": 3, "some rows": 2, "two ranges": 2, "flipped bytes": 3, "wrong labels": 2, "wrong pixels": 2}


def draw(generator: Draw):
    changes = [name for name in CHANGES for _ in range(WEIGHTS.get(name, 1))]
    return generator.take(FORMS), generator.choice(changes)


def make(folder, generator: Draw, form, change):
    made = CHANGES[change](Arrays(folder, generator), form)
    return made if isinstance(made, tuple) else (made, "")
