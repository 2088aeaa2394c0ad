"""Folders of pictures, the tar files of such folders, and pictures of their own, each turned wrong or odd in one way."""
import io
import os
import tarfile
import unicodedata
from pathlib import Path

from jpegs import CHANGES as JPEG_CHANGES
from made import EITHER, REFUSED, RIGHT, Draw, Made, Pictures, encoded, smooth

CLASSES = ["cat", "dog", "n01440764", "100", "9", "a b", "v1.0", "-x", "caf\u00e9", "\u732b", "Zebra", "a,b", "it's", "#1", "x" * 120, "a+b=c", "%d", "..."]


class Folder:
    """A folder of classes. `files` maps paths below the folder to bytes, in the order in which they are written."""

    def __init__(self, folder, draw, form):
        self.folder, self.draw, self.form = folder, draw, form
        self.root = folder / draw.choice(["photos", "my photos", "p\u00fcppies", "a.b"])
        self.classes = draw.sample([c for c in CLASSES if not c.startswith(".")], draw.randint(2, 4))
        self.splits = {"splits": draw.choice([("train", "val"), ("Train", "Valid"), ("training", "validation")])}.get(form, ("",))
        self.files, self.records, self.left_out = {}, {}, 0
        self.added = []  # (function of a path) for what is no file
        for split in self.splits:
            for name in self.classes:
                for number in range(draw.randint(2, 6)):
                    below = draw.choice(["", "", "", "series 1/"]) if form == "nested" else ""
                    self.picture("/".join(filter(None, [split, name, below + f"{number}"])), name)

    def label(self, name):
        return sorted(self.classes, key=os.fsencode).index(name)

    def picture(self, path, name, form=None, ending=None):
        draw = self.draw
        form = form or draw.choice(["JPEG"] * 4 + ["PNG"])
        pixels = smooth(draw, draw.randint(9, 30), draw.randint(9, 30), 3)
        content = encoded(pixels, form)
        path += ending or {"JPEG": draw.choice([".jpg", ".jpg", ".JPG", ".jpeg", ".jfif"]), "PNG": ".png"}[form]
        self.files[path] = content
        self.records[path] = (name, content if form == "JPEG" else pixels)
        return path

    def write(self):
        for path, content in self.files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(content)
        for add in self.added:
            add(self.root)

    def wanted(self):
        records = {path: (self.label(name), content) for path, (name, content) in self.records.items()}
        return Pictures(records, sorted(self.classes, key=os.fsencode), tolerance=6)

    def command(self, *more):
        return ["images", str(self.root), *more]

    def made(self, outcome=RIGHT, says="", notes=(), more=(), **others):
        """Writes the folder and a tar file of it."""
        self.write()
        twin, form = self.folder / "twin.tar", self.draw.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
        if form == tarfile.USTAR_FORMAT and any(len(os.fsencode(name)) > 90 for path in self.files for name in path.split("/")):
            form = tarfile.PAX_FORMAT
        with tarfile.open(twin, "w", format=form) as tar:
            tar.add(self.root, self.draw.choice([".", "", "photos"]) or "./")
        return Made(self.command(*more), outcome, wanted=self.wanted() if outcome != REFUSED else None, says=says, notes=list(notes),
                    found=len(self.records) + self.left_out if outcome == RIGHT else None,
                    **{"twin": ["images", str(twin), *more], **others})

    def any_class(self):
        return "/".join(filter(None, [self.splits[0], self.draw.choice(self.classes)]))

    def any_file(self):
        return self.draw.choice(sorted(self.records))


FORMS = ["classes", "classes", "splits", "nested"]


def as_it_is(f):
    return f.made()


def a_share(f):
    if f.form == "splits":
        return f.made()
    return f.made(more=["--validation", f.draw.choice(["0.2", "0.5"]), "--shards", str(f.draw.randint(1, 3))])


