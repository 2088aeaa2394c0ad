"""Names and texts as people have them: separators, quotes, line ends, encodings and Unicode's forms. Every row that is
read is kept, or dropped for a reason that is printed."""
import re
import subprocess
import unicodedata

import h5py
import pytest
from conftest import CONVERTER, HANG_SECONDS, PROGRAM


def convert(kind, source, *options):
    return subprocess.run([CONVERTER, kind, source, "--out", source.parent / "made", "--force", *options], capture_output=True, text=True)


def names_of(tmp_path, name, content, *options):
    """Converts a file and returns the names that the data set knows and what was printed. Checks the count of rows."""
    source = tmp_path / name
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = convert("names", source, "--alphabet", "auto", *options)
    assert done.returncode == 0, done
    kept, read = map(int, re.search(r"^kept +(\d+) of (\d+)", done.stdout, re.M).groups())
    assert kept + sum(map(int, re.findall(r"^dropped +(\d+)", done.stdout, re.M))) == read, done.stdout
    with h5py.File(tmp_path / "made-train-00000-of-00002.h5") as f:
        offsets, data = f["name_offsets"][:], bytes(f["names"][:])
    return sorted(data[a:b].decode() for a, b in zip(offsets, offsets[1:])), done.stdout


BM = ["bella", "max"]


@pytest.mark.fast_cases()  # each case has its own rule
@pytest.mark.parametrize("name, content, expected", [
    ("semicolon.csv", "name;price, EUR\nBella;3,50\nMax;2,00\n", BM),
    ("tab.tsv", "name\tcity, state\nBella\tBonn\nMax\tUlm\n", BM),
    ("tab.csv", "name\tcity, state\nBella\tBonn\nMax\tUlm\n", BM),
    ("pipe.csv", "id|name|x\n1|Bella|a,b\n2|Max|c\n", BM),
    ("pipe.psv", "id|name\n1|Bella\n2|Max\n", BM),
    ("tabs_in_semicolons.tsv", "name;a\tb\nBella;1\t2\nMax;3\t4\n", BM),
    ("semicolon.tsv", "id;name\n1;Bella\n2;Max\n", BM),
    ("comma.csv", "name,x;y\nBella,1;2\nMax,3\n", BM),
    ("Owner.CSV", "id;pet name\n1,5;Bella\n2,5;Max\n", BM),
    ("sep.csv", "sep=;\nname;x\nBella;1\nMax;2\n", BM),
    ("sep_mark.csv", "\ufeffsep=;\r\nname;x\r\nBella;1,5\r\nMax;2,5\r\n", BM),
    ("sep_tab.csv", "SEP=\\t\nname\tx\nBella\t1\nMax\t2\n", BM),
    ("sep_quoted.csv", '"sep=|"\nname|x\nBella|1\nMax|2\n', BM),
    ("quote.tsv", 'id\tname\n1\tBella\n2\t"Big Mac\n3\tMax\n4\tLuna\n5\tO"Neil\n6\tRex\n',
     ['"big mac', "bella", "luna", "max", 'o"neil', "rex"]),
    ("elsewhere.tsv", 'name\tcity\nBella\tBonn\nMax\t"Bonn\nLuna\tUlm\nRex\t"Jena\nBen\tUlm\n', ["bella", "ben", "luna", "max", "rex"]),
    ("quoted.tsv", 'note\tname\n"two\nlines"\tBella\n"a\ttab"\tMax\n', BM),
    ("quoted_end.tsv", 'name\tnote\nBella\t"two\nlines"\nMax\tx\n', BM),
    ("line_ends.csv", "name,x\nBella,1\rMax,2\rZoe,3\n", ["bella", "max", "zoe"]),
    ("mac.csv", "name,x\rBella,1\rMax,2", BM),
    ("mac.txt", "Bella\rMax\r", BM),
    ("mixed.txt", "Bella\r\nMax\rZoe\nAnn", ["ann", "bella", "max", "zoe"]),
    ("windows.csv", 'name,note\r\nBella,"two\r\nlines"\r\nMax,x\r\n', BM),
    ("spaces.csv", '"id", "name"\n"1", "Bella"\n"2", "Max" \n', BM),
    ("header.csv", '\ufeff" NAME ",x\nBella,1\nMax,2\n', BM),
    ("marks.csv", "\ufeff\ufeff'Name'\u200b,x\nBella,1\nMax,2\n", BM),
    ("title.csv", '"Pet\nName",x\nBella,1\nMax,2\n', BM),
    ("doubled.csv", 'name,x\n"Bo ""the"" dog",1\nO"Neil,2\n', ['bo "the" dog', 'o"neil']),
    ("end.csv", "name,x\nBella,1\nMax,2\n\x1a", BM),
    ("comment.csv", "# from a shelter\nname,x\nBella,1\n# the end\nMax,2\n\n", BM),
    ("trailing.csv", "name,x\nBella,1,\nMax,2,,\n", BM),
    ("comment.txt", "# names\nBella\nMax\n", BM),
    ("pandas.csv", ",pet name\n0,Bella\n1,Max\n", BM),
    ("unnamed.csv", "name,\nBella,1\nMax,2\n", BM),
    ("one.csv", "name\n\"Bella, the dog\"\nMax\n", ["bella, the dog", "max"]),
    ("hashtag.csv", "name,x\n#Hashtag,1\n#over\nMax,2\n", ["#hashtag", "max"]),
])
def test_all_names_of_a_table(tmp_path, name, content, expected):
    assert names_of(tmp_path, name, content)[0] == expected


