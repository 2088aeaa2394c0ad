"""draw(seed, number) says what input has this number, and make() writes it. Both are pure functions of seed and number, so
that any input can be made again alone."""
from dataclasses import dataclass

import arrays
import pictures
import shards
import tables
import texts
from made import Draw

# The families, and how many of a hundred inputs are of each.
FAMILIES = {"arrays": (arrays, 30), "pictures": (pictures, 32), "tables": (tables, 18), "texts": (texts, 6), "shards": (shards, 14)}


@dataclass
class Input:
    seed: int
    number: int
    family: str
    form: str
    change: str

    def __str__(self):
        return f"{self.family}: {self.form}, {self.change}"


def draw(seed, number):
    generator = Draw("draw", seed, number)
    family = generator.choice([name for name, (_, share) in FAMILIES.items() for _ in range(share)])
    return Input(seed, number, family, *FAMILIES[family][0].draw(generator))


def make(drawn, folder):
    """Writes the input below `folder`. Returns what is right (Made or Shard), and a word more about the change."""
    folder.mkdir(parents=True)
    return FAMILIES[drawn.family][0].make(folder, Draw("make", drawn.seed, drawn.number), drawn.form, drawn.change)