LEFT_OUT = {"notes.txt": "ending .txt", ".hidden.jpg": "hidden file", "Thumbs.db": "programs leave", "@eaDir/0.jpg/SYNOPHOTO.jpg": "programs leave",
            ".ipynb_checkpoints/0.jpg": "hidden file", "thumbnails/0.jpg": "programs leave", "desktop.ini": "programs leave", "without": "without an ending",
            "film.mp4": "ending .mp4", "labels.csv": "ending .csv", "0.jpg.bak": "ending .bak", "0.xmp": "ending .xmp", "a.jpg~": r"ending \.jpg~",
            "__MACOSX/._0.jpg": "programs leave|hidden", "._0.jpg": "hidden file", "new\nline.txt": "ending .txt", "0.JPG_": r"ending \.jpg_"}


def files_that_are_left_out(f):
    kind = f.draw.take(LEFT_OUT)
    f.files[f"{f.any_class()}/{kind}"] = f.files[f.any_file()] if f.draw.random() < 0.5 else b"x"
    f.left_out += 1
    return f.made(notes=[LEFT_OUT[kind]]), kind


BROKEN = {"empty": b"", "text": b"<html>404 Not Found</html>", "zeros": bytes(5000), "GIF": "GIF", "BMP": "BMP", "WebP": "WEBP", "TIFF": "TIFF", "JPEG 2000": "JPEG2000",
          "a cut-off PNG": "cut PNG", "a PNG with a damaged chunk": "damaged PNG", "a header alone": b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"}


def broken_files(f):
    kind = f.draw.take(BROKEN)
    content = BROKEN[kind]
    if isinstance(content, str):
        content = encoded(smooth(f.draw, 20, 20), content.split()[-1])
        if "PNG" in kind:
            content = bytearray(content)
            content[-30] ^= 255
            content = bytes(content[:len(content) * 2 // 3] if kind.startswith("a cut") else content)
    path = f"{f.any_class()}/broken{f.draw.choice(['.jpg', '.png'])}"
    f.files[path] = content
    if f.draw.random() < 0.5:
        return f.made(REFUSED, f"1 of {len(f.records) + 1} images cannot be used", named="broken."), kind + ", fail"
    f.left_out += 1
    return f.made(more=["--broken", "skip"], notes=["broken +1, left out"]), kind + ", skip"


def an_empty_class(f):
    f.added.append(lambda root: (root / f.splits[0] / "nothing").mkdir())
    return f.made(REFUSED, "nothing.*(no|holds).*image|empty", named="nothing")


def a_lost_class(f):
    """A class of one split is not in the other one."""
    if f.form != "splits":
        return as_it_is(f)
    f.picture(f"{f.splits[f.draw.randint(0, 1)]}/more/0", "more")
    return f.made(REFUSED, "more", named="more")


def links(f):
    path = f.any_file()
    name = f.records[path][0]
    kind = f.draw.choice(["hard", "soft", "absolute", "lost", "upwards", "to itself", "to a folder"])
    folder = os.path.dirname(path)
    new = f"{folder}/linked.jpg"
    if kind in ("hard", "soft"):
        link = (lambda root: os.link(root / path, root / new)) if kind == "hard" else (lambda root: os.symlink(os.path.basename(path), root / new))
        f.records[new] = f.records[path]
    elif kind == "absolute":  # lies outside the tar file
        link = lambda root: os.symlink(root / path, root / new)  # noqa: E731
        f.records[new] = f.records[path]
        return links_made(f, link, kind, twin=None)
    elif kind == "to a folder":
        other = f.folder / "other pictures"
        other.mkdir()
        pixels = smooth(f.draw, 12, 12)
        (other / "z.jpg").write_bytes(encoded(pixels))
        link = lambda root: os.symlink(other, root / folder / "more")  # noqa: E731
        f.records[f"{folder}/more/z.jpg"] = (name, encoded(pixels))
        return links_made(f, link, kind, twin=None)
    else:
        link = {"lost": lambda root: os.symlink("nowhere.jpg", root / new), "upwards": lambda root: os.symlink("..", root / folder / "up"),
                "to itself": lambda root: os.symlink("linked.jpg", root / new)}[kind]
        f.added.append(link)
        if kind != "upwards":  # it is called like a picture
            return f.made(REFUSED, f"1 of {len(f.records) + 1} images cannot be used", named="linked.jpg"), kind
        f.left_out += 1
        return f.made(notes=["link"]), kind
    return links_made(f, link, kind)


def links_made(f, link, kind, **more):
    f.added.append(link)
    return f.made(**more), kind


def no_file(f):
    """Something that is called like a picture and is none."""
    kind = f.draw.choice(["a folder", "a pipe"])
    path = f"{f.any_class()}/odd.jpg"
    if kind == "a folder":  # it is entered, as any folder below a class
        f.picture(f"{path}/0", path.split("/")[-2])
        return f.made(), kind
    f.added.append(lambda root: os.mkfifo(root / path))
    return f.made(REFUSED, "is not a regular file", named="odd.jpg"), kind


NAMES = {"not UTF-8": "p\udce9.jpg", "a new line": "a\nb.jpg", "a quote": "a'b\".jpg", "long": "n" * 200 + ".jpg", "blank": " .jpg", "a backslash": "a\\b.jpg",
         "an emoji": "\U0001F408.jpg", "an escape": "\x1b[31m.jpg", "decomposed": unicodedata.normalize("NFD", "caf\u00e9") + ".jpg", "a percent sign": "%s%n.jpg", "two dots": "a..b.jpg",
         "a minus": "-rf.jpg", "a colon": "a:b.jpg"}


def odd_names(f):
    kind = f.draw.take(NAMES)
    path = f.any_class()
    f.files[f"{path}/{NAMES[kind]}"] = encoded(smooth(f.draw, 12, 20))
    f.records[f"{path}/{NAMES[kind]}"] = (path.split("/")[-1], f.files[f"{path}/{NAMES[kind]}"])
    return f.made(), kind


def files_beside(f):
    """Files that lie beside the folders of the classes, and a folder of tests beside the splits."""
    kind = f.draw.choice(["README.md", "stray.jpg", "test"])
    if kind == "test" and f.form != "splits":
        kind = "README.md"
    path = {"test": "test/cat/0.jpg"}.get(kind, kind)
    f.files[path] = encoded(smooth(f.draw, 12, 12))
    f.left_out += 1
    return f.made(), kind


def unclear_splits(f):
    if f.form == "splits":
        f.files[f"{f.draw.choice(['TRAIN', 'train_set', 'train2'])}/{f.classes[0]}/0.jpg"] = encoded(smooth(f.draw, 12, 12))
        return f.made(REFUSED, "has both", named="/")
    f.files["test/0.jpg"] = encoded(smooth(f.draw, 12, 12))
    return f.made(REFUSED, "is called like a split", named="test")


def same_picture_twice(f):
    if len(f.classes) < 2:
        return as_it_is(f)
    path, other = f.any_file(), f.draw.choice(f.classes)
    new = "/".join(filter(None, [f.splits[0], other, "again.jpg"]))
    content = encoded(smooth(f.draw, 14, 14))
    f.files[new], f.records[new] = content, (other, content)
    name = next(c for c in f.classes if c != other)
    second = "/".join(filter(None, [f.splits[0], name, "again.jpg"]))
    f.files[second], f.records[second] = content, (name, content)
    return f.made(notes=["1 image.s. have the same bytes as an image of another class"]), path


def no_folder(f):
    kind = f.draw.choice(["nothing", "empty", "a text", "no pictures", "an empty tar", "a compressed tar"])
    if kind == "empty":
        f.root.mkdir()
    elif kind == "a text":
        f.root.write_text("x")
    elif kind == "no pictures":
        (f.root / "a").mkdir(parents=True)
        (f.root / "a/x.txt").write_text("x")
    elif kind.endswith("tar"):
        f.root = f.folder / "set.tar"
        with tarfile.open(f.root, "w:gz" if kind.startswith("a comp") else "w"):
            pass
    return Made(f.command(), REFUSED, says="."), kind


def a_tar_per_class(f):
    """Tar files instead of the folders of the classes."""
    if f.form == "splits":
        return as_it_is(f)
    f.write()
    tars = f.folder / "class tars"
    tars.mkdir()
    for name in f.classes:
        with tarfile.open(tars / f"{name}.tar", "w", format=f.draw.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])) as tar:
            tar.add(f.root / name, ".")
    more = f.draw.choice([[], ["--validation", "0.3"]])
    return Made(f.command(*more), wanted=f.wanted(), found=len(f.records), twin=["images", str(tars), *more])


def lists(f):
    """Lines of paths and labels instead of folders."""
    f.write()
    paths = sorted(f.records)
    used = f.draw.sample(paths, f.draw.randint(2, len(paths)))
    labels = {name: i for i, name in enumerate(sorted({f.records[path][0] for path in used}))}
    end = f.draw.choice(["\n", "\r\n"])
    listed = f.folder / "list.txt"
    kind = f.draw.choice(["right", "right", "twice", "missing", "no label", "negative"])
    lines = [f"{path} {labels[f.records[path][0]]}" for path in used]
    says = {"twice": "twice|more than once|both|already", "missing": "cannot be used", "no label": r"line \d+", "negative": r"line \d+|label"}.get(kind)
    if kind != "right":
        lines.insert(f.draw.randint(0, len(lines)), {"twice": lines[0], "missing": "no/such.jpg 0", "no label": "a/b.jpg", "negative": f"{used[0]}x -1"}[kind])
    listed.write_text(end.join(lines) + end)
    words = f.command("--list", str(listed))
    if kind == "right":
        records = {path: (labels[f.records[path][0]], f.records[path][1]) for path in used}
        packed = f.folder / "listed.tar"
        with tarfile.open(packed, "w") as tar:
            tar.add(f.root, ".")
        return Made(words, wanted=Pictures(records, [str(i) for i in range(len(labels))], 6), found=len(paths),
                    twin=["images", str(packed), "--list", str(listed)]), kind
    return Made(words, REFUSED, says=says, named="no/such.jpg" if kind == "missing" else "list.txt"), kind


def sizes(f):
    option = f.draw.choice([["--size", "16"], ["--short-side", "10"], ["--size", "16", "--encoding", "raw"], ["--encoding", "raw"]])
    if option == ["--encoding", "raw"]:
        return f.made(REFUSED, "images have several sizes", named="is", more=option), "raw"
    for path, (name, _) in list(f.records.items()):
        f.records[path] = (name, None)
    return f.made(more=option), " ".join(option)


def a_jpeg(f):
    """One picture among whole ones is a JPEG file of another kind, or a damaged one."""
    kind = f.draw.take(JPEG_CHANGES)
    what, content, pixels = JPEG_CHANGES[kind](f.draw)
    path = f"{f.any_class()}/odd one.jpg"
    f.files[path] = content
    name = path.split("/")[-2]
    if what == "kept":  # the same bytes
        f.records[path] = (name, content)
        return f.made(), kind
    if what == "encoded":
        f.records[path] = (name, pixels)
        return f.made(notes=["re-encoded +1"]), kind
    if what == "doubtful":
        f.records[path] = (name, content)
        return f.made(notes=["doubtful +1 of"]), kind
    if what == "broken":
        return f.made(REFUSED, "1 of .* images cannot be used", named="odd one.jpg"), kind
    f.records[path] = (name, None)  # damaged somewhere: used or refused
    made = f.made(EITHER, named="odd one.jpg")
    return made, kind


# ---- wrong tar files: the folder is right ------------------------------------------------------------------------------

def repack(data, change):
    """Writes a tar file again. `change` gets the members (TarInfo, content) and returns them."""
    members = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            members.append((member, tar.extractfile(member).read() if member.isreg() else None))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in change(members):
            tar.addfile(member, None if content is None else io.BytesIO(content))
    return out.getvalue()


def first_file(members):
    return next(i for i, (member, content) in enumerate(members) if content is not None and "." in member.name)


def renamed(change):
    def apply(members):
        at = first_file(members)
        members[at][0].name = change(members[at][0].name)
        return members
    return lambda data, draw: repack(data, apply)


def with_slashes(member):
    member.name = member.name.replace("/", "//")
    return member


def added_member(kind):
    def apply(members):
        at = first_file(members)
        info = tarfile.TarInfo(members[at][0].name + ".odd.jpg")
        info.type = kind
        info.linkname = "no/such.jpg" if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
        return [*members, (info, None)]
    return lambda data, draw: repack(data, apply)


def end_of(data):
    return len(data.rstrip(b"\0"))


def wrong_checksum(data, draw):
    content = bytearray(data)
    content[draw.randrange(0, 100)] ^= 1
    return bytes(content)


def cut_tar(data, draw):
    return data[:draw.randrange(600, end_of(data) - 600)]


# what is changed: the pattern of the error, or "" if the data are the same as the folder's
TARS = {
    "as it is": (lambda data, draw: data, ""),
    "without its end": (lambda data, draw: data[:-(-end_of(data) // 512) * 512], "ends|cut off|end"),
    "more zeros": (lambda data, draw: data + bytes(512 * draw.randint(1, 99)), ""),
    "cut off": (cut_tar, "ends|cut off|short|incomplete"),
    "a wrong checksum": (wrong_checksum, "checksum|not a plain tar|damaged"),
    "joined": (lambda data, draw: data + data, "joined|after its end"),
    "something after its end": (lambda data, draw: data + b"more".ljust(512, b"x"), ""),  # tar ignores it, too
    "a name twice": (lambda data, draw: repack(data, lambda members: [*members, members[first_file(members)]]), "occurs twice"),
    "a name outside": (renamed(lambda name: "../" + name), "outside"),
    "shuffled": (lambda data, draw: repack(data, lambda members: draw.sample(members, len(members))), ""),
    "no entries of folders": (lambda data, draw: repack(data, lambda members: [m for m in members if m[1] is not None]), ""),
    "two slashes": (lambda data, draw: repack(data, lambda members: [(with_slashes(m), c) for m, c in members]), ""),
    "a device": (added_member(tarfile.CHRTYPE), "cannot be used"),
    "a pipe": (added_member(tarfile.FIFOTYPE), "cannot be used"),
    "a lost hard link": (added_member(tarfile.LNKTYPE), "is a link to 'no/such.jpg'"),
    "gzip": (lambda data, draw: __import__("gzip").compress(data), "compressed"),
    "xz": (lambda data, draw: __import__("lzma").compress(data), "compressed"),
    "zeros alone": (lambda data, draw: bytes(10240), "empty|no images|no member"),
    "text": (lambda data, draw: b"no tar file " * 99, "tar"),
    "empty": (lambda data, draw: b"", "empty|no images|tar|cut"),
}


def a_wrong_tar(f):
    kind = f.draw.take(TARS)
    change, says = TARS[kind]
    made = f.made()
    twin = Path(made.twin[1])
    twin.write_bytes(change(twin.read_bytes(), f.draw))
    made.twin_refused = says
    return made, kind


CHANGES = {f.__name__.replace("_", " "): f for f in (
    as_it_is, a_share, files_that_are_left_out, broken_files, an_empty_class, a_lost_class, links, no_file, odd_names, files_beside, unclear_splits,
    same_picture_twice, no_folder, a_tar_per_class, lists, sizes, a_jpeg, a_wrong_tar)}
WEIGHTS = {"a jpeg": 8, "a wrong tar": 6, "files that are left out": 2, "broken files": 2, "links": 2, "odd names": 2, "lists": 2}


def draw(generator: Draw):
    return generator.choice(FORMS), generator.choice([name for name in CHANGES for _ in range(WEIGHTS.get(name, 1))])


def make(folder, generator: Draw, form, change):
    made = CHANGES[change](Folder(folder, generator, form))
    return made if isinstance(made, tuple) else (made, "")
