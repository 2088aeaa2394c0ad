"""Colours for any number of lines, shared by plot.py, plot_bench.py and the report."""


def colors(count):
    """Returns `count` different colours: matplotlib's ten, or a rainbow if ten are not enough."""
    import matplotlib

    if count <= 10:
        return [f"C{i}" for i in range(count)]
    return [matplotlib.colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]
