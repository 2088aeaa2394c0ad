"""Saves the pictures of plot.py and plot_bench.py in small files."""

from pathlib import Path


def save(figure, path, dpi=120):
    """Writes the figure in the format of the path's ending. Throws OSError, and ValueError for an unknown format."""
    path = Path(path)
    figure.savefig(path, dpi=dpi)
    if path.suffix.lower() == ".svg":
        from . import small_svg

        path.write_text(small_svg.smaller(path.read_text(encoding="utf-8")), encoding="utf-8")
    elif path.suffix.lower() == ".png":
        from PIL import Image  # matplotlib needs it, too

        with Image.open(path) as picture:
            # Other methods lose the colours of thin lines.
            few = picture.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
