#!/usr/bin/env python3
"""Makes a report's files smaller, so that it can be kept in git: results/shrink_report.py results/studies/NAME

In an SVG, numbers of 1 or more keep two digits after the point. Comments and metadata are removed, and line ends become
blanks. An SVG is a file, or a part of an HTML page. A PNG gets 64 colours. Other files stay as they are.
"""

import re
import sys
from pathlib import Path

from PIL import Image

SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)


def smaller(svg):
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(?<![\d.])([1-9]\d*\.\d\d)\d+", r"\1", svg)  # the scale of letters is below 1 and must stay exact
    return re.sub(r"\s+", " ", svg).replace("> <", "><")


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: shrink_report.py FOLDER")
    for path in sorted(Path(sys.argv[1]).rglob("*")):
        if path.suffix in (".svg", ".html"):
            text = path.read_text(encoding="utf-8")
            path.write_text(SVG.sub(lambda found: smaller(found[0]), text), encoding="utf-8")
        elif path.suffix == ".png":
            with Image.open(path) as picture:
                few = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
            few.save(path, optimize=True)


if __name__ == "__main__":
    main()
