"""Writes the page: one HTML file that needs no other file. A folder next to it has every figure and table as files."""

import html

from . import style

STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; color: #111; background: #fff; margin: 0 auto; max-width: 60rem; padding: 0 1rem 3rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.35rem; border-top: 2px solid #111; padding-top: .6rem; margin-top: 2.5rem; } h3 { font-size: 1.08rem; }
figure { margin: 1rem 0; } figure svg { width: 100%; max-width: 38rem; height: auto; } figcaption, .note { color: #444; font-size: .92rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid #ccc; vertical-align: top; } th { border-bottom: 2px solid #111; }
td:first-child { min-width: 6rem; } td.long { min-width: 18rem; } td.number { text-align: right; white-space: nowrap; }
ul.warnings { border-left: 4px solid #111; padding: .3rem 0 .3rem 1.6rem; background: #f3f3f3; font-size: .92rem; }
summary { cursor: pointer; padding: .3rem 0; } dt { font-weight: 600; } dd { margin: 0 0 .4rem 1.2rem; } a { color: #00528a; }
@media print { figure, tr { break-inside: avoid; } .scroll { overflow: visible; } table { font-size: .6rem; } }
"""
OPEN_ROWS = 25
WORDS = {
    "run, trial": "one training, from its start to its end; a study's runs are its trials",
    "global batch": "samples (pictures, names, pieces of text) whose gradients are averaged for one step, over all ranks",
    "step": "one update of the weights",
    "epoch": "one pass over the training data",
    "peak learning rate": "the rate after warm-up; a schedule may lower it later",
    "rank": "one process of the parallel program, with its GPU or its cores",
    "seed": "what the random numbers follow from; runs that differ in it alone show how much is chance",
    "family": "runs that differ in batch, learning rate and seed alone; a line of a figure",
    "loss, nats": "minus the natural logarithm of the probability that the model gave to the right answer, on average",
    "noise scale": "how much the gradients of single samples differ, over their mean: about the batch up to which larger batches pay",
    "B_crit": "the critical batch: twice the fewest steps and twice the fewest samples lead to the target there",
    "perfect scaling": "twice the batch takes half the steps, so as many samples",
    "efficiency": "samples per second and rank, over those of the smallest number of ranks",
    "exposed communication": "the part of a step in which ranks wait for each other's gradients and compute nothing",
    "node-hours": "hours of the run times the nodes (machines) that it held",
}


def cell_text(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10000 else str(value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def cell_html(value):
    text = html.escape(cell_text(value))
    if isinstance(value, (int, float)):
        return f'<td class="number">{text}</td>'
    return f'<td class="long">{text}</td>' if len(text) > 60 else f"<td>{text}</td>"


def table_html(table, folder):
    columns = list(
        dict.fromkeys(key for row in table.rows for key in row if any(r.get(key) not in (None, "") for r in table.rows))
    )
    head = "".join(f"<th>{html.escape(c.replace('_', ' '))}</th>" for c in columns)
    body = "".join("<tr>" + "".join(cell_html(row.get(c)) for c in columns) + "</tr>\n" for row in table.rows)
    inner = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
    if len(table.rows) > OPEN_ROWS:
        inner = f"<details><summary>{len(table.rows)} rows</summary>{inner}</details>"
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return f'<h3 id="{table.name}">{html.escape(table.title)}</h3>{note}{inner}<p class="note"><a href="{folder}/{table.name}.csv">CSV</a></p>'


def figure_html(figure, svg, folder):
    links = " · ".join(f'<a href="{folder}/{figure.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png", "csv"))
    warnings = "".join(f"<li>{html.escape(w)}</li>" for w in figure.warnings)
    warnings = f'<ul class="warnings">{warnings}</ul>' if warnings else ""
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(figure.title)}" ', 1)
    return (
        f'<h3 id="{figure.name}">{html.escape(figure.title)}</h3>{warnings}<figure>{svg}'
        f"<figcaption>{html.escape(figure.note)} {links}</figcaption></figure>"
    )


def missing_html(missing):
    if not missing:
        return ""
    lines = "".join(f"<li>{html.escape(m.title)}: {html.escape(m.reason)}.</li>" for m in missing)
    return f'<p class="note">Left out, as there are no data:</p><ul class="note">{lines}</ul>'


def unique_ids(svg, name):
    """Adds the figure's name to all ids in the SVG, because two figures on one page must not share ids."""
    return (
        svg.replace('id="', f'id="{name}-')
        .replace('xlink:href="#', f'xlink:href="#{name}-')
        .replace("url(#", f"url(#{name}-")
    )


def contents_html(sections):
    """Returns a list of links to the sections and to their figures and tables."""
    lines = []
    for number, section in enumerate(sections, 1):
        own = [i for i in section.items if isinstance(i, style.Figure) or isinstance(i, style.Table) and i.rows]
        links = " · ".join(f'<a href="#{i.name}">{html.escape(i.title)}</a>' for i in own)
        lines.append(f'<li><a href="#section-{number}">{html.escape(section.title)}</a>: {links}</li>')
    return f"<details><summary>Contents</summary><ul>{''.join(lines)}</ul></details>"


def words_html():
    lines = "".join(f"<dt>{html.escape(word)}</dt><dd>{html.escape(what)}</dd>" for word, what in WORDS.items())
    return f"<details><summary>Words</summary><dl>{lines}</dl></details>"


def section_html(section, folder, link, number):
    """Writes the files of a section's figures and tables. Returns the section's HTML."""
    parts = [f'<h2 id="section-{number}">{html.escape(section.title)}</h2><p>{html.escape(section.text)}</p>']
    for item in section.items:
        if isinstance(item, style.Figure):
            svg = style.save(item, folder)
            parts.append(figure_html(item, unique_ids(svg, item.name), link))
        elif isinstance(item, style.Table) and item.rows:
            style.write_csv(folder / f"{item.name}.csv", item.rows)
            parts.append(table_html(item, link))
    parts.append(missing_html([i for i in section.items if isinstance(i, style.Missing)]))
    return "\n".join(parts)


def write(path, title, text, sections):
    """Writes the page to `path`. Figures and tables go to a folder with the same name without the suffix."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    parts = [section_html(s, folder, html.escape(folder.name), number) for number, s in enumerate(sections, 1)]
    body = "\n".join(parts)
    path.write_text(
        f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>
{contents_html(sections)}{words_html()}
{body}
</body></html>
""",
        encoding="utf-8",
    )
