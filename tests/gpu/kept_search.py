"""Packs the results of a search into files that can be carried to another machine: cuDNN's plans and the table of
fusions. They come from the folder that programs take as machine.plan_cache (RINGTRAIN_PLAN_CACHE). The pieces are small
enough for any way of carrying them."""
import io
import os
import shutil
import tarfile
from pathlib import Path

PIECE_BYTES = 15 << 20
NAME = "search.tar.gz"  # the next pieces are search.tar.gz.2, ...


def pieces_in(folder):
    """The pieces in a folder in their order, or []."""
    first = Path(folder) / NAME
    if not first.exists():
        return []
    found = [first]
    while (following := first.with_name(f"{NAME}.{len(found) + 1}")).exists():
        found.append(following)
    return found


def add(archive, path, name):
    info = tarfile.TarInfo(name)
    content = path.read_bytes()
    info.size = len(content)
    info.mtime = int(path.stat().st_mtime)
    archive.addfile(info, io.BytesIO(content))


def is_shipped(path, folder, shipped):
    """Whether the kit has brought this plan, and it is still the same."""
    original = Path(shipped) / path.relative_to(folder) if shipped else None
    return original is not None and original.is_file() and original.read_bytes() == path.read_bytes()


def pack(folder, out, most_pieces=2, without=None):
    """Writes the pieces. Returns (their paths, the number of plans that did not fit). The table comes first, then the
    plans, the newest first. Plans that are the same in the folder `without` stay out, because a kit brings them."""
    folder, out = Path(folder), Path(out)
    plans = sorted(folder.rglob("*.plan"), key=lambda path: (-path.stat().st_mtime, path.name))
    plans = [path for path in plans if not is_shipped(path, folder, without)]
    files = [path for path in [folder / "fusions", *plans] if path.exists()]
    left_out = 0
    if not files:
        return [], 0
    while True:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
            for path in files:
                add(archive, path, str(path.relative_to(folder)))
        content = packed.getvalue()
        if len(content) <= most_pieces * PIECE_BYTES or len(files) <= 1:
            break
        fit = max(1, int(len(files) * 0.95 * most_pieces * PIECE_BYTES / len(content)))
        left_out += len(files) - fit
        files = files[:fit]
    for old in pieces_in(out):
        old.unlink()
    written = []
    for number, begin in enumerate(range(0, len(content), PIECE_BYTES), 1):
        path = out / (NAME if number == 1 else f"{NAME}.{number}")
        path.write_bytes(content[begin:begin + PIECE_BYTES])
        written.append(path)
    return written, left_out


def unpack(source, folder):
    """Unpacks a folder with pieces, or the first piece itself. Returns the number of files. Raises ValueError with
    advice."""
    source, folder = Path(source), Path(folder)
    pieces = pieces_in(source if source.is_dir() else source.parent)
    if not pieces or (not source.is_dir() and source.name != NAME):
        raise ValueError(f"{source} holds no {NAME}: name the folder that a call of check.sh has written")
    count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(piece.read_bytes() for piece in pieces)), mode="r:gz") as archive:
            for member in archive:
                name = Path(member.name)
                if not member.isfile() or name.is_absolute() or ".." in name.parts:
                    raise ValueError(f"{source}: {member.name} has no place in it")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "wb") as file:
                    shutil.copyfileobj(archive.extractfile(member), file)
                os.utime(target, (member.mtime, member.mtime))  # so that newer plans come first in the next archive
                count += 1
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{source}: {' and '.join(p.name for p in pieces)} cannot be unpacked ({error}): are all pieces there?") from error
    return count