@pytest.mark.parametrize("name, content, options, expected", [
    ("a.csv", "name;x,name\nBella;1,Rex\nMax;2,Ben\n", ["--separator", ";"], BM),
    ("a.csv", "name;x,name\nBella;1,Rex\nMax;2,Ben\n", ["--separator", "comma"], ["ben", "rex"]),
    ("a.txt", "id name\n1 Bella\n2 Max\n", ["--separator", "space"], BM),
    ("a.txt", "name\x01x\nBella\x011\nMax\x012\n", ["--separator", "\x01"], BM),
    ("a.csv", "Bella,1\nMax,2\n", ["--no-header", "--column", "1"], BM),
    ("a.csv", "Bella\nMax\n", ["--no-header"], BM),
    ("a.csv", "name,name\nRex,Bella\nBen,Max\n", ["--column", "2"], BM),
    ("a.csv", 'name,x\n"Bella,1\nMax,2\n', ["--no-quotes"], ['"bella', "max"]),
    ("a.txt", "Smith, Bella\nMiller, Max\n", [], ["miller, max", "smith, bella"]),
    ("a.txt", "a|b\nc|d\n", ["--separator", "none"], ["a|b", "c|d"]),
    ("a.csv", "Names 2024;;\n\nName;x;y\nBella;1;2\nMax;1;2\n", ["--header-line", "3"], BM),
    ("a.csv", "sep=;\nNames 2024;;\nName;x;y\nBella;1;2\nMax;1;2\n", ["--header-line", "3"], BM),
    ("a.csv", "pet name,\nBella,1\nMax,2\n", ["--header-line", "1"], BM),
])
def test_options_of_tables(tmp_path, name, content, options, expected):
    assert names_of(tmp_path, name, content, *options)[0] == expected


@pytest.mark.parametrize("content, reason", [
    ("name,note\nBella,nice, dog\nMax,x\nRex,y\n", "1 record with more fields than the header, such as line 2"),
    ("x,name\n1,Max\n2\n3,Rex\n", "1 record without that column, such as line 3"),
    ("name,x\nMax,1\n\nRex,2\n", "1 blank line, such as line 3"),
    ("name,x\nMax,1\nA\0B,1\nRex,2\n", "1 control character"),
    ("name,x\nMax,1\n\ufffd,1\nRex,2\n", "1 symbol U+FFFD"),
    (b"name,x\nMax,1\nM\xfcller,1\nRex,2\n", "1 not valid UTF-8, such as 'M?ller'"),
    ("name,x\nMax,1\n#NV,1\n#DIV/0!,2\n", "2 error value of a spreadsheet, such as '#NV', '#DIV/0!'"),
    ("name,x\nMax,1\n#\u00dcBERLAUF!,1\n####,2\n", "2 error value of a spreadsheet"),
    ("name,x\nMax,1\nname,x\nRex,2\n", "1 header that occurs again, such as line 3"),
    ("\ufeffname,x\nMax,1\n\ufeffname,x\nRex,2\n", "1 header that occurs again, such as line 3"),
    ("name,x\nMax,1\n" + "\u00e9" * 101 + ",1\nRex,2\n", "1 longer than 100 symbols"),
])
def test_what_is_dropped_is_counted(tmp_path, content, reason):
    assert reason in names_of(tmp_path, "a.csv", content)[1]


