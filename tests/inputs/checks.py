"""Checks what the programs make of an input. Each check returns sentences about what is wrong."""
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy

import stored
from jobs import CONVERTER, e2e
from made import EITHER, REFUSED, Made
from input_programs import convert, run, train

# What must never be on the screen: a library's own words, a crash, a sanitizer.
FORBIDDEN = re.compile(r"HDF5-DIAG|Traceback|terminate called|[Ss]egmentation fault|Aborted|Assertion|std::|basic_string|vector::|map::at|stoi|bad_alloc|"
                       r"AddressSanitizer|runtime error|Floating point exception|Bus error|filesystem error|\bH5[A-Z][a-z_]+|nlohmann|CLI11")
LONGEST = 2000  # bytes of a message


@dataclass
class Trial:
    drawn: object
    more: str = ""
    outcome: str = ""
    wrong: list = field(default_factory=list)


def of_the_words(done):
    """Checks exit code and screen of any command: it is right and quiet, or it is one error."""
    found = []
    if done.code is None:
        return [f"{done.what} hangs"]
    if done.code not in (0, 1):
        found.append(f"{done.what} has the exit code {done.code}")
    if match := FORBIDDEN.search(done.out + done.err):
        found.append(f"{done.what} prints {match.group()!r}")
    errors = len(re.findall(r"^ringtrain(?:-data)?: error", done.err, re.M))
    if errors != (done.code == 1):
        found.append(f"{done.what} has the exit code {done.code} and {errors} errors")
    if max(map(len, [*done.out.split("\n"), *done.err.split("\n")])) > LONGEST:
        found.append(f"{done.what} prints a line of more than {LONGEST} bytes")
    if done.code == 1 and "(rank" not in done.err and len([line for line in done.err.splitlines() if "error" not in line.lower()]) > 12:
        found.append(f"{done.what} prints {len(done.err.splitlines())} lines about an error")
    return found


def of_a_refusal(done, made, source, says):
    found = []
    text = re.sub(r"\s+", " ", done.out + done.err)
    if not re.search(says, text):
        found.append(f"{done.what} does not say {says!r}: {done.err.strip()[:200]}")
    named = made.named or Path(source).name
    if printable(named) not in text:
        found.append(f"{done.what} does not name {named!r}: {done.err.strip()[:200]}")
    return found


def printable(name):
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if c != "\n" else "\\n" for c in name)


def counts_of(kind, out):
    """Returns (found, [(what it consists of, number)]) as the converter prints it."""
    def number(pattern):
        return sum(int(n.replace(",", "")) for n in re.findall(pattern, out, re.M))
    if kind == "names":
        kept = re.search(r"^kept +([\d,]+) of ([\d,]+)", out, re.M)
        return (int(kept[2].replace(",", "")), [("kept", int(kept[1].replace(",", ""))), ("dropped", number(r"^dropped +([\d,]+)"))]) if kept else (None, [])
    if kind == "text":
        used = number(r"^(?:train|validation) +([\d,]+) characters")
        return used, [("used", used)]
    used = number(r"^(?:train|validation) +([\d,]+) images")
    whole = re.search(r"^\w+ +(\d+) found = (\d+) used \+ (\d+) broken \+ (\d+) left out", out, re.M)
    if whole is None:
        return used, [("used", used)]
    parts = [("used", used), ("broken", number(r"^broken +(\d+), left out")), ("left out", number(r"^left out +(\d+)"))]
    told = [used if int(whole[2]) == used else -1, int(whole[3]), int(whole[4])]
    if told != [n for _, n in parts]:
        return int(whole[1]), [("other counts in its line", -1)]
    return int(whole[1]), parts


def of_the_counts(done, kind, expected):
    found, parts = counts_of(kind, done.out)
    if found is None or sum(n for _, n in parts) != found:
        return [f"{done.what}: found {found}, but " + " + ".join(f"{n} {what}" for what, n in parts)]
    return [f"{done.what} counts {found}, but there are {expected}"] if expected is not None and found != expected else []


