"""Writes the page: one HTML file that needs no other file. A folder next to it has every figure and table as files."""

import html
import re

from . import outputs, small_svg, style

STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; color: #111; background: #fff; margin: 0 auto; max-width: 80rem; padding: 0 1rem 3rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.35rem; border-top: 2px solid #111; padding-top: .6rem; margin-top: 2.5rem; } h3 { font-size: 1.08rem; }
p, li, dd { max-width: 50rem; overflow-wrap: break-word; } figure { margin: 1rem 0; } figure svg { width: 100%; max-width: 46rem; height: auto; }
figcaption, .note { color: #444; font-size: .92rem; } .figures { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.answer { border-top: 1px solid #bbb; padding: .4rem 0 .8rem; } .answer h3 { font-size: 1.2rem; margin: .4rem 0; } .verdict { font-weight: 600; margin: .3rem 0; }
.answer > * { min-width: 0; } .verdict::before { content: "Verdict: "; font-weight: 400; color: #444; }
@media (min-width: 60rem) { .answer { display: grid; grid-template-columns: 2fr 3fr; gap: 0 2rem; } }
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
    if len(table.rows) > OPEN_ROWS or table.is_folded:
        inner = f"<details><summary>{len(table.rows)} row{'' if len(table.rows) == 1 else 's'}</summary>{inner}</details>"
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return f'<h3 id="{table.name}">{html.escape(table.title)}</h3>{note}{inner}<p class="note"><a href="{folder}/{table.name}.csv">CSV</a></p>'


def warnings_html(figure):
    lines = "".join(f"<li>{html.escape(w)}</li>" for w in figure.warnings)
    return f'<ul class="warnings">{lines}</ul>' if lines else ""


def drawing_html(figure, folder, link, note=""):
    """Writes the files of a figure. Returns the <figure> with this note below it."""
    svg = inline(style.save(figure, folder), figure.name)
    links = " · ".join(f'<a href="{link}/{figure.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png", "csv"))
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(figure.title)}" ', 1)
    return f"<figure>{svg}<figcaption>{html.escape(note)} {links}</figcaption></figure>"


def figure_html(figure, folder, link):
    return (
        f'<div><h3 id="{figure.name}">{html.escape(figure.title)}</h3>{warnings_html(figure)}'
        f"{drawing_html(figure, folder, link, figure.note)}</div>"
    )


def item_html(item, folder, link):
    """Writes the files of a figure or a table. Returns its HTML, which is empty for a table without rows."""
    if isinstance(item, style.Figure):
        return figure_html(item, folder, link)
    if not item.rows:
        return ""
    style.write_csv(folder / f"{item.name}.csv", item.rows)
    return table_html(item, link)


def answer_html(answer, folder, link):
    """The sentence, its verdict and the folded notes stand beside the figure, or above it if the page is narrow."""
    said = f"<h3>{html.escape(answer.text)}.</h3>"
    said += f'<p class="verdict">{html.escape(answer.verdict)}</p>' if answer.verdict else ""
    said += "".join(f"<p>{html.escape(text)}</p>" for text in answer.more)
    shown = ""
    for item in answer.items:
        if isinstance(item, style.Figure):
            note = f'<p class="note">{html.escape(item.note)}</p>'
            said += f"{warnings_html(item)}<details><summary>How to read this figure</summary>{note}</details>"
            shown += f'<div id="{item.name}">{drawing_html(item, folder, link)}</div>'
        else:
            shown += f"<div>{item_html(item, folder, link)}</div>"
    return f'<article class="answer"><div>{said}</div>{shown}</article>'


def missing_html(missing):
    if not missing:
        return ""
    lines = "".join(f"<li>{html.escape(m.title)}: {html.escape(m.reason)}.</li>" for m in missing)
    return f'<p class="note">Left out, as there are no data:</p><ul class="note">{lines}</ul>'


def inline(svg, name):
    """Makes the SVG smaller, and adds the figure's name to its ids and styles: two figures on one page must not share
    them."""
    svg = small_svg.smaller(svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = re.sub(r"(?<=<style>)[^<]*", lambda found: re.sub(r"([^{}]+)\{", rf"#{name}-svg \1{{", found[0]), svg)
    return svg.replace("<svg ", f'<svg id="{name}-svg" ', 1)


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


def answers_html(section, folder, link, number):
    """The section's answers. A figure or table of an answer stands there alone."""
    if not section.answers:
        return ""
    told = "\n".join(answer_html(answer, folder, link) for answer in section.answers)
    return f'<h2 id="answers-{number}">{html.escape(section.title)}</h2><p>{html.escape(section.text)}</p>{told}'


def section_html(section, folder, link, number):
    """Everything that is in no answer, folded."""
    shown = [item for answer in section.answers for item in answer.items]
    rest = [i for i in section.items if not isinstance(i, style.Missing) and not any(i is other for other in shown)]
    figures = "".join(item_html(i, folder, link) for i in rest if isinstance(i, style.Figure))
    tables = "".join(item_html(i, folder, link) for i in rest if isinstance(i, style.Table))
    missing = missing_html([i for i in section.items if isinstance(i, style.Missing)])
    text = "" if section.answers else f"<p>{html.escape(section.text)}</p>"
    return (
        f'<details id="section-{number}"><summary>{html.escape(section.title)}: {kinds_of(rest)}</summary>{text}'
        f'<div class="figures">{figures}</div>{tables}{missing}</details>'
    )


def kinds_of(items):
    figures = sum(isinstance(i, style.Figure) for i in items)
    tables = sum(isinstance(i, style.Table) and bool(i.rows) for i in items)
    words = [f"{n} {w}{'' if n == 1 else 's'}" for n, w in ((figures, "figure"), (tables, "table")) if n]
    return " and ".join(words) or "what was left out"


def write(path, title, text, sections):
    """Writes the page to `path`. Figures and tables go to a folder with the same name without the suffix."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    link = html.escape(folder.name)
    told = "\n".join(answers_html(s, folder, link, number) for number, s in enumerate(sections, 1))
    rest = "\n".join(section_html(s, folder, link, number) for number, s in enumerate(sections, 1))
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>
{told}
<h2>Figures and tables</h2>
{contents_html(sections)}{words_html()}
{rest}
</body></html>
"""
    outputs.write(path, page.encode())
