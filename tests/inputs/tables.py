"""Tables and lists of names, and running text, as people's programs write them, each turned wrong or odd in one way."""
import collections
import unicodedata

from made import EITHER, REFUSED, Draw, Made, Names

SYLLABLES = ["an", "bel", "co", "da", "el", "fi", "gus", "ha", "is", "jo", "ka", "lo", "mi", "ne", "ru", "sa", "to", "zo"]
LETTERS = {"plain": "aeiou", "accents": "é\u00fc\u00f1\u00f8\u00e5", "Cyrillic": "\u0430\u0438\u043e\u0443\u044b", "Korean": "\ud55c\uae00\uac1c"}
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
HEADERS = ["name", "Name", " NAME ", "pet name", "Animal's Name"]


class Table:
    """Names with other columns, and the way in which they are written."""

    def __init__(self, folder, draw, form):
        self.folder, self.draw, self.form = folder, draw, form
        letters = LETTERS["plain"] * 3 + LETTERS[draw.take(LETTERS)]
        self.accents = any(ord(c) > 127 for c in letters)
        names = ["".join(draw.choice([draw.choice(SYLLABLES), draw.choice(letters)]) for _ in range(draw.randint(1, 4))) for _ in range(draw.randint(12, 40))]
        self.names = [draw.choice([name, name.title(), name.upper()]) for name in names for _ in range(draw.choice([1, 1, 1, 3]))]
        draw.shuffle(self.names)
        self.separator = SEPARATORS.get(form.split(",")[0], "")
        self.newline = draw.choice(["\n", "\n", "\r\n", "\r"])
        self.mark = draw.choice(["", "", "\ufeff"])
        self.header = draw.choice(HEADERS)
        self.columns, self.place = draw.randint(2, 4), 0
        self.place = draw.randrange(self.columns)
        self.quotes = draw.random() < 0.4
        self.last_newline = draw.random() < 0.8
        self.before = ""  # lines before the header
        self.options = []
        ending = {"comma": "csv", "semicolon": "csv", "tab": "tsv", "pipe": "psv"}.get(form.split(",")[0], "txt")
        self.path = folder / f"{draw.choice(['names', 'pets 2024', 'Tiere-ü'])}.{draw.choice([ending, ending, ending.upper()])}"

    def quoted(self, field):
        if self.quotes or (self.separator and self.separator in field):
            return '"' + field.replace('"', '""') + '"'
        return field

    def record(self, name, others=None):
        others = others or [str(self.draw.randint(1, 99)) for _ in range(self.columns - 1)]
        fields = others[:self.place] + [name] + others[self.place:]
        return self.separator.join(self.quoted(field) for field in fields)

    def lines(self):
        if not self.separator:
            return list(self.names)
        titles = [f"column {i}" for i in range(self.columns - 1)]
        return [self.record(self.header, titles)] + [self.record(name) for name in self.names]

    def write(self, lines=None, encoding="utf-8", raw=None):
        lines = self.lines() if lines is None else lines
        content = self.mark + self.before + self.newline.join(lines) + (self.newline if self.last_newline else "")
        self.path.write_bytes(content.encode(encoding, "replace") if raw is None else raw)

    def command(self, *more):
        return ["names", str(self.path), "--alphabet", "auto", *self.options, *more]

    def first(self):
        return 1 if self.separator else 0  # the line of the first name

    def kept(self, names=None):
        names = self.names if names is None else names
        return Names(dict(collections.Counter(unicodedata.normalize("NFC", name).lower() for name in names)))

    def right(self, names=None, dropped=0, notes=(), *more):
        names = self.names if names is None else names
        return Made(self.command(*more), wanted=self.kept(names), found=len(names) + dropped, notes=list(notes))


FORMS = ["comma", "semicolon", "tab", "pipe", "lines"]


def as_it_is(t):
    t.write()
    return t.right()


def a_column_by_number(t):
    if not t.separator:
        return as_it_is(t)
    t.header = "Tier"
    t.write()
    return t.right(None, 0, [], "--column", str(t.place + 1))


def without_a_header(t):
    if not t.separator:
        return as_it_is(t)
    lines = t.lines()[1:]
    t.write(lines)
    if t.draw.random() < 0.5:
        return Made(t.command(), REFUSED, says="--no-header")
    return t.right(None, 0, [], "--no-header", "--column", str(t.place + 1))


