"""A small baseline JPEG encoder for kinds of files that Pillow does not write: any sampling factors, YCCK, a scan per
component, and restart intervals. It uses Huffman codes of fixed length and one flat quantisation table."""
import numpy as np

ZIGZAG = sorted(((r, c) for r in range(8) for c in range(8)), key=lambda p: (sum(p), p[1] if sum(p) % 2 == 0 else p[0]))
DCT = np.array([[np.sqrt((1 if u == 0 else 2) / 8) * np.cos((2 * x + 1) * u * np.pi / 16) for x in range(8)] for u in range(8)])
DC_SYMBOLS = list(range(12))
AC_SYMBOLS = [0x00, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]
DC_LENGTH, AC_LENGTH = 4, 8


def segment(marker, payload):
    return bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + bytes(payload)


def huffman_table(kind, length, symbols):
    return segment(0xC4, bytes([kind << 4] + [len(symbols) if i == length else 0 for i in range(1, 17)] + symbols))


class Bits:
    def __init__(self):
        self.text = []

    def put(self, value, length):
        if length:
            self.text.append(format(value, f"0{length}b"))

    def bytes(self):
        text = "".join(self.text)
        text += "1" * (-len(text) % 8)
        data = int(text or "0", 2).to_bytes(len(text) // 8, "big")
        self.text = []
        return data.replace(b"\xff", b"\xff\x00")


def put_block(bits, block, quantum, previous_dc):
    values = np.rint(DCT @ (block - 128.0) @ DCT.T / quantum).astype(int)
    values = [int(values[p]) for p in ZIGZAG]

    def magnitude(value):
        size = abs(value).bit_length()
        return size, value if value > 0 else value + (1 << size) - 1

    size, extra = magnitude(values[0] - previous_dc)
    bits.put(DC_SYMBOLS.index(size), DC_LENGTH)
    bits.put(extra, size)
    run = 0
    last = max([k for k in range(1, 64) if values[k]], default=0)
    for k in range(1, last + 1):
        if values[k] == 0:
            run += 1
            continue
        while run > 15:
            bits.put(AC_SYMBOLS.index(0xF0), AC_LENGTH)
            run -= 16
        size, extra = magnitude(values[k])
        bits.put(AC_SYMBOLS.index(run << 4 | size), AC_LENGTH)
        bits.put(extra, size)
        run = 0
    if last < 63:
        bits.put(AC_SYMBOLS.index(0), AC_LENGTH)
    return values[0]


def encode(planes, sampling, quantum=28, adobe_transform=None, interleaved=True, restart_interval=0):
    """planes: u8 [height, width] per component, all of full size; sampling: (horizontal, vertical) per component."""
    height, width = planes[0].shape
    most_h, most_v = max(h for h, _ in sampling), max(v for _, v in sampling)
    mcus_down, mcus_across = -(-height // (8 * most_v)), -(-width // (8 * most_h))
    blocks = []  # [rows of blocks, columns of blocks, 8, 8] per component, in whole MCUs
    sizes = []  # numbers of blocks that hold pixels; a scan of one component consists of these
    for plane, (h, v) in zip(planes, sampling):
        full = np.pad(plane.astype(float), ((0, mcus_down * 8 * most_v - height), (0, mcus_across * 8 * most_h - width)), mode="edge")
        down, across = most_v // v, most_h // h
        small = full.reshape(full.shape[0] // down, down, full.shape[1] // across, across).mean((1, 3))
        blocks.append(small.reshape(mcus_down * v, 8, mcus_across * h, 8).swapaxes(1, 2))
        sizes.append((-(-(-(-height * v // most_v)) // 8), -(-(-(-width * h // most_h)) // 8)))
    data = b"\xff\xd8"
    if adobe_transform is not None:
        data += segment(0xEE, b"Adobe" + bytes([0, 100, 0, 0, 0, 0, adobe_transform]))
    data += segment(0xDB, bytes([0] + [quantum] * 64))
    frame = bytes([8]) + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes([len(planes)])
    data += segment(0xC0, frame + b"".join(bytes([i + 1, h << 4 | v, 0]) for i, (h, v) in enumerate(sampling)))
    data += huffman_table(0, DC_LENGTH, DC_SYMBOLS) + huffman_table(1, AC_LENGTH, AC_SYMBOLS)
    if restart_interval:
        data += segment(0xDD, restart_interval.to_bytes(2, "big"))
    everything = list(range(len(planes)))
    for scan in [everything] if interleaved else [[i] for i in everything]:
        data += segment(0xDA, bytes([len(scan)]) + b"".join(bytes([i + 1, 0]) for i in scan) + bytes([0, 63, 0]))
        if len(scan) > 1:
            mcus = [[(i, y * sampling[i][1] + dy, x * sampling[i][0] + dx) for i in scan
                     for dy in range(sampling[i][1]) for dx in range(sampling[i][0])]
                    for y in range(mcus_down) for x in range(mcus_across)]
        else:
            mcus = [[(scan[0], y, x)] for y in range(sizes[scan[0]][0]) for x in range(sizes[scan[0]][1])]
        bits, dc = Bits(), [0] * len(planes)
        for number, mcu in enumerate(mcus):
            if restart_interval and number and number % restart_interval == 0:
                data += bits.bytes() + bytes([0xFF, 0xD0 + (number // restart_interval - 1) % 8])
                dc = [0] * len(planes)
            for i, y, x in mcu:
                dc[i] = put_block(bits, blocks[i][y, x], quantum, dc[i])
        data += bits.bytes()
    return data + b"\xff\xd9"
