"""The rule for files that an option names, as in src/base/output_file.h: a device or a pipe is written into, a link stays
and its file is replaced, and a file that is no earlier output is refused."""

import os
import stat
from pathlib import Path

from .errors import ReportError

PICTURES = (b"\x89PNG", b"<svg", b"<?xml", b"%PDF", b"%!PS", b"\xff\xd8", b"RIFF", b"II*\0", b"MM\0*")


def is_picture(start):
    return start.startswith(PICTURES)


def picture_path(path):
    """Returns the path with .png if it has no ending, as matplotlib does. A device or a pipe keeps its name."""
    path = Path(path)
    return path if path.suffix or is_stream(path) else Path(f"{path}.png")


def is_stream(path):
    """Returns whether the path is a device or a pipe, or this program's standard output."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    try:
        is_standard = os.path.samestat(found, os.fstat(1))
    except OSError:
        is_standard = False
    return is_standard or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or stat.S_ISBLK(found.st_mode))


def expect(path, option, kind, is_one):
    """Raises ReportError if the rule refuses the path. `kind` names the output, such as "picture". is_one(start) says
    whether a file that starts with these bytes, all of a small one, is an earlier output."""
    path = Path(path)
    if is_stream(path) or not path.exists():
        return
    if not path.is_file():
        raise ReportError(f"{option} {path}: is a {'folder' if path.is_dir() else 'disk'}, expected the name of a file; give another name")
    with open(path, "rb") as file:
        start = file.read(1 << 20)
    if start and not is_one(start):
        raise ReportError(f"{option} {path}: exists already, and is no {kind}; remove it first, or give another name")
    if not path.stat().st_mode & 0o222:
        raise ReportError(f"{option} {path}: exists already, and is write-protected; remove it first, or give another name")


def write(path, data):
    """Writes the bytes to a path that expect() allows. A file appears whole or not at all."""
    if is_stream(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    final = Path(os.path.realpath(path))
    scratch = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(data)
        os.replace(scratch, final)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        error.filename = os.fspath(path)
        raise
