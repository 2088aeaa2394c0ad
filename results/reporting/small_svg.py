"""Makes one of matplotlib's SVG files several times smaller, with the same picture.

Letters drawn as shapes become text again, with their widths. Lines lose the points that lie near the line between
their neighbours. Coordinates are written relative to the point before, with few digits. Hatches of dots become their
smallest tile. Equal styles are written once.
"""

import itertools
import re
from collections import Counter
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

import numpy
from matplotlib import font_manager, ft2font

NAMESPACE = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
FONT = "font-family:'DejaVu Sans',Verdana,sans-serif"  # Verdana's letters have nearly the same widths
# A line may be FINE off, in points (1/72 inch). If that leaves more than LINE_POINTS points, it may be COARSE off.
FINE, COARSE, LINE_POINTS = 0.1, 2.5, 70
PAGE_DIGITS, SHAPE_DIGITS = 1, 2  # digits after the point, on the page, and in markers and hatches
STRAIGHT = r"\s*M\s+\S+\s+\S+\s+L\s+\S+\s+\S+\s*"  # a path of one straight line
COUNTS = {"m": 2, "l": 2, "q": 4, "c": 6, "z": 0}  # numbers after each letter of a path


def number(value, digits):
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "0", "") else re.sub(r"^(-?)0\.", r"\1.", text)


def joined(texts):
    """Writes numbers one after another. A minus sign separates them, too, and so does a point after another point."""
    text = re.sub(r" -", "-", " ".join(texts))
    return re.sub(r"(\.\d+) (?=\.)", r"\1", text)


def parts_of(path):
    """Returns the parts of a path as lists of (letter, numbers). Each part begins with M."""
    parts = []
    for letter, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = [float(n) for n in text.split()]
        if letter.lower() not in COUNTS or len(numbers) != COUNTS[letter.lower()] or letter not in "MLQCz":
            raise ValueError(f"a path with {letter}{text}: not as matplotlib writes it")
        if letter == "M":
            parts.append([])
        parts[-1].append((letter, numbers))
    return parts


def kept_points(points, tolerance):
    """Says which points of a line are needed (Douglas and Peucker 1973)."""
    keep = numpy.zeros(len(points), bool)
    keep[[0, -1]] = True
    waiting = [(0, len(points) - 1)]
    while waiting:
        first, last = waiting.pop()
        if last - first < 2:
            continue
        start, way = points[first], points[last] - points[first]
        inner = points[first + 1 : last] - start
        length = way @ way
        along = numpy.clip(inner @ way / length, 0, 1) if length > 0 else numpy.zeros(len(inner))
        away = numpy.hypot(*(inner - along[:, None] * way).T)
        if away.max() > tolerance:
            middle = first + 1 + int(away.argmax())
            keep[middle] = True
            waiting += [(first, middle), (middle, last)]
    return keep


def simplified(part):
    count = sum(letter in "ML" for letter, _ in part)
    if count < 4 or any(letter in "QC" for letter, _ in part):
        return part
    points = numpy.array([numbers for _, numbers in part[:count]])
    tolerance = FINE
    keep = kept_points(points, tolerance)
    while keep.sum() > LINE_POINTS and tolerance < COARSE:
        tolerance = min(1.5 * tolerance, COARSE)
        keep = kept_points(points, tolerance)
    points = points[keep]
    return [("L" if i else "M", list(point)) for i, point in enumerate(points)] + part[count:]


def short_path(parts, digits):
    """Writes relative coordinates. Every point is rounded by itself, so that errors do not add up."""
    unit, text, before = 10**digits, "", ""
    at = numpy.zeros(2, int)  # where the pen is, in units
    for part in parts:
        start = None
        for letter, numbers in part:
            points = numpy.rint(numpy.array(numbers).reshape(-1, 2) * unit).astype(int)
            if letter == "M":
                start = points[0]
            moves = joined(number(v, digits) for v in ((points - at) / unit).reshape(-1))
            # Numbers without a letter of their own go on with the letter before. After m, this means a line.
            goes_on = letter == before or (before == "M" and letter == "L")
            text += (" " if goes_on and not moves.startswith("-") else "") if goes_on else letter.lower()
            text += moves
            at = points[-1] if len(points) else start
            before = letter
    return text