def blank_lines(t):
    lines = t.lines()
    added = t.draw.randint(1, 3)
    for _ in range(added):
        lines.insert(t.draw.randint(t.first(), len(lines) - 1), t.draw.choice(["", "", "  "]) if not t.separator or t.columns > 1 else "")
    t.write(lines)
    return t.right(None, added, [rf"{added} (blank|empty)"])


def comments(t):
    lines = t.lines()
    lines.insert(t.draw.randint(t.first(), len(lines)), "# a remark")
    t.write(lines)
    return t.right(None, 1, ["1 comment"])


def too_many_fields(t):
    if not t.separator:
        return as_it_is(t)
    lines = t.lines()
    lines.insert(t.draw.randint(1, len(lines)), t.record("Toomany") + t.separator + "more" + t.separator + "fields")
    t.write(lines)
    return t.right(None, 1, ["1 record with more fields"])


def too_few_fields(t):
    if not t.separator:
        return as_it_is(t)
    lines, at = t.lines(), t.draw.randint(1, len(t.names))
    t.quotes = False
    lines.insert(at, t.separator.join(["x"] * t.place))  # the record ends before the name
    t.write(lines)
    return t.right(None, 1, ["1 (record without that column|blank line|empty)"])


def a_stray_quote(t):
    """An open quotation mark is an error in CSV, and a letter in tables with tabs and in lists."""
    t.quotes = False
    at = t.draw.randrange(len(t.names))
    t.names[at] = '"' + t.names[at]
    t.write()
    if t.separator in ("", "\t"):
        return t.right()
    return Made(t.command(), REFUSED, says=r"line \d+: .*quot")


def a_quote_within(t):
    t.quotes = False
    t.names[t.draw.randrange(len(t.names))] = 'O"Neil'
    t.write()
    return t.right()


def quoted_separators(t):
    if not t.separator:
        return as_it_is(t)
    if t.draw.random() < 0.5:
        t.names[t.draw.randrange(len(t.names))] = f"Anna{t.separator if t.separator != chr(9) else ' '}Lea"
    lines, at = t.lines(), t.draw.randint(1, len(t.names))
    others = [f'a{t.separator}b', f'two{t.newline}lines', 'a "word"'][:t.columns - 1]
    t.quotes = True
    lines.insert(at, t.record("Quoted", others))
    t.names.insert(at, "Quoted")
    t.write(lines)
    return t.right()


def mixed_line_ends(t):
    lines, out = t.lines(), ""
    for line in lines:
        out += line + t.draw.choice(["\n", "\r\n", "\r"])
    t.write(raw=(t.mark + out).encode())
    return t.right()


def excels_line(t):
    if not t.separator:
        return as_it_is(t)
    word = t.separator if t.separator != "\t" else t.draw.choice(["\t", "\\t"])
    t.before = f"{t.draw.choice(['sep', 'SEP'])}={word}{t.newline}"
    t.write()
    return t.right()


def invisible_symbols(t):
    at = t.draw.sample(range(len(t.names)), min(3, len(t.names)))
    clean = list(t.names)
    for i in at:
        name = t.names[i]
        cut = t.draw.randint(0, len(name))
        symbol = t.draw.choice(["\u200b", "\u00ad", "\ufeff", "\u200e", "\u2060"])
        t.names[i] = name[:cut] + symbol + name[cut:]
    t.write()
    return t.right(clean, 0, ["invisible"])


def other_forms_of_letters(t):
    clean = list(t.names)
    t.names = [unicodedata.normalize("NFD", name) for name in t.names]
    t.write()
    return t.right(clean)


def odd_spaces(t):
    clean = [*t.names, "Anna Lea", "Anna Lea", "Max"]
    t.names = [*t.names, "Anna\u00a0Lea", "Anna\u2009Lea", " \u3000Max  "]
    t.write()
    return t.right(clean)


DROPPED = {"a zero byte": "Be\0lla", "a control character": "Be\x07lla", "an unknown symbol": "Be\ufffdlla", "a long name": "Bella" * 30,
           "an escape": "\x1b[31mBella"}