def test_lines_above_the_header_are_counted(tmp_path):
    said = names_of(tmp_path, "a.csv", "Names;;\n\nName;x;y\nBella;1;2\n Max ;1;2\n", "--header-line", "3")[1]
    assert "2 line above the header (--header-line), such as line 1, line 2" in said
    assert "lines       5: 4 rows, 1 of the header" in said and "changed     1 names: spaces at the ends were removed" in said


def test_a_short_row_is_said(tmp_path):
    names, said = names_of(tmp_path, "a.csv", "name,x,y\nBella\nMax,1,2\n")
    assert names == BM and "1 rows have fewer fields than the header (first line 2)" in said


def test_a_long_line_is_cut_between_symbols(tmp_path):
    assert "1 longer than 100 symbols" in names_of(tmp_path, "a.txt", "Bella\n" + "x" + "\u00e9" * 80000 + "\nMax\n")[1]


@pytest.mark.parametrize("name, content, says", [
    ("a.csv", "name;x,name\nBella;1,Rex\nMax;2,Ben\n", "separated by ',' or ';'"),
    ("a.csv", "name\nBella;3\nMax;4\n", "the header has one field, but 2 of 2 lines after it have 2 fields separated by ';'"),
    ("a.csv", 'name,x\n"Bella,1\nMax,2\n', "line 2: a quoted field never ends"),
    ("a.csv", 'id,name\n1,Rex\n2,"Big Mac\n5,O"Neil\n', "followed by 'Neil'"),
    ("a.csv", "name,price\nBella,3,50\nMax,2,00\n", "2 of 2 rows have more fields than the header"),
    ("a.csv", "Bella,1\nMax,2\n", "--no-header"),
    ("a.csv", "name,name\nRex,Bella\n", "more than one column is called 'name': 'name' (number 1), 'name' (number 2)"),
    ("a.csv", "Nr,Owner name,Pet name\n1,Rex,Bella\n",
     "more than one column contains 'name': 'Owner name' (number 2), 'Pet name' (number 3)"),
    ("a.csv", "Names 2024;;\n\nName;x;y\nBella;1;2\nMax;1;2\n", "line 1 looks like a title; the header seems to be line 3"),
    ("a.csv", "Names 2024\n\nName;x;y\nBella;1,5;2\nMax;1;2\n", "line 1 looks like a title; the header seems to be line 3"),
    ("a.csv", "sep=;\nNames 2024\nName;x;y\nBella;1;2\n", "line 2 looks like a title; the header seems to be line 3"),
    ("a.txt", "id\tname\n1\tBella\n2\tMax\n", "--column"),
    ("a.txt", "Bella;1\nMax;2\n", "--column"),
    ("yob1990.txt", "Mary,F,7065\nAnna,F,2604\nEmma,F,2003\n", "separated by ','"),
    ("a.txt", "Mary,7065\nAnna,2604\nEmma,2003\n", "separated by ','"),
    ("a.txt", "".join(f"{name}{i},{'FM'[i % 2]}\n" for name in ("Mary", "John") for i in range(10)), "separated by ','"),
    ("a.txt", '"Bella",\n"Max",\n"Rex",\n', "separated by ','"),
    ("a.txt", "Bella,F,7065\nMax,M,2604\n", "a number, with --no-header, if the first line is a record"),
    ("a.csv", "name:x\nBella:3\nMax:2\nRex:1\n", "may be separated by ':'"),
    ("a.csv", "Name      Art\nBella     dog\nMax       cat\n", "look like columns of a fixed width"),
    ("a.xls", "\n<HTML><table><tr><td>Bella</td></tr>\n<tr><td>Max</td></tr></table></html>\n", "is HTML or XML, expected names"),
    ("a.txt", '[\n {"name": "Bella"},\n {"name": "Max"}]\n', "is JSON, expected names"),
    ("a.txt", "BEGIN:VCARD\nFN:Bella\nEND:VCARD\n", "is a vCard, expected names"),
    ("a.txt", "J\u00f6rg\nJos\u00e9\n".encode() + "J\u00f6rn\nZo\u00e9\n".encode("latin-1"), "seems to mix two encodings"),
    ("a.txt", "Mary    F   7065\nAnna    F   2604\nEmmaline F  2003\n", "columns of a fixed width"),
    ("a.txt", 'Name;Kind;Note\nBella;dog;"two\nlines"\nMax;cat;x\nRex;dog;"three\nmore\nlines"\n', "separated by ';'"),
    ("a.txt", 'Name\tKind\tNote\nBella\tdog\t"two\nlines"\nMax\tcat\tx\nRex\tdog\t"three\nmore\nlines"\n', "separated by tabs"),
    ("a.txt", "Pets 2024;;\nName;Kind;Note\nBella;dog;x\nMax;cat;x\n", "separated by ';'"),
    ("a.txt", "Pets 2024\nName,Kind,Note\nBella,dog,x\nMax,cat,x\n", "separated by ','"),
    ("a.txt", "Pets\n" * 200 + "Bella\tdog\n" * 300, "separated by tabs"),
    ("a.csv", "", "is empty"),
    ("a.txt", "", "no names are left"),
    ("a.txt", b"\x80\x81\x82", "no names are left (1 read; dropped: 1 not valid UTF-8)"),
    ("a.txt", "M\u00fcller\nJos\u00e9\nAnna\n".encode("latin-1"), "iconv -f WINDOWS-1252"),
    ("a.csv", "name;x\nM\u00fcller;1\nJos\u00e9;2\nAnna;3\n".encode("cp1252"), "iconv -f WINDOWS-1252"),
    ("a b.csv", "name;x\nM\u00fcller;1\nJos\u00e9;2\n".encode("cp1252"), "a b-utf8.csv' && bin/ringtrain-data names"),
    ("a.txt", "M\u00fcller\nK\u00e4the\nJ\u00f6rg\n".encode("cp850"), "iconv -f CP850"),
    ("a.txt", "M\u00fcller\nK\u00e4the\nJ\u00f6rg\n".encode("mac-roman"), "iconv -f MACINTOSH"),
    ("a.txt", "\u201eAnna\u201c\n\u201eM\u00fcller\u201c\n".encode("cp1252"), "iconv -f WINDOWS-1252"),
    ("a.txt", "Name\tx\nM\u00fcller\t1\n".encode("utf-16"), "a-utf8.tsv && bin/ringtrain-data names"),
    ("a.csv", "name;x\nM\u00fcller;1\nAnna;3\n".encode("utf-16"), "UTF-16"),
    ("a.csv", "name;x\nM\u00fcller;1\nAnna;3\n".encode("utf-16-le"), "iconv -f UTF-16LE"),
    ("a.csv", "name;x\nM\u00fcller;1\nAnna;3\n".encode("utf-16-be"), "iconv -f UTF-16BE"),
    ("a.txt", "\u0418\u0432\u0430\u043d\n\u041e\u043b\u044c\u0433\u0430\n".encode("utf-16-le"), "iconv -f UTF-16LE"),
    ("a.txt", "Bella\nMax\n".encode("utf-32"), "UTF-32"),
    ("a.txt", "Bella\nMax\n".encode("utf-32-le"), "iconv -f UTF-32LE"),
    ("a.txt", "Bella\nMax\n".encode("utf-32-be"), "iconv -f UTF-32BE"),
    ("a.csv", b"PK\x03\x04" + bytes(60), ".xlsx"),
    ("a.zip", b"PK\x03\x04" + bytes(60), "unzip"),
    ("a.csv", b"\x1f\x8b\x08" + bytes(60), "gzip"),
])
def test_what_cannot_be_read_is_one_error(tmp_path, name, content, says):
    source = tmp_path / name
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = convert("names", source)
    assert done.returncode == 1 and says in done.stderr and done.stderr.count("error:") == 1, done
    assert not list(tmp_path.glob("made*"))


