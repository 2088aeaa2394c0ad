"""What a generator makes: an input on disk, the command that reads it, and what is right."""
import io
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from PIL import Image

RIGHT, REFUSED, EITHER = "right", "refused", "either"


@dataclass
class Made:
    """An input and what must come of it.

    RIGHT: it is converted, and the shards hold `wanted`. REFUSED: it is one error that matches `says`. EITHER: it is
    refused, or converted to shards that hold `wanted` (None: to shards that are whole)."""
    words: list  # the command without --out, such as ["names", "a.csv"]
    outcome: str = RIGHT
    wanted: object = None  # Pictures, Names or Text
    says: str = ""  # pattern of the error
    notes: list = field(default_factory=list)  # patterns of what is printed if the input is converted
    named: str = ""  # the file that an error must name; empty: the input's own name
    found: int | None = None  # files, rows or symbols that the program must count
    twin: list | None = None  # a command that must give the same data set: a tar file of the folder
    twin_refused: str = ""  # the twin is wrong in a way that the folder is not: the pattern of its error


@dataclass
class Pictures:
    """key -> (label, content). The content is the record's bytes, its pixels (height, width, channels), or None for a
    picture whose content is not checked. `tolerance` is the mean difference that is allowed for pixels."""
    records: dict
    classes: list
    tolerance: float = 0


@dataclass
class Names:
    """name -> how often it occurs."""
    counts: dict


@dataclass
class Text:
    text: str


class Shard:
    """A finished data set that is changed: `prefix`-train and, if there is one, `prefix`-validation.

    `verify` and `train` must agree. If `same`, both accept it, and the training has the curve of `unchanged`."""

    def __init__(self, prefix: Path, unchanged: Path, same: bool, says="", only_verify=False):
        self.prefix, self.unchanged, self.same, self.says, self.only_verify = prefix, unchanged, same, says, only_verify


class Draw(random.Random):
    """Draws for one input. `take` chooses an item of a table by its name."""

    def __init__(self, *key):
        super().__init__(" ".join(map(str, key)))

    def take(self, table):
        return self.choice(sorted(table))


def smooth(draw, height, width, channels=3):
    """Pixels that change slowly, as in photographs, so that JPEG keeps them."""
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [(draw.uniform(60, 190) + draw.uniform(-2, 2) * y + draw.uniform(-2, 2) * x).clip(1, 254) for _ in range(channels)]
    return numpy.stack(planes, axis=-1).astype("u1")


def encoded(pixels, form="JPEG", **options):
    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(out, form, **options)
    return out.getvalue()