def names_that_are_dropped(t):
    kind = t.draw.take(DROPPED)
    kept = list(t.names)
    t.names.insert(t.draw.randrange(len(t.names)), DROPPED[kind])
    t.write()
    return t.right(kept, 1, ["dropped +1 "]), kind


ENCODINGS = {"latin-1": "iconv|not valid UTF-8", "cp1252": "iconv|not valid UTF-8", "utf-16": "UTF-16", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16", "utf-32": "UTF-32",
             "utf-32-le": "UTF-32", "utf-32-be": "UTF-32"}


def other_encodings(t):
    kind = t.draw.take(ENCODINGS)
    t.mark = ""
    t.names = [name.replace("a", "\u00e9", 1) + "\u00fc" for name in t.names]
    if kind in ("latin-1", "cp1252"):
        t.names = ["".join(c for c in name if ord(c) < 256) for name in t.names]
    t.write(encoding=kind)
    return Made(t.command(), REFUSED, says=ENCODINGS[kind]), kind


NO_TEXT = {"gzip": b"\x1f\x8b\x08" + bytes(90), "Excel": b"PK\x03\x04" + bytes(90), "PDF": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + bytes(90), "empty": b"",
           "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(90), "old Excel": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "a mark": b"\xef\xbb\xbf", "blanks": b"  \n\n  \n",
           "a picture": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(90), "xz": b"\xfd7zXZ\0" + bytes(90), "zeros": bytes(600), "SQLite": b"SQLite format 3\0" + bytes(200)}


def no_text(t):
    kind = t.draw.take([*NO_TEXT, "a folder", "nothing"])
    if kind == "a folder":
        t.path.mkdir()
    elif kind != "nothing":
        t.path.write_bytes(NO_TEXT[kind])
    return Made(t.command(), REFUSED, says="."), kind


def a_header_alone(t):
    t.write(t.lines()[:t.first()])
    return Made(t.command(), REFUSED, says="no names|is empty|no record|only (the|a) header")


def equal_headers(t):
    if not t.separator or t.columns < 2:
        return as_it_is(t)
    lines = t.lines()
    lines[0] = t.record(t.header, [t.header] + ["x"] * (t.columns - 2))
    t.write(lines)
    return Made(t.command(), REFUSED, says="more than one column")


def cut_off(t):
    """The table ends anywhere, even within a symbol. The last name may be cut."""
    t.quotes, t.mark = False, ""
    t.write()
    content = t.path.read_bytes()
    t.path.write_bytes(content[:t.draw.randrange(len(content) // 2, len(content))])
    return Made(t.command(), EITHER)


def flipped_bytes(t):
    t.write()
    content = bytearray(t.path.read_bytes())
    for _ in range(t.draw.choice([1, 3, 20])):
        content[t.draw.randrange(len(content))] = t.draw.randrange(256)
    t.path.write_bytes(content)
    return Made(t.command(), EITHER)


def a_sign_at_the_end(t):
    t.last_newline = True
    t.write()
    t.path.write_bytes(t.path.read_bytes() + b"\x1a")
    return t.right()


def a_long_field(t):
    if not t.separator:
        return as_it_is(t)
    lines = t.lines()
    lines.append(t.record("Last", ["x" * t.draw.choice([70_000, 300_000])] + ["1"] * (t.columns - 2)))
    t.names.append("Last")
    t.write(lines)
    return t.right()


CHANGES = {f.__name__.replace("_", " "): f for f in (
    as_it_is, a_column_by_number, without_a_header, blank_lines, comments, too_many_fields, too_few_fields, a_stray_quote, a_quote_within,
    quoted_separators, mixed_line_ends, excels_line, invisible_symbols, other_forms_of_letters, odd_spaces, names_that_are_dropped, other_encodings,
    no_text, a_header_alone, equal_headers, cut_off, flipped_bytes, a_sign_at_the_end, a_long_field)}
WEIGHTS = {"as it is": 4, "names that are dropped": 2, "other encodings": 2, "no text": 2}


def draw(generator: Draw):
    return generator.choice(FORMS), generator.choice([name for name in CHANGES for _ in range(WEIGHTS.get(name, 1))])


def make(folder, generator: Draw, form, change):
    made = CHANGES[change](Table(folder, generator, form))
    return made if isinstance(made, tuple) else (made, "")
