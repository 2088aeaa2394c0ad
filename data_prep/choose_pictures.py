#!/usr/bin/env python3
"""Chooses pictures of each class, so that a study of any folder stays small: choose_pictures.py FOLDER OUT --count N

FOLDER holds a folder per class, or train/ and val/ (or validation/) with one per class. OUT gets the same folders, with
links to the chosen pictures. A split gets at most N pictures, and every class an equal share of them. A class gets at
least one picture, so more than N classes get more than N pictures. If FOLDER has no splits, at most 2 N pictures are
chosen, which are split later. The choice depends only on the names of the pictures.
"""

import argparse
import hashlib
import os
import shutil
import sys
from pathlib import Path

ENDINGS = {".jpg", ".jpeg", ".png"}
SPLITS = ("train", "val", "validation")


def folders(path):
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def pictures(folder):
    """Returns all pictures below a class's folder. Their order depends on the names alone."""
    found = [
        Path(at) / name
        for at, _, names in os.walk(folder, followlinks=True)
        for name in names
        if Path(name).suffix.lower() in ENDINGS and not name.startswith(".")
    ]
    return sorted(found, key=lambda p: hashlib.sha256(str(p.relative_to(folder)).encode("utf-8", "surrogateescape")).digest())


def choose(source, out, count):
    """Links at most `count` pictures of the classes below `source`; returns (classes, pictures)."""
    classes, linked = folders(source), 0
    for folder in classes:
        chosen = pictures(folder)[: max(1, count // len(classes))]
        (out / folder.name).mkdir(parents=True)
        for number, picture in enumerate(chosen):
            (out / folder.name / f"{number:05d}_{picture.name}").symlink_to(picture.resolve())
        linked += len(chosen)
    return len(classes), linked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, required=True, metavar="N")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        sys.exit(f"error: PICTURES={arguments.folder} is not a folder; expected a folder that has a folder of pictures for each class")
    if arguments.count < 2:
        sys.exit(f"error: --count {arguments.count}: expected at least 2 pictures")
    shutil.rmtree(arguments.out, ignore_errors=True)
    splits = [p for p in folders(arguments.folder) if p.name in SPLITS]
    parts = [(p, arguments.out / p.name, arguments.count) for p in splits] or [
        (arguments.folder, arguments.out, 2 * arguments.count)
    ]
    for source, out, count in parts:
        classes, linked = choose(source, out, count)
        if classes < 2 or linked == 0:
            sys.exit(
                f"error: PICTURES={arguments.folder}: {source} has {classes} class folders with {linked} pictures "
                f"({', '.join(sorted(ENDINGS))}); expected two classes or more"
            )
        print(f"{source}: {linked} pictures of {classes} classes")


if __name__ == "__main__":
    main()