def tile_of_dots(parts, size):
    """Returns (size, parts) of the smallest tile of a hatch of equal closed shapes that fills a tile of `size`."""
    starts = numpy.array([part[0][1] for part in parts])
    shapes = [numpy.array([n for _, own in part for n in own]).reshape(-1, 2) - part[0][1] for part in parts]
    equal = all(shape.shape == shapes[0].shape and numpy.abs(shape - shapes[0]).max() < 0.03 for shape in shapes)
    if len(parts) < 50 or not equal or any(part[-1][0] != "z" for part in parts):
        return size, parts
    corner = starts.min(axis=0)  # where the dot in the corner starts
    places = {tuple(place): part for place, part in zip(numpy.round(starts - corner, 1).tolist(), parts)}
    for small in (n for n in range(2, size) if size % n == 0):
        kept = {(x, y): part for (x, y), part in places.items() if x <= small and y <= small}
        steps = range(0, size, small)
        filled = {(round(x + i, 1), round(y + j, 1)) for x, y in kept for i in steps for j in steps}
        if filled == set(places):
            return small, list(kept.values())
    return size, parts


def advances():
    face = ft2font.FT2Font(font_manager.findfont("DejaVu Sans"))
    face.set_size(100, 72)
    return lambda letter: face.load_char(ord(letter)).linearHoriAdvance / 65536


def placed(text):
    """Returns (x, y, scale) of `translate(x y) scale(s)`."""
    x, y = re.search(r"translate\((\S+) (\S+?)\)", text).groups() if "translate" in text else (0, 0)
    scale = re.search(r"scale\((\S+?)[ )]", text)
    return float(x), float(y), float(scale[1]) if scale else 1.0


def letters_of(group):
    """Returns (y, scale, x, letter) of each letter of a group, in hundredths of the letters' size."""
    uses = [child for child in group if child.tag == NAMESPACE + "use"]
    names = [re.fullmatch(r"#DejaVuSans-([0-9a-f]+)", use.get(LINK)) for use in uses]
    if group.tag != NAMESPACE + "g" or not group.get("transform") or not all(names):
        return []
    letters = []
    for use, name in zip(uses, names):
        x, y, scale = placed(use.get("transform", ""))
        letters.append((y, scale, x + float(use.get("x", 0)), chr(int(name[1], 16))))
    return letters


def are_letters(letters, advance):
    """Says whether the names are the letters' codes, not numbers of another kind: each letter has its width. Kerning
    moves a letter by less than 20."""
    pairs = [(a, b) for a, b in zip(letters, letters[1:]) if a[:2] == b[:2]]
    return all(abs(b[2] - a[2] - a[1] * advance(a[3])) < 20 for a, b in pairs)


def text_of(group, letters, advance):
    """Returns the text elements that show the letters of the group."""
    left, top, size = placed(group.get("transform"))
    turned = re.search(r"rotate\((\S+?)\)", group.get("transform"))
    made = []
    for (y, scale), own in itertools.groupby(letters, lambda letter: letter[:2]):
        own = list(own)
        width = own[-1][2] - own[0][2] + scale * advance(own[-1][3])
        x, y = own[0][2] * size, -y * size
        style = ";".join(filter(None, [group.get("style"), f"font-size:{number(100 * size * scale, 2)}px"]))
        look = {"style": style, "textLength": number(width * size, 1)}
        if turned:
            look["transform"] = f"translate({number(left, 1)} {number(top, 1)})rotate({number(float(turned[1]), 1)})"
        else:
            x, y = x + left, y + top
        look |= {key: number(value, 1) for key, value in (("x", x), ("y", y)) if number(value, 1) != "0"}
        element = ElementTree.Element(NAMESPACE + "text", look)
        element.text = "".join(letter for _, _, _, letter in own)
        made.append(element)
    return made


