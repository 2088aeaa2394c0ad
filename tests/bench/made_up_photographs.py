"""Makes up photographs for the benchmarks, in about a second and without other packages.

They decode as slowly as real photographs. One core took 12.4 ns for a pixel with libjpeg-turbo, and 12.4 ns for a pixel of
250 photographs of ImageNet's classes. They have 3.9 bits per pixel (the photographs 4.4), 500 x 375 pixels, and colours
at full resolution (4:4:4), as three quarters of the photographs have.

The symbols of the Huffman code are drawn at random, with the shares for which JPEG's standard code for brightness was
made. So the pictures show noise. A picture is made of rows of blocks, which are drawn from a small stock of rows.
"""
import random
import struct

WIDTH, HEIGHT = 500, 375
COLUMNS, ROWS = -(-WIDTH // 8), -(-HEIGHT // 8)  # blocks of 8 x 8 pixels
STOCK = 96  # rows
# The chance that a block ends after a coefficient. A block of brightness has 22 coefficients on average, one of colour 9.
END_OF_BLOCK_SHARES = [1 / 30, 1 / 10, 1 / 10]

# The standard Huffman codes of ITU-T T.81, tables K.3 and K.5: how many codes have 1, 2, ... 16 bits, and their symbols.
DC_COUNTS, DC_SYMBOLS = bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]), bytes(range(12))
AC_COUNTS = bytes([0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125])
AC_SYMBOLS = bytes.fromhex(
    "01020300041105122131410613516107227114328191a1082342b1c11552d1f02433627282090a161718191a25262728292a3435363738393a43"
    "4445464748494a535455565758595a636465666768696a737475767778797a838485868788898a92939495969798999aa2a3a4a5a6a7a8a9aab2"
    "b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa")


def codes_of(counts, symbols):
    """Maps each symbol to its code, a string of 0 and 1."""
    codes, code, rest = {}, 0, iter(symbols)
    for length, count in enumerate(counts, 1):
        for _ in range(count):
            codes[next(rest)] = format(code, f"0{length}b")
            code += 1
        code *= 2
    return codes


DC_CODES, AC_CODES = codes_of(DC_COUNTS, DC_SYMBOLS), codes_of(AC_COUNTS, AC_SYMBOLS)


def dc_bits(step):
    """The code of the step from the last block's mean to this one's."""
    size = abs(step).bit_length()
    value = step if step > 0 else step + (1 << size) - 1
    return DC_CODES[size] + (format(value, f"0{size}b") if size else "")


def ac_bits(dice, symbols):
    """The codes of a block's other 63 coefficients. `symbols` gives symbols without end."""
    parts, place = [], 0
    while (symbol := next(symbols)) and (place := place + (symbol >> 4) + 1) < 63:
        size = symbol & 15
        parts.append(AC_CODES[symbol])
        parts.append(format(dice.getrandbits(size), f"0{size}b") if size else "")
    return "".join(parts) + AC_CODES[0]


def drawn_symbols(dice, end_share):
    others = AC_SYMBOLS.replace(b"\0", b"")
    weights = [2.0 ** -len(AC_CODES[symbol]) for symbol in others]
    weights.append(sum(weights) * end_share / (1 - end_share))
    while True:
        yield from dice.choices(others + b"\0", weights, k=4096)


def row_bits(dice, sources):
    """The bits of a row of blocks. Its last blocks have the mean 0 again, so that any row may follow."""
    parts, means = [], [0] * len(sources)
    for column in range(COLUMNS):
        for component, symbols in enumerate(sources):
            mean = dice.randrange(-100, 100) if column + 1 < COLUMNS else 0
            parts += [dc_bits(mean - means[component]), ac_bits(dice, symbols)]
            means[component] = mean
    return "".join(parts)


def segment(marker, content):
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def jpeg(rows):
    bits = "".join(rows)
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    frame = struct.pack(">BHHB", 8, HEIGHT, WIDTH, 3) + b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    scan = bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])
    return (b"\xff\xd8" + segment(0xDB, b"\0" + bytes([4] * 64)) + segment(0xC0, frame) + segment(0xC4, b"\0" + DC_COUNTS + DC_SYMBOLS)
            + segment(0xC4, b"\x10" + AC_COUNTS + AC_SYMBOLS) + segment(0xDA, scan) + coded + b"\xff\xd9")


def make_photographs(folder, count=256, classes=1000):
    """Writes `count` files cNNNN_made_up.JPEG into a folder, and then classes1000.txt (lines: class id and name). They are
    the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(1)
    sources = [drawn_symbols(dice, share) for share in END_OF_BLOCK_SHARES]
    stock = [row_bits(dice, sources) for _ in range(STOCK)]
    for number in range(count):
        (folder / f"c{number:04d}_made_up.JPEG").write_bytes(jpeg(dice.choices(stock, k=ROWS)))
    (folder / "classes1000.txt").write_text("".join(f"c{number:04d}\tclass_{number}\n" for number in range(classes)))
