#!/usr/bin/env python3
"""Writes images/*, small JPEGs of every kind that occurs in data sets, including broken ones. Writes images.json, the
results of Pillow and torchvision for them, as CRC-32C of the u8 values.

Run by hand with a Python that has Pillow, numpy and torchvision: python tests/golden/make_images.py
"""
import io
import json
from pathlib import Path

import numpy as np
import torchvision
from PIL import Image, features
from plain_jpeg import encode
from torchvision.transforms import functional as F

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "images"
TABLE = [0] * 256
for n in range(256):
    crc = n
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    TABLE[n] = crc


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def photograph(height, width, channels=3, seed=1, noise=6.0):
    """An image of gradients, edges of saturated colours and some noise."""
    dice = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for c in range(channels):
        plane = 127 + 90 * np.sin(x / (9.0 + 3 * c) + c) * np.cos(y / (13.0 - 2 * c)) + dice.normal(0, noise, (height, width))
        plane[(x + 2 * y) % (40 + 7 * c) < 12] = [250, 5, 128, 40][c]
        planes.append(plane)
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def ycc(rgb):
    return [np.asarray(plane) for plane in Image.fromarray(rgb).convert("YCbCr").split()]


def saved(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def scans(data):
    """The places where the scans of a progressive file begin."""
    return [i for i in range(len(data) - 1) if data[i] == 0xFF and data[i + 1] == 0xDA]


def good_files():
    image = photograph(101, 150)
    pil = Image.fromarray(image)
    full, (y, cb, cr) = dict(quality=70), ycc(image)
    files = {
        "grey": saved(pil.convert("L"), **full),
        "444": saved(pil, subsampling=0, **full),
        "422": saved(pil, subsampling=1, **full),
        "420": saved(pil, subsampling=2, **full),
        "440": encode([y, cb, cr], [(1, 2), (1, 1), (1, 1)]),
        "411": encode([y, cb, cr], [(4, 1), (1, 1), (1, 1)]),
        "410": encode([y, cb, cr], [(4, 2), (1, 1), (1, 1)]),
        "441": encode([y, cb, cr], [(1, 4), (1, 1), (1, 1)]),
        "mixed_sampling": encode([y, cb, cr], [(2, 2), (2, 1), (1, 2)]),
        "grey_2x2": encode([y], [(2, 2)]),  # with one component, sampling factors have no meaning
        "420_restarts": encode([y, cb, cr], [(2, 2), (1, 1), (1, 1)], restart_interval=7),
        "420_scan_per_component": encode([y, cb, cr], [(2, 2), (1, 1), (1, 1)], interleaved=False),
        "progressive_444": saved(pil, subsampling=0, progressive=True, **full),
        "progressive_420": saved(pil, subsampling=2, progressive=True, **full),
        "progressive_grey": saved(pil.convert("L"), progressive=True, **full),
        "rgb": saved(pil, keep_rgb=True, **full),
        "cmyk": saved(Image.fromarray(photograph(61, 75, 4), "CMYK"), **full),
        "ycck": encode([y, cb, cr, 255 - photograph(101, 150, 4)[..., 3]], [(2, 2), (1, 1), (1, 1), (2, 2)], adobe_transform=2),
        "1x1": saved(Image.fromarray(photograph(1, 1))),
        "2x2": saved(Image.fromarray(photograph(2, 2))),
        "5x3": saved(Image.fromarray(photograph(5, 3))),
        "1_wide": saved(Image.fromarray(photograph(70, 1))),
        "1_high": saved(Image.fromarray(photograph(1, 70))),
        "17x33": saved(Image.fromarray(photograph(17, 33)), **full),
        "2400_wide": saved(Image.fromarray(photograph(45, 2400, noise=0.0)), quality=20),
        "2400_high": saved(Image.fromarray(photograph(2400, 45, noise=0.0)), quality=20),
    }
    files["extraneous_bytes"] = files["420"][:-2] + b"\xab" * 5 + files["420"][-2:] + b"and what follows"
    return files


def unfinished_files(good):
    """Progressive files that end too early, but properly. libjpeg-turbo smooths them, and version 3.0 does it slightly
    differently, so there is no single right answer."""
    result = {}
    for name in ("progressive_420", "progressive_444"):
        result[f"{name}_unfinished"] = good[name][:scans(good[name])[3]] + b"\xff\xd9"
    return result


def broken_files(good):
    whole = good["420"]
    png = io.BytesIO()
    Image.fromarray(photograph(20, 20)).save(png, "PNG")
    marker_inside = bytearray(whole)
    marker_inside[len(whole) // 2:len(whole) // 2 + 2] = b"\xff\xd9"
    lost_restart = good["420_restarts"].replace(b"\xff\xd2", b"\xff\xd5", 1)
    huge = bytearray(whole)
    frame = whole.index(b"\xff\xc0")
    huge[frame + 5:frame + 9] = b"\xff\x00\xff\x00"
    return {
        "truncated": whole[:len(whole) * 2 // 3], "truncated_header": whole[:300],
        "truncated_progressive": good["progressive_420"][:len(good["progressive_420"]) // 2],
        "corrupt": bytes(marker_inside), "corrupt_restarts": lost_restart, "png": png.getvalue(), "empty": b"",
        "not_a_image": b"This is text.", "huge": bytes(huge),
    }


def boxes(height, width, dice):
    """The whole image, the corners, and random boxes: (top, left, height, width, flip)."""
    result = [(0, 0, height, width, False), (0, 0, 1, 1, True), (height - 1, width - 1, 1, 1, False),
              (height // 2, width // 2, height - height // 2, width - width // 2, True)]
    for _ in range(6):
        h, w = (int(dice.integers(1, n + 1)) for n in (height, width))
        result.append((int(dice.integers(0, height - h + 1)), int(dice.integers(0, width - w + 1)), h, w, bool(dice.integers(2))))
    return result


def expected(name, data):
    with Image.open(io.BytesIO(data)) as file:
        image, mode = file.convert("RGB"), file.mode
    dice = np.random.default_rng(len(data))
    crops, evaluations, resizes = [], [], []
    for number, (top, left, height, width, flip) in enumerate(boxes(image.height, image.width, dice)):
        size = (64, 33, 8)[number % 3]
        out = F.resized_crop(image, top, left, height, width, [size, size])
        out = F.hflip(out) if flip else out
        crops.append({"size": size, "top": top, "left": left, "height": height, "width": width, "flip": flip,
                      "crc32c": crc32c(out.tobytes())})
    for resize, size in ((72, 64), (0, 64), (37, 32), (20, 33), (256, 224) if name == "420" else (9, 7)):
        out = F.center_crop(F.resize(image, resize) if resize else image, [size, size])
        evaluations.append({"resize": resize, "size": size, "crc32c": crc32c(out.tobytes())})
    for height, width in ((image.height, 31), (50, image.width), (40, 40), (130, 211)):
        resizes.append({"height": height, "width": width,
                        "crc32c": crc32c(image.resize((width, height), Image.Resampling.BILINEAR).tobytes())})
    return {"name": name, "mode": mode, "height": image.height, "width": image.width, "crc32c": crc32c(image.tobytes()),
            "encoded_quality_85_crc32c": crc32c(saved(image, quality=85)),
            "resized_crops": crops, "evaluations": evaluations, "resizes": resizes}


def fallback_crops():
    """RandomResizedCrop's central crop, for images in which no random try can succeed."""
    result = []
    for height, width in ((10, 1000), (1000, 10), (3, 301), (77, 2)):
        blank = Image.new("RGB", (width, height))
        for scale, ratio in (((0.08, 1.0), (3 / 4, 4 / 3)), ((0.35, 1.0), (0.9, 1.07))):
            crop = torchvision.transforms.RandomResizedCrop.get_params(blank, scale, ratio)
            assert all(crop == torchvision.transforms.RandomResizedCrop.get_params(blank, scale, ratio) for _ in range(50))
            result.append({"height": height, "width": width, "scale": scale, "ratio": ratio, "box": crop})
    # No try can succeed because the area is too large, so the crop is the whole image.
    result.append({"height": 60, "width": 60, "scale": (1.5, 2.0), "ratio": (3 / 4, 4 / 3), "box": (0, 0, 60, 60)})
    assert torchvision.transforms.RandomResizedCrop.get_params(Image.new("RGB", (60, 60)), (1.5, 2.0), (3 / 4, 4 / 3)) == (0, 0, 60, 60)
    return result


def main():
    FOLDER.mkdir(exist_ok=True)
    good = good_files()
    for name, data in {**good, **unfinished_files(good), **broken_files(good)}.items():
        (FOLDER / f"{name}.jpg").write_bytes(data)
    lists = {"good": [expected(name, data) for name, data in good.items()], "unfinished": list(unfinished_files(good)), "broken": list(broken_files(good)),
             "fallback_crops": fallback_crops()}
    about = f"Pillow {Image.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}, torchvision {torchvision.__version__}"
    text = ",\n".join(f' "{key}": [\n  ' + ",\n  ".join(json.dumps(entry) for entry in entries) + "\n ]" for key, entries in lists.items())
    (HERE / "images.json").write_text(f'{{\n "made_by": {json.dumps(about)},\n{text}\n}}\n')
    print(f"wrote {len(good)} good and {len(lists['broken'])} broken files, {sum(p.stat().st_size for p in FOLDER.iterdir())} bytes")


if __name__ == "__main__":
    main()
