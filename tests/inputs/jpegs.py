"""JPEG files of many kinds and damaged ones. Each function returns (what becomes of it, bytes, pixels): `kept` as it is,
`encoded` again, `doubtful` (kept with a warning), `broken`, or `either` of these."""
import io
import struct

import numpy
from PIL import Image

from made import encoded, smooth


def segments(data):
    """Returns [(marker, offset of the marker, offset after its segment)] up to the scan."""
    found, at = [], 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        length = struct.unpack(">H", data[at + 2:at + 4])[0]
        found.append((data[at + 1], at, at + 2 + length))
        if data[at + 1] == 0xDA:
            break
        at += 2 + length
    return found


def scan_of(data):
    return segments(data)[-1][2]


def plain(draw, **options):
    return encoded(smooth(draw, draw.randint(16, 60), draw.randint(16, 60)), **options)


def saved(**options):
    return lambda draw: ("kept", plain(draw, **options), None)


def grey(draw):
    return "kept", encoded(smooth(draw, 20, 30, 1)), None


def cmyk(draw):
    pixels = smooth(draw, 24, 24)
    out = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(out, "JPEG", quality=95)
    return "encoded", out.getvalue(), numpy.asarray(Image.open(io.BytesIO(out.getvalue())).convert("RGB"))


def tiny(draw):
    return "kept", encoded(smooth(draw, draw.randint(1, 3), draw.randint(1, 3))), None


def long_one(draw):
    return "kept", encoded(smooth(draw, *draw.choice([(1, 900), (900, 1)]))), None


def with_exif(draw):
    exif = Image.Exif()
    exif[0x112] = draw.choice([0, 1, 3, 6, 8, 9, 65535])
    exif[0x10E] = "a cat"
    return "kept", plain(draw, exif=exif), None


def with_damaged_exif(draw):
    body = b"Exif\0\0" + draw.choice([b"II*\0\xff\xff\xff\x7f", b"MM\0*\0\0\0\x08\xff\xff", b"", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", b"XX"])
    data = plain(draw)
    return "kept", data[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(body)) + body + data[2:], None


def with_a_thumbnail(draw):
    body = b"Exif\0\0MM\0*\0\0\0\x08\0\0" + plain(draw)[:60000]
    data = plain(draw)
    return "kept", data[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(body)) + body + data[2:], None


def with_a_comment(draw):
    body = bytes(draw.randrange(256) for _ in range(draw.choice([0, 5, 60000])))
    data = plain(draw)
    return "kept", data[:2] + b"\xff\xfe" + struct.pack(">H", 2 + len(body)) + body + data[2:], None


def with_fill_bytes(draw):
    data = plain(draw)
    at = segments(data)[1][1]
    return "kept", data[:at] + b"\xff" * draw.randint(1, 5) + data[at:], None


def bytes_after_its_end(draw):
    return "kept", plain(draw) + draw.choice([b"\0", b"more", bytes(4000), plain(draw)]), None


def without_end(draw):
    """Only the mark of the end is missing."""
    return "either", plain(draw)[:-2], None


def cut_off(draw):
    data = plain(draw, quality=95)
    at = scan_of(data)
    return "broken", data[:draw.randrange(at + 4, max(at + 5, at + (len(data) - at) // 2))], None


def cut_off_in_its_header(draw):
    data = plain(draw)
    return "broken", data[:draw.randrange(2, scan_of(data) - 1)], None


def flipped(draw):
    data = bytearray(plain(draw, quality=90))
    for _ in range(draw.choice([1, 1, 5, 30])):
        data[draw.randrange(scan_of(data), len(data) - 2)] ^= 1 << draw.randrange(8)
    return "either", bytes(data), None


def flipped_in_its_header(draw):
    data = bytearray(plain(draw))
    data[draw.randrange(2, scan_of(data))] ^= 1 << draw.randrange(8)
    return "either", bytes(data), None


def zeros_within(draw):
    data = bytearray(encoded(numpy.random.default_rng(draw.randrange(999)).integers(0, 255, (64, 64, 3), dtype="u1"), quality=90))
    middle = (scan_of(data) + len(data)) // 2
    data[middle:middle + 100] = bytes(100)
    return "doubtful", bytes(data), None


def extraneous_bytes(draw):
    data = plain(draw)
    return "doubtful", data[:-2] + b"\x55" * draw.randint(20, 90) + data[-2:], None


def set_size(draw, height, width):
    data = bytearray(plain(draw))
    _, at, _ = next(s for s in segments(data) if s[0] in (0xC0, 0xC1, 0xC2))
    data[at + 5:at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def higher_than_its_data(draw):
    return "broken", set_size(draw, draw.choice([300, 2000]), 60), None


def huge(draw):
    return "broken", set_size(draw, 65500, 65500), None


def no_height(draw):
    return "broken", set_size(draw, 0, draw.choice([0, 20])), None


def without(marker):
    def make(draw):
        data = plain(draw)
        _, at, end = next(s for s in segments(data) if s[0] == marker)
        return "broken", data[:at] + data[end:], None
    return make


def unknown_kind(draw):
    """Lossless, arithmetic and other kinds of JPEG, which libjpeg cannot read or may read."""
    data = bytearray(plain(draw))
    _, at, _ = next(s for s in segments(data) if s[0] in (0xC0, 0xC1, 0xC2))
    data[at + 1] = draw.choice([0xC3, 0xC5, 0xC6, 0xC7, 0xCB])
    return "broken", bytes(data), None


def twelve_bits(draw):
    data = bytearray(plain(draw))
    _, at, _ = next(s for s in segments(data) if s[0] in (0xC0, 0xC1, 0xC2))
    data[at + 4] = draw.choice([12, 16, 0])
    return "broken", bytes(data), None


CHANGES = {
    "progressive": saved(progressive=True), "optimised": saved(optimize=True), "no subsampling": saved(subsampling=0), "4:2:2": saved(subsampling=1),
    "quality 1": saved(quality=1), "quality 100": saved(quality=100), "a profile": saved(icc_profile=bytes(300)), "300 dpi": saved(dpi=(300, 300)),
    "grey": grey, "cmyk": cmyk, "tiny": tiny, "long": long_one, "exif": with_exif, "damaged exif": with_damaged_exif, "a thumbnail": with_a_thumbnail,
    "a comment": with_a_comment, "fill bytes": with_fill_bytes, "bytes after its end": bytes_after_its_end, "without end": without_end, "cut off": cut_off,
    "cut off in its header": cut_off_in_its_header, "flipped": flipped, "flipped in its header": flipped_in_its_header, "zeros within": zeros_within,
    "extraneous bytes": extraneous_bytes, "higher than its data": higher_than_its_data, "huge": huge, "no height": no_height, "no tables": without(0xDB),
    "no frame": without(0xC0), "unknown kind": unknown_kind, "twelve bits": twelve_bits}
