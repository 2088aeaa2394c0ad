"""Running text of many forms, each turned wrong or odd in one way."""
import unicodedata

from made import EITHER, REFUSED, Draw, Made, Text

FORMS = WORDS = {"English": "to be or not that is the question", "French": "l'été où naïve garçon çà et là", "Russian": "\u0431\u044b\u0442\u044c \u0438\u043b\u0438 \u043d\u0435 \u0432\u043e\u0442",
         "Korean": "\uc8fd\ub290\ub0d0 \uc0ac\ub290\ub0d0 \uadf8\uac83\uc774 \ubb38\uc81c", "Hindi": "\u0939\u094b\u0928\u093e \u092f\u093e \u0928\u093e", "code": "for (int i = 0; i < n; ++i) {\t}"}


def text_of(draw, form):
    words = WORDS[form].split(" ")
    return "".join(" ".join(draw.choice(words) for _ in range(draw.randint(1, 9))) + "\n" for _ in range(draw.randint(20, 80)))


def made(path, content, wanted, notes=(), *more):
    path.write_bytes(content)
    return Made(["text", str(path), *more], wanted=Text(wanted), found=len(wanted), notes=list(notes))


def refused(path, content, says):
    path.write_bytes(content)
    return Made(["text", str(path)], REFUSED, says=says)


def as_it_is(path, text, draw):
    return made(path, text.encode(), unicodedata.normalize("NFC", text), (), "--validation", draw.choice(["0", "0.1", "0.5"]), "--shards", draw.choice("123"))


def bytes_alone(path, text, draw):
    content = text.encode(draw.choice(["utf-8", "utf-16", "latin-1"]), "replace")
    return made(path, content, content.decode("latin-1"), (), "--alphabet", "bytes")


def line_ends(path, text, draw):
    end = draw.choice(["\r\n", "\r"])
    return made(path, text.replace("\n", end).encode(), unicodedata.normalize("NFC", text), [r"\d+ line ends"])


def composed(path, text, draw):
    return made(path, unicodedata.normalize("NFD", text).encode(), unicodedata.normalize("NFC", text))


def marks(path, text, draw):
    cut = draw.randrange(len(text))
    return made(path, ("\ufeff" + text[:cut] + draw.choice(["", "\ufeff"]) + text[cut:] + draw.choice(["", "\x1a"])).encode(),
                unicodedata.normalize("NFC", text), ["byte-order mark"])


def invisible(path, text, draw):
    cut = text.index(" ")
    text = text[:cut] + draw.choice(["\u00ad", "\u200b"]) + text[cut:]
    return made(path, text.encode(), unicodedata.normalize("NFC", text), ["invisible|U\\+"])


def encodings(path, text, draw):
    kind = draw.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32", "latin-1"])
    return refused(path, ("\u00e9t\u00e9 " + text).encode(kind, "replace"), "iconv|UTF-16|UTF-32")


def zero_bytes(path, text, draw):
    content = text.encode()
    cut = draw.randrange(len(content))
    while cut < len(content) and content[cut] & 0xC0 == 0x80:
        cut += 1
    return refused(path, content[:cut] + bytes(draw.choice([1, 2, 700])) + content[cut:], "zero byte|UTF-16|UTF-32")


def not_utf8(path, text, draw):
    content = text.encode()
    return refused(path, content + draw.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf", b"\xe2\x82"]), "not valid UTF-8|iconv")


def many_symbols(path, text, draw):
    return refused(path, (text + "".join(chr(0x4E00 + i) for i in range(300))).encode(), "254|symbols")


def little(path, text, draw):
    kind = draw.choice(["", "\n", "\ufeff", "a", "ab"])
    if len(kind) == 0 or kind == "\ufeff":
        return refused(path, kind.encode(), "is empty|has 0 character|no symbols")
    path.write_bytes(kind.encode())
    return Made(["text", str(path)], EITHER, wanted=Text(kind))


def cut_off(path, text, draw):
    content = text.encode()
    path.write_bytes(content[:draw.randrange(1, len(content))])
    return Made(["text", str(path)], EITHER)


def flipped_bytes(path, text, draw):
    content = bytearray(text.encode())
    for _ in range(draw.choice([1, 5])):
        content[draw.randrange(len(content))] = draw.randrange(256)
    path.write_bytes(content)
    return Made(["text", str(path)], EITHER)


CHANGES = {f.__name__.replace("_", " "): f for f in (
    as_it_is, bytes_alone, line_ends, composed, marks, invisible, encodings, zero_bytes, not_utf8, many_symbols, little, cut_off, flipped_bytes)}


def draw(generator: Draw):
    return generator.take(WORDS), generator.choice(["as it is", *CHANGES])


def make(folder, generator: Draw, form, change):
    path = folder / generator.choice(["book.txt", "my text", "a.md"])
    return CHANGES[change](path, text_of(generator, form), generator), ""