def short_style(style):
    """`stroke: #000000; opacity: 0.3` becomes `stroke:#000;opacity:.3`."""
    style = re.sub(r"\s*([:;,])\s*", r"\1", style.strip().rstrip(";"))
    style = re.sub(r"#(\w)\1(\w)\2(\w)\3\b", r"#\1\2\3", style)
    return re.sub(r"(?<![\w.#])0\.(\d)", r".\1", style)


def share_styles(root):
    """Moves the clip paths into the styles, and a style that all uses of a marker have into the marker."""
    for element in root.iter():
        if element.get("style") and element.get("clip-path"):
            element.set("style", f"{element.get('style')}; clip-path: {element.attrib.pop('clip-path')}")
    uses = {}
    for use in root.iter(NAMESPACE + "use"):
        uses.setdefault(use.get(LINK), []).append(use)
    for marker in root.iter(NAMESPACE + "path"):
        own = uses.get(f"#{marker.get('id')}", [])
        if len({use.get("style") for use in own}) == 1 and "clip-path" not in (own[0].get("style") or ""):
            # The marker's own properties come last, because they win over those of its uses.
            styles = [own[0].attrib.pop("style", ""), marker.get("style", "")]
            properties = dict(re.findall(r"([\w-]+)\s*:\s*([^;]+)", ";".join(styles)))
            marker.set("style", ";".join(f"{key}:{value}" for key, value in properties.items()))
            for use in own:
                use.attrib.pop("style", None)


def draw_ticks(root):
    """Draws each use of a marker that is one straight line as a path, and joins neighbouring lines of equal style."""
    markers = {f"#{path.get('id')}": path for path in root.iter(NAMESPACE + "path") if path.get("id")}
    straight = {link: path for link, path in markers.items() if re.fullmatch(STRAIGHT, path.get("d"))}
    for element in list(root.iter()):
        for use in [child for child in element if child.tag == NAMESPACE + "use" and child.get(LINK) in straight]:
            marker, place = straight[use.get(LINK)], list(element).index(use)
            if use.get("style") is None and marker.get("style"):
                ends = [float(n) for n in re.findall(r"-?[\d.]+", marker.get("d"))]
                x, y = float(use.get("x", 0)), float(use.get("y", 0))
                line = f"M {x + ends[0]} {y + ends[1]} L {x + ends[2]} {y + ends[3]}"
                element[place] = ElementTree.Element(NAMESPACE + "path", {"d": line, "style": marker.get("style")})
    used = {use.get(LINK) for use in root.iter(NAMESPACE + "use")}
    for element in root.iter(NAMESPACE + "defs"):
        for path in [child for child in element if f"#{child.get('id')}" in set(straight) - used]:
            element.remove(path)
    join_lines(root)


def join_lines(root):
    """Makes one path of straight lines of equal style, unless a filled shape or a marker comes between them."""
    first = {}  # by style
    for parent in list(root.iter()):
        if parent.tag in (NAMESPACE + "defs", NAMESPACE + "pattern"):
            continue
        for child in list(parent):
            style = child.get("style", "")
            if child.tag == NAMESPACE + "path" and style and re.fullmatch(STRAIGHT, child.get("d", "")):
                if style in first:
                    first[style].set("d", f"{first[style].get('d')} {child.get('d')}")
                    parent.remove(child)
                else:
                    first[style] = child
            elif child.tag in (NAMESPACE + "path", NAMESPACE + "use") and "fill: none" not in style:
                first = {}


