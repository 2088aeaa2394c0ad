"""B_crit against the share of the data (the key data.share), with a power law B_crit = a share^p.

Zhang et al. 2024 (arXiv:2410.21676) found that the critical batch grows with the data, and hardly with the model."""

from . import cells as grouping
from . import power_law, style
from .style import Figure, Missing

KEY, TITLE = "data.share", "B_crit, against the share of the data"


def share_of(cells):
    """Returns the share of these cells' runs. A run without the key learned from all data."""
    found = {1.0 if (value := grouping.value_of(run, KEY)) is None else value for cell in cells for run in cell.runs}
    return found.pop() if len(found) == 1 else None


def lines_of(cells, made):
    """Returns a list of lines. A line maps shares to fits; its families differ in the share, and in keys that follow
    it."""
    shares = {family: share_of(own) for family, own in grouping.families(cells).items() if family in made}
    shares = {family: share for family, share in shares.items() if share}
    following = set()
    for place in range(max((len(family) for family in shares), default=0)):
        pairs = {(share, family[place]) for family, share in shares.items()}
        if len(pairs) == len(set(shares.values())):
            following.add(place)
    found = {}
    for family, share in shares.items():
        rest = tuple(pair for place, pair in enumerate(family) if place not in following and pair[0] != KEY)
        found.setdefault(rest, {})[share] = made[family]
    return {rest: dict(sorted(line.items())) for rest, line in found.items() if len(line) > 1}


def law_of(line):
    return power_law.power_law(list(line), [f.critical for f in line.values()], [f.critical_interval for f in line.values()])


def laws_of(cells, made):
    """Returns the power laws of all lines."""
    return [law for law in map(law_of, lines_of(cells, made).values()) if law]


def against_share(cells, made):
    """Draws B_crit of the fits (`made`) against the share. Returns None if the runs do not differ in the share."""
    if len({grouping.value_of(run, KEY) for cell in cells for run in cell.runs}) < 2:
        return None
    lines = lines_of(cells, made)
    if not lines:
        return Missing(TITLE, "fewer than two shares have a fit of B_crit")
    drawing, (axis,) = style.panels()
    rows, warnings = [], []
    for index, (rest, line) in enumerate(lines.items()):
        name, law = grouping.label(rest) if rest else "B_crit", law_of(line)
        values, intervals = [f.critical for f in line.values()], [f.critical_interval for f in line.values()]
        words = f"{law.factor:,.0f} share" if law else ""
        power_law.draw(axis, list(line), values, intervals, law, name, words, style.line(index, len(lines), linestyle=""))
        if not law:
            warnings.append(f"{name}: two shares are too few for a power law; it needs three")
        rows += [
            {
                "line": name,
                "share": share,
                "B_crit": f.critical,
                "B_crit_low": f.critical_interval.low,
                "B_crit_high": f.critical_interval.high,
                **power_law.columns(law),
            }
            for share, f in line.items()
        ]
    style.powers(axis, [share for line in lines.values() for share in line])
    style.log_y(axis)
    axis.set_xlabel("share of the training data")
    axis.set_ylabel("B_crit (samples)")
    style.legend(axis)
    note = (
        "B_crit of the fit for each share, with 95 % intervals, and a power law by least squares in log space. Zhang et al. "
        "2024 (arXiv:2410.21676) found that the critical batch grows with the data."
    )
    return Figure("critical_vs_share", TITLE, drawing, rows, note, warnings)