def content_of(prefix):
    """The bytes of all files of a data set, by their names."""
    return {path.name: path.read_bytes() for path in sorted(prefix.parent.glob(f"{prefix.name}*"))}


def left_behind(prefix):
    return [path.name for path in prefix.parent.glob(f"{prefix.name}*")] if prefix.parent.exists() else []


def of_the_training(prefix, place, draw, what):
    """Checks that training accepts the data set, and has the same curve on another number of ranks or threads."""
    ranks, threads = draw.choice([(2, 1), (2, 2), (1, 2), (1, 3), (1, 4)])
    split = "train" if stored.shards(prefix, "train") else "validation"
    found, runs = [], []
    for number, (r, t) in enumerate(((1, 1), (ranks, threads))):
        done = train(prefix, place / f"run-{what}-{number}", r, t, split)
        found += of_the_words(done)
        if done.code != 0:
            return [*found, f"verify accepts the data, but training does not: {done.err.strip()[:300]}"]
        runs.append(place / f"run-{what}-{number}")
    try:
        e2e.assert_close(*runs)
    except AssertionError as error:
        found.append(f"training differs on {ranks} ranks x {threads} threads: {str(error)[:200]}")
    return found


def can_be_trained(prefix, kind, out):
    """Whether there are samples enough for the smallest batch."""
    return sum(int(n.replace(",", "")) for n in re.findall(r"^(?:train) .*?([\d,]+) (?:images|characters|samples)", out, re.M)) >= (6 if kind == "text" else 2)


def of_an_input(made: Made, place, draw, train_too):
    """Returns (outcome, sentences) for an input that a converter reads."""
    kind, source = made.words[0], made.words[1]
    prefix = place / "one" / "set"
    done = convert(made.words, prefix)
    wrong = of_the_words(done)
    outcome = {0: "converted", 1: "refused", None: "hangs"}.get(done.code, "crashes")
    if outcome == "refused":
        if left := left_behind(prefix):
            wrong.append(f"a refused input leaves {left[:3]}")
        if made.outcome == REFUSED:
            wrong += of_a_refusal(done, made, source, made.says)
        elif made.outcome == EITHER:
            wrong += of_a_refusal(done, made, source, "")
        else:
            wrong.append(f"a right input is refused: {(done.out[-300:] + done.err).strip()}")
    elif outcome == "converted":
        if made.outcome == REFUSED:
            wrong.append(f"a wrong input is converted, expected an error like {made.says!r}: {done.out[-400:]}")
        for note in made.notes:
            if not re.search(note, re.sub(r" +", " ", done.out + done.err)):
                wrong.append(f"{done.what} does not say {note!r}: {done.out[-500:]}")
        wrong += of_the_counts(done, kind, made.found if made.outcome != EITHER else None)
        if made.wanted is not None and made.outcome != REFUSED:
            wrong += stored.wrong(prefix, made.wanted, "bytes" in made.words)
        verified = run([CONVERTER, "verify", prefix])
        wrong += of_the_verification(verified)
        if train_too and not wrong and can_be_trained(prefix, kind, done.out):
            wrong += of_the_training(prefix, place, draw, "one")
    if kind in ("images", "import") and outcome in ("converted", "refused"):
        wrong += of_other_runs(made, done, prefix, place, draw)
    if made.twin is not None and outcome in ("converted", "refused"):
        wrong += of_the_twin(made, done, prefix, place)
    return outcome, wrong


def of_the_verification(done):
    wrong = of_the_words(done)
    if done.code != 0:
        wrong.append(f"verify finds a fault in what was just made: {done.out.strip()[-200:]} {done.err.strip()[:200]}")
    return wrong