def test_the_advice_for_an_encoding_repeats_the_options(tmp_path):
    (tmp_path / "a.csv").write_bytes("pet;x\nM\u00fcller;1\nJos\u00e9;2\n".encode("cp1252"))
    done = convert("names", tmp_path / "a.csv", "--column", "pet", "--separator", ";")
    assert f"names --column pet --separator ';' --out {tmp_path}/made --force {tmp_path}/a-utf8.csv" in done.stderr, done


def test_one_name_has_one_form(tmp_path):
    forms = ["Zo\u00eb", "Zoe\u0308", "Zo\u200b\u00eb", "\u200eZo\u00eb\u00ad", "Anna Lea", "Anna\u00a0Lea", "An\u200dna\ufeff Lea"]
    names, said = names_of(tmp_path, "a.txt", "\n".join(forms) + "\n")
    assert names == ["anna lea", "zo\u00eb"]
    for line in "1 names to Unicode's composed form", "3 names: invisible symbols", "1 names: no-break":
        assert re.search(rf"^changed +{line}", said, re.M), said
    persian = "\u0645\u06cc\u200c\u062e\u0648"  # here the joiner shapes letters
    assert persian in names_of(tmp_path, "b.txt", persian + "\nMax\n")[0]


def text_of(tmp_path, content, *options):
    source = tmp_path / "a.txt"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = convert("text", source, "--validation", "0", "--shards", "1", *options)
    if done.returncode != 0:
        assert done.returncode == 1 and done.stderr.count("error:") == 1, done
        return None, done.stderr
    with h5py.File(tmp_path / "made-train-00000-of-00001.h5") as f:
        symbols = [s.decode() if isinstance(s, bytes) else s for s in f["tokens"].attrs["vocab"]]
        return "".join(symbols[i] for i in f["tokens"][:]), done.stdout


