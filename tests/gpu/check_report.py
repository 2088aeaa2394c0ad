"""What a call of checks writes: lines, tables of rates, the files that come back, and what the next call reads of them."""
import json
import re
import tarfile
from pathlib import Path

import bounds
from check_speed import bound_of

TABLES = "tables.tar.gz"
KEPT_KEYS = ("part", "name", "status", "usable", "rates", "why")  # of an earlier call's results


def line_of(result):
    """Returns one check's line of the table, followed by its output where that matters."""
    tests = ", ".join(f"{n} {kind}" for kind, n in result.get("tests", {}).items() if n)
    off = ", ".join(result.get("switched_off", []))
    more = "; ".join(filter(None, [tests, result.get("why", ""), *result.get("notes", []), f"without {off}" if off else ""]))
    line = f"{result['status']:<12} {result['seconds']:6.1f} of {result['limit_seconds']:3d} s  {result['part']}: {result['name']}"
    return line + (f"  ({more})" if more else "")


def shown_share(rate, bound):
    return f"{rate['rate'] / bound:.0%}" if rate and rate["rate"] and bound else "-"


def rate_lines(results, run):
    """Lists the rates of both sides next to each other, each with its share of the bound. What loses the most
    milliseconds in a step comes first. For a side that failed it gives the reason."""
    rates = {}
    for rate in (r for result in results for r in result.get("rates", [])):
        rates.setdefault((rate["model"], rate["batch"], rate["precision"], rate["unit"]), {})[rate["side"] + rate["input"]] = rate
    rows = []
    for (model, batch, precision, unit), sides in rates.items():
        raw, jpeg = sides.get("ringtrainraw") or sides.get("ringtrain"), sides.get("ringtrainjpeg")
        peer = sides.get("pytorchraw") or sides.get("pytorch")
        bound, target, units = bound_of(raw or jpeg or peer, run)
        shown = [f"{r['rate']:,.0f}" if r and r["rate"] else r["why"] if r else "-" for r in (raw, jpeg, peer)]
        ratio = f"{raw['rate'] / peer['rate']:.2f}" if raw and peer and raw["rate"] and peer["rate"] else "-"
        mine = next((r for r in (raw, jpeg, peer) if r and r["rate"]), None)
        lost = bounds.lost_milliseconds(units, mine["rate"], bound) if mine and bound else None
        rows.append((-1 if lost is None else lost,
                     f"| {model} | {batch} | {precision} | {shown[0]} | {shown_share(raw, bound)} | {shown[1]} | {shown_share(jpeg, bound)} | {shown[2]} "
                     f"| {shown_share(peer, bound)} | {ratio} | {f'{lost:.1f}' if lost is not None else '-'} | {f'{bound:,.0f}' if bound else 'unknown'} "
                     f"| {f'{target:,.0f}' if target else '-'} | {unit} |"))
    if not rows:
        return []
    head = ["model", "batch", "precision", "ringtrain", "share", "JPEG input", "share", "PyTorch, CUDA graphs", "share", "ratio", "lost ms", "bound",
            "target", "unit"]
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *[line for _, line in sorted(rows, key=lambda row: -row[0])]]


def report_lines(head, results, run):
    lines = [f"# GPU checks, call {head['call']}", "", *[f"- {key}: {value}" for key, value in head.items() if key != "earlier"], ""]
    lines += ["```", *[line_of(result) for result in results], "```", ""]
    rates = rate_lines(results, run)
    lines += [*rates, ""] if rates else []
    for result in results:
        lines += [f"## {result['part']}: {result['name']}", "", *result["tables"], ""] if result.get("tables") else []
    return lines


def replace(path, text):
    """Replaces a file at once, so that it is complete at any time."""
    new = path.with_name(path.name + ".tmp")
    new.write_text(text)
    new.replace(path)


def write_report(head, results, run):
    """Writes check-N.json, check-N.md and tables.tar.gz. They are complete after every check."""
    head = {**head, "switched_off": run.switched_off}
    done = {result["name"] for result in results}
    earlier = [{key: result[key] for key in KEPT_KEYS if key in result} for result in run.before if result["name"] not in done]
    replace(run.out / f"check-{head['call']}.json", json.dumps({**head, "checks": results, "earlier": earlier}, indent=1) + "\n")
    replace(run.out / f"check-{head['call']}.md", "\n".join(report_lines(head, results, run)) + "\n")
    pack_tables(run)


def pack_tables(run):
    new = run.out / (TABLES + ".tmp")
    with tarfile.open(new, "w:gz", compresslevel=6) as archive:
        for path in sorted(run.tables.iterdir()):
            archive.add(path, path.name)
    new.replace(run.out / TABLES)


def take_tables(source, run):
    """Takes the tables of an earlier call, so that the new ones come back together with them."""
    archive = Path(source) / TABLES
    if not archive.exists():
        return
    with tarfile.open(archive) as tables:
        for member in tables:
            if member.isfile() and re.fullmatch(r"[\w.-]+", member.name) and member.name not in (".", ".."):
                (run.tables / member.name).write_bytes(tables.extractfile(member).read())


def remove_old(tables, checks):
    """Removes what an earlier run of these checks has left in the tables that checks add to. A row of the table of
    operations begins with an operation's kind and precision; one of the table of kernels, with a precision."""
    names = {check.name for check in checks}
    if "gate" in names:
        (tables / "device.json").unlink(missing_ok=True)
    for name, precision in (("operations", lambda row: " ".join(row.split()[1:2])), ("kernels", lambda row: row.split(",")[0])):
        path = tables / f"{name}.csv"
        if path.exists():
            what = {"operations": "operations", "kernels": "kernel table"}[name]
            rows = path.read_text().splitlines(keepends=True)
            path.write_text("".join(row for row in rows if f"{what} {precision(row)}" not in names))


def read_results(path):
    """Returns (results, switched off) of an earlier call's check-N.json. Raises ValueError with advice."""
    try:
        report = json.loads(Path(path).read_text())
        results = report["checks"] + report.get("earlier", [])
        if any("name" not in result or "status" not in result for result in results):
            raise ValueError("a check has no name or status")
        return results, dict(report["switched_off"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be resumed ({type(error).__name__}: {error}): name the check-1.json that an earlier call has written") from error