def of_other_runs(made, done, prefix, place, draw):
    """The same words on other ranks or threads: the same bytes, or the same error."""
    ranks, threads = draw.choice([(2, 1), (2, 2), (1, 1), (1, 3), (1, 4)])
    other = place / "other" / "set"
    again = convert(made.words, other, ranks, "--threads", threads)
    wrong = of_the_words(again)
    if again.code != done.code:
        wrong.append(f"exit code {again.code} on {ranks} ranks x {threads} threads, {done.code} otherwise: {again.err.strip()[:300]}")
    elif {k: v for k, v in content_of(other).items() if k.endswith(".h5")} != {k: v for k, v in content_of(prefix).items() if k.endswith(".h5")}:
        wrong.append(f"other bytes on {ranks} ranks x {threads} threads")
    elif done.code == 1 and again.err.splitlines()[-2:] != done.err.splitlines()[-2:] and ranks == 1:
        wrong.append(f"another message with {threads} threads: {again.err.strip()[:200]}")
    return wrong


def of_the_twin(made, done, prefix, place):
    """A tar file of a folder, or tar files of its classes: the same pictures, labels and counts."""
    twin = place / "twin" / "set"
    again = convert(made.twin, twin)
    wrong = of_the_words(again)
    if made.twin_refused:
        if again.code == 0:
            return [*wrong, f"a wrong tar file is converted, expected an error like {made.twin_refused!r}"]
        return wrong + of_a_refusal(again, Made([]), made.twin[1], made.twin_refused)
    if again.code != done.code:
        return [*wrong, f"exit code {again.code} from the tar file, {done.code} from its folder: {(again.err or done.err).strip()[:300]}"]
    if done.code != 0:
        return wrong

    def strip(records):
        return sorted((split, key.replace(".tar/", "/"), label, numpy.shape(content), bytes(content)) for split, key, label, content in records)
    if strip(stored.records_of(twin)) != strip(stored.records_of(prefix)):
        wrong.append(f"other data from the tar file than from its folder: {again.out[-300:]}")
    # The counts are the same, apart from the path of an example.
    lines = [sorted(re.sub(", such as.*", "", line) for line in re.findall(r"^(?:files|left out|broken) +\d.*", each.out, re.M)) for each in (done, again)]
    if lines[0] != lines[1]:
        wrong.append(f"other counts from the tar file: {lines}")
    return wrong


def of_a_shard(shard, place, draw):
    """verify and train must agree about a changed data set."""
    verified = run([CONVERTER, "verify", shard.prefix])
    trained = train(shard.prefix, place / "run", draw.choice([1, 1, 2]))
    wrong = of_the_words(verified) if verified.code in (0, None) else [w for w in of_the_words(verified) if "errors" not in w]
    wrong += of_the_words(trained)
    outcome = {(0, 0): "both accept", (1, 1): "both refuse", (1, 0): "only verify refuses"}.get((verified.code, trained.code), "only train refuses")
    if outcome == "only train refuses":
        wrong.append(f"verify finds nothing, but training does: {trained.err.strip()[:300]}")
    if outcome == "only verify refuses" and not shard.only_verify:
        wrong.append(f"training accepts what verify refuses: {(verified.out + verified.err).strip()[-300:]}")
    if shard.same:
        if outcome != "both accept":
            wrong.append(f"a harmless change is refused: {(verified.out + verified.err + trained.err).strip()[-300:]}")
        elif not wrong:
            before = train(shard.unchanged, place / "run-before")
            try:
                assert before.code == 0, before.err
                e2e.assert_close(place / "run-before", place / "run")
            except AssertionError as error:
                wrong.append(f"the training differs from that of the unchanged data: {str(error)[:200]}")
    elif shard.says:
        if outcome == "both accept":
            wrong.append(f"a wrong data set is accepted, expected an error like {shard.says!r}")
        for done in [verified] + [trained] * (outcome == "both refuse"):
            if not re.search(shard.says, re.sub(r"\s+", " ", done.out + done.err)):
                wrong.append(f"{done.what} does not say {shard.says!r}: {(done.out + done.err).strip()[-300:]}")
    return outcome, wrong


def clear(place):
    shutil.rmtree(place, ignore_errors=True)