def test_running_text_has_one_form(tmp_path):
    plain = "caf\u00e9 na\u00efve \ud55c\n" * 3
    text, said = text_of(tmp_path, "\ufeff" + unicodedata.normalize("NFD", plain).replace("\n", "\r\n"))
    assert text == plain and "3 line ends" in said and "(NFC); 12 symbols fewer" in said
    text, said = text_of(tmp_path, "a\rb\r\nc\ufeffd\u00ade\x1a")
    assert text == "a\nb\ncd\u00ade" and "2 line ends" in said and "1 times the symbol U+00AD" in said
    assert "1 byte-order mark(s), 1 end-of-file mark(s)" in said


@pytest.mark.parametrize("content, says", [
    (("to be or not\n" * 500).encode("utf-16-le"), "iconv -f UTF-16LE"),
    (("to be or not\n" * 500).encode("utf-16-be"), "iconv -f UTF-16BE"),
    (("\u0418\u0432\u0430\u043d \u0438 \u041e\u043b\u044c\u0433\u0430\n" * 50).encode("utf-16-le"), "iconv -f UTF-16LE"),
    (("\u4f60\u597d\u4e16\u754c " * 300).encode("utf-16-le"), "iconv -f UTF-16LE"),
    (("to be or not\n" * 500).encode("utf-32-le"), "iconv -f UTF-32LE"),
    ("caf\u00e9, na\u00efve\n".encode("latin-1"), "iconv -f WINDOWS-1252"),
    ("caf\u00e9, na\u00efve\n".encode() + b"\xff", "byte 14 (line 2) is not valid UTF-8; so are 1 in all"),
    (b"zero" + bytes(4000), "4000 zero bytes, the first at byte 4"),
    (b"a few\0 bytes\n", "1 zero bytes, the first at byte 5"),
    (b"\x1f\x8b\x08" + bytes(60), "gzip"),
])
def test_texts_that_are_refused(tmp_path, content, says):
    text, said = text_of(tmp_path, content)
    assert text is None and says in said, said


