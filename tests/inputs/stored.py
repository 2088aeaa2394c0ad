"""Reads finished shards with h5py alone, and compares them with what must be in them."""
import collections
import io

import h5py
import numpy
from PIL import Image

from made import Names, Pictures, Text


def shards(prefix, split):
    return sorted(prefix.parent.glob(f"{prefix.name}-{split}-?????-of-?????.h5"))


def words(values):
    return [v.decode() if isinstance(v, bytes) else v for v in values]


def pictures_of(path):
    with h5py.File(path) as file:
        keys = [key.decode(errors="surrogateescape") for key in file["keys"][:]]
        labels, ids = file["labels"][:], file["sample_ids"][:]
        raw = file["images"].attrs["encoding"] in ("raw", b"raw")
        images, offsets = file["images"][:], None if raw else file["offsets"][:]
        for i, key in enumerate(keys):
            yield key, int(labels[i]), int(ids[i]), images[i] if raw else images[offsets[i]:offsets[i + 1]].tobytes()


def records_of(prefix):
    """Returns (split, key, label, content) of all records: content is pixels or the bytes of a JPEG."""
    return [(split, key, label, content) for split in ("train", "validation") for path in shards(prefix, split)
            for key, label, _, content in pictures_of(path)]


def wrong_content(is_, right, tolerance):
    if right is None:
        return ""
    if isinstance(right, bytes):
        return "" if is_ == right else "other bytes"
    if isinstance(is_, bytes):
        is_ = numpy.asarray(Image.open(io.BytesIO(is_)).convert("RGB" if right.shape[-1] == 3 else "L")).reshape(-1)
        is_ = is_.reshape(right.shape) if is_.size == right.size else is_
    elif is_.size == right.size:
        is_ = is_.reshape(right.shape)
    if is_.shape != right.shape:
        return f"shape {is_.shape}, expected {right.shape}"
    difference = abs(is_.astype("f8") - right.astype("f8")).mean()
    return f"mean difference {difference:.2f}" if difference > tolerance else ""


def wrong_pictures(prefix, wanted):
    found = records_of(prefix)
    keys = collections.Counter(key for _, key, _, _ in found)
    if keys != collections.Counter(list(wanted.records)):
        lost, more = sorted(wanted.records.keys() - keys.keys()), sorted(keys.keys() - wanted.records.keys())
        twice = [key for key, n in keys.items() if n > 1]
        return [f"lost records {lost[:3]}, unknown records {more[:3]}, records twice {twice[:3]}"]
    for _, key, label, content in found:
        right_label, right = wanted.records[key]
        if label != right_label:
            return [f"{key} has the label {label}, expected {right_label}"]
        wrong = wrong_content(content, right, wanted.tolerance)
        if wrong:
            return [f"{key} has {wrong}"]
    for split in "train", "validation":
        for path in shards(prefix, split):
            with h5py.File(path) as file:
                if words(file["class_ids"][:]) != wanted.classes and wanted.classes:
                    return [f"the classes are {words(file['class_ids'][:])}, expected {wanted.classes}"]
    ids = [number for split in ("train", "validation") for path in shards(prefix, split) for _, _, number, _ in pictures_of(path)]
    return ["sample ids are not unique"] if len(set(ids)) != len(ids) else []


def names_of(prefix):
    """Returns how often each name occurs, by its rows, and checks that the rows are its prefixes."""
    counts, known, rows = collections.Counter(), None, collections.defaultdict(collections.Counter)
    for split in "train", "validation":
        in_split = set()
        for path in shards(prefix, split):
            with h5py.File(path) as file:
                tokens = file["tokens"]
                vocabulary, width = words(tokens.attrs["vocab"]), tokens.shape[1]
                if "names" in file:
                    offsets, data = file["name_offsets"][:], file["names"][:].tobytes()
                    known = [data[a:b].decode() for a, b in zip(offsets, offsets[1:], strict=False)]
                for index, row in zip(file["name_index"][:], tokens[:], strict=True):
                    rows[int(index)][tuple(row)] += 1
                    in_split.add(int(index))
                pad, stop = int(tokens.attrs["pad_id"]), int(tokens.attrs["stop_id"])
        if split == "train":
            of_train = in_split
    if of_train & in_split and of_train is not in_split:
        raise ValueError(f"names in both splits, such as {known[min(of_train & in_split)]}")
    ids = {symbol: i for i, symbol in enumerate(vocabulary) if i not in (pad, stop)}
    for index, found in rows.items():
        name = known[index]
        whole = [ids[symbol] for symbol in name] + [stop]
        prefixes = collections.Counter(tuple(([pad] * width + whole[:n])[-width:]) for n in range(1, len(whole) + 1))
        times = sum(found.values()) // len(whole)
        if found != collections.Counter({row: n * times for row, n in prefixes.items()}):
            raise ValueError(f"the rows of '{name}' are not its prefixes")
        counts[name] = times
    return counts


def text_of(prefix, encoding):
    """The text of all shards. With --alphabet bytes, each byte is a symbol, and its encoding is latin-1 here."""
    text = ""
    for split in "train", "validation":
        for path in shards(prefix, split):
            with h5py.File(path) as file:
                symbols = [(s.encode() if isinstance(s, str) else s).decode(encoding) or "\0" for s in file["tokens"].attrs["vocab"]]
                text += "".join(symbols[i] for i in file["tokens"][:])
    return text


def wrong(prefix, wanted, of_bytes=False):
    """Returns what is wrong with the shards, as a list of sentences."""
    if isinstance(wanted, Pictures):
        return wrong_pictures(prefix, wanted)
    if isinstance(wanted, Names):
        try:
            found = names_of(prefix)
        except ValueError as error:
            return [str(error)]
        differ = {name for name in found.keys() | wanted.counts.keys() if found[name] != wanted.counts.get(name, 0)}
        return [f"{name!r} occurs {found[name]} times, expected {wanted.counts.get(name, 0)}" for name in sorted(differ)[:3]]
    if isinstance(wanted, Text):
        text = text_of(prefix, "latin-1" if of_bytes else "utf-8")
        if text != wanted.text:
            at = next((i for i, (a, b) in enumerate(zip(text, wanted.text, strict=False)) if a != b), min(len(text), len(wanted.text)))
            return [f"the text differs at {at}: {text[at:at + 20]!r}, expected {wanted.text[at:at + 20]!r}"]
    return []
