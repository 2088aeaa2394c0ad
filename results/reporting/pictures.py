"""Saves the pictures of plot.py and plot_bench.py in small files."""

import io
from . import outputs


def save(figure, path, dpi=120):
    """Writes the figure in the format of the path's ending. Throws ReportError (outputs.py), OSError, and ValueError for an
    unknown format."""
    path, drawn = outputs.picture_path(path), io.BytesIO()
    outputs.expect(path, "-o", "picture", outputs.is_picture)
    ending = path.suffix.lower()
    figure.savefig(drawn, dpi=dpi, format=ending[1:] or None)
    data = drawn.getvalue()
    if ending == ".svg":
        from . import small_svg

        data = small_svg.smaller(data.decode()).encode()
    elif ending == ".png":
        from PIL import Image  # matplotlib needs it, too

        # Other methods lose the colours of thin lines.
        with Image.open(drawn) as picture:
            few = picture.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small = io.BytesIO()
        few.save(small, format="PNG", optimize=True)
        data = small.getvalue()
    outputs.write(path, data)