def plan_of_text(tmp_path, characters, *options):
    source = tmp_path / "a.txt"
    source.write_text("abcdefghi\n" * (characters // 10) + "z" * (characters % 10))
    assert convert("text", source, "--validation", "0").returncode == 0
    (tmp_path / "a.yaml").write_text(f"name: a\nmodel: {{kind: char_lstm}}\ndata: {{train: {tmp_path}/made-train}}\n"
                                     "batch: {worker: 1}\noptimizer: {kind: sgd}\nlearning_rate: {base: 0.1}\nstop: {steps: 1}\n")
    return subprocess.run([PROGRAM, "plan", tmp_path / "a.yaml", *options], capture_output=True, text=True)


@pytest.mark.parametrize("order, says", [
    ("windows", "use a data.sequence of at most 30, or more text"), ("streams", "use a data.sequence of at most 59, or more text")])
def test_a_short_text_names_the_key_that_helps(tmp_path, order, says):
    done = plan_of_text(tmp_path, 60, f"data.order={order}", "data.sequence=64", "batch.global=1")
    assert done.returncode != 0 and "has 60 characters" in done.stderr and says in " ".join(done.stderr.split()), done


def test_the_advice_for_a_short_text_works(tmp_path):
    for order, batch, sequence in ("windows", 5, 10), ("streams", 5, 11):
        done = plan_of_text(tmp_path, 60, f"data.order={order}", f"data.sequence={sequence}", "batch.global=9")
        assert f"batch.global of at most {batch}" in " ".join(done.stderr.split()), done
        good = plan_of_text(tmp_path, 60, f"data.order={order}", f"data.sequence={sequence}", f"batch.global={batch}")
        assert good.returncode == 0, good


@pytest.mark.parametrize("order, last_batch, says", [
    ("streams", "drop", "170 of the text's 570 targets are never read"), ("windows", "drop", "170 of the text's 570 targets are not read in an epoch"),
    ("windows", "smaller", "70 of the text's 570 targets are not read in an epoch")])
def test_characters_that_are_never_read_are_counted(tmp_path, order, last_batch, says):
    done = plan_of_text(tmp_path, 571, f"data.order={order}", f"data.last_batch={last_batch}", "data.sequence=100", "batch.global=4")
    assert done.returncode == 0 and says in " ".join(done.stdout.split()), done


def test_a_text_with_zero_bytes_is_trained_and_resumed(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab\0\xff\n" * 60)
    assert convert("text", tmp_path / "a.txt", "--alphabet", "bytes").returncode == 0
    (tmp_path / "a.yaml").write_text(
        f"name: a\nmodel: {{kind: char_lstm, hidden: 8, layers: 1}}\ndata: {{train: {tmp_path}/made-train, sequence: 8}}\nbatch: {{global: 2, worker: 2}}\n"
        f"optimizer: {{kind: sgd}}\nlearning_rate: {{base: 0.1}}\nstop: {{steps: 2}}\nrun: {{dir: {tmp_path}/run, threads: 1}}\n")
    for words in (["train", tmp_path / "a.yaml"], ["train", tmp_path / "a.yaml", "stop.steps=4", "--resume"],
                  ["sample", tmp_path / "run", "--count", "1"]):
        done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, (words, done)


def test_a_header_line_below_the_end_of_the_file_is_an_error_that_says_how_long_the_file_is(tmp_path):
    (tmp_path / "a.csv").write_text("name,x\nBella,1\nMax,2\n")
    done = convert("names", tmp_path / "a.csv", "--header-line", "1000")
    assert done.returncode == 1 and "a.csv: has no header at line 1000 or below (--header-line); it has 3 lines" in done.stderr, done


@pytest.mark.parametrize("options, names", [([], None), (["--no-header"], 3), (["--header-line", "1"], 2)])
def test_a_header_that_holds_a_number_may_be_a_record(tmp_path, options, names):
    (tmp_path / "a.txt").write_text("Bella,F,7065\nMax,M,2604\nRex,M,2003\n")
    done = convert("names", tmp_path / "a.txt", "--column", "1", *options)
    if names is None:
        assert done.returncode == 1 and "its first record is taken for the header, but holds the number 7065" in done.stderr, done
    else:
        assert done.returncode == 0 and f"kept        {names} of {names}" in done.stdout, done


def test_names_that_are_numbers_are_warned_of(tmp_path):
    said = names_of(tmp_path, "a.csv", "Number;Title;name\nBella;dog;1\nMax;cat;2\n")[1]
    assert "warning     2 of 2 distinct names are numbers: is this the right column (--column)?" in said


def test_a_first_line_that_says_name_is_warned_of(tmp_path):
    names, said = names_of(tmp_path, "a.txt", "Name\nBella\nMax\n")
    assert len(names) == 3 and "the first line, 'Name', is taken for a name; if it is a header, give --column 1" in said


def test_a_last_name_and_a_first_name_are_one_name(tmp_path):
    names, _ = names_of(tmp_path, "a.txt", "Kahlo, Frida\nCurie, Marie\nNoether, Emmy\n")
    assert names == ["curie, marie", "kahlo, frida", "noether, emmy"]
    siblings = [f"Bach, {first} {i}" for first in ("Anna", "Carl") for i in range(10)]
    assert len(names_of(tmp_path, "b.txt", "\n".join(siblings))[0]) == 20


@pytest.mark.parametrize("lines, warns", [(20, True), (3, False)])
def test_a_field_that_goes_on_for_many_lines_is_warned_of(tmp_path, lines, warns):
    swallowed = "".join(f"Bob{chr(97 + i)},1\n" for i in range(lines))
    names, said = names_of(tmp_path, "q.csv", f'name,x\nAnna,1\nOpen,"1\n{swallowed}Close,1"\nCyd,1\n')
    assert names == ["anna", "cyd", "open"]
    assert (f"warning     a quoted field of line 3 goes on for {lines + 1} more lines" in said) == warns, said