class Writer:
    def __init__(self, svg):
        self.advance = advances()
        self.names = (f"{a}{b}" for b in ("", *range(100)) for a in "abcdefghijklmnopqrstuvwxyz")
        self.root = ElementTree.fromstring(svg)
        if all(are_letters(letters_of(group), self.advance) for group in self.root.iter(NAMESPACE + "g")):
            self.in_text(self.root)
        share_styles(self.root)
        draw_ticks(self.root)
        texts = [value for element in self.root.iter() for value in element.attrib.values()]
        links = re.findall(r"url\(#([^)]+)\)", " ".join(texts))
        links += [element.get(LINK)[1:] for element in self.root.iter() if element.get(LINK)]
        self.ids = {name: next(self.names) for name in dict.fromkeys(links)}
        # In a page, the class of a figure needs the figure as its ancestor. The copy of a marker that <use> makes has no
        # such ancestor in some browsers, so the definitions keep their styles.
        defined = {e for defs in self.root.iter(NAMESPACE + "defs") for e in defs.iter()}
        shown = [e for e in self.root.iter() if e not in defined]
        styles = Counter(short_style(e.get("style")) for e in shown if e.get("style"))
        self.classes = {style: next(self.names) for style, count in styles.most_common() if count > 1}

    def in_text(self, element):
        """Replaces letters by text in all groups below."""
        for child in list(element):
            letters = letters_of(child)
            if letters:
                place = list(element).index(child)
                element[place : place + 1] = text_of(child, letters, self.advance)
            else:
                self.in_text(child)

    def rename(self, value):
        return re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{self.ids[found[1]]})", value)

    def attributes(self, element, in_defs):
        for key, value in element.attrib.items():
            if key == "style":
                style = short_style(value)
                if style in self.classes and not in_defs:
                    yield "class", self.classes[style]
                else:
                    yield "style", self.rename(style)
            elif key == "id":
                if value in self.ids:
                    yield key, self.ids[value]
            elif key == "d":
                parts = parts_of(value)
                if in_defs:
                    yield key, short_path(parts, SHAPE_DIGITS)
                else:
                    yield key, short_path(map(simplified, parts), PAGE_DIGITS)
            elif key == LINK:
                yield "href", "#" + self.ids[value[1:]]
            elif re.fullmatch(r"-?\d+\.\d+", value):
                yield key, number(float(value), PAGE_DIGITS)
            elif not (key in ("x", "y") and value == "0"):
                yield key, short_style(self.rename(value)) if key in ("fill", "stroke") else self.rename(value)

    def write(self, element, in_defs=False):
        tag = element.tag.removeprefix(NAMESPACE)
        if tag in ("metadata", "style"):
            return ""
        in_defs = in_defs or tag == "defs"
        if tag == "pattern":
            shrink_hatch(element)
        own = dict(self.attributes(element, in_defs))
        inner = escape(element.text.strip()) if element.text and element.text.strip() else ""
        inner += "".join(self.write(child, in_defs) for child in element)
        if tag in ("g", "defs") and not inner:
            return ""
        if tag == "g" and not own:
            return inner
        words = "".join(f" {key}={quoteattr(value)}" for key, value in own.items())
        return f"<{tag}{words}>{inner}</{tag}>" if inner else f"<{tag}{words}/>"

    def whole(self):
        inner = "".join(self.write(child) for child in self.root)
        styles = "".join(f".{name}{{{self.rename(style)}}}" for style, name in self.classes.items())
        size = "".join(f" {key}={quoteattr(self.root.get(key))}" for key in ("width", "height", "viewBox"))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg"{size}>'
            f"<style>*{{stroke-linejoin:round;stroke-linecap:butt}}text{{{FONT}}}{styles}</style>{inner}</svg>\n"
        )


def shrink_hatch(pattern):
    size = pattern.get("width")
    for path in pattern.findall(NAMESPACE + "path"):
        small, parts = tile_of_dots(parts_of(path.get("d")), int(size))
        if small < int(size):
            pattern.attrib |= {"width": str(small), "height": str(small)}
            items = [item for part in parts for item in part]
            path.set("d", " ".join(f"{letter} {' '.join(map(str, numbers))}" for letter, numbers in items))


def smaller(svg):
    """Returns the smaller text of one of matplotlib's SVGs."""
    return Writer(svg).whole()
