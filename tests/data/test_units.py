"""Which text files are lists of documents."""

import random

import pytest

from chainrule.config import DataConfig
from chainrule.data.corpus import prepare
from chainrule.data.units import guess_unit

RNG = random.Random(0)
SYLLABLES = ["ba", "lo", "mi", "ra", "ste", "no", "ka", "vin", "el", "u", "tor", "qui", "ze"]


def word():
    return "".join(RNG.choices(SYLLABLES, k=RNG.randrange(2, 6)))


def text(lines):
    return "\n".join(lines) + "\n"


NAMES = text([f"{word().title()} {word().title()}" for _ in range(1500)])
SENTENCES = text([" ".join(word() for _ in range(RNG.randrange(5, 20))) + " ." for _ in range(1500)])
VERSE = text([" ".join(word() for _ in range(7)) + "," for _ in range(1500)])
CODE = text([f"{'    ' * RNG.randrange(3)}{word()} = {word()}({word()})" for _ in range(1500)])
LOG = text([f"2024-05-01 12:00:{n % 60:02d} {word()} {word()} {n}" for n in range(1500)])
DNA = text(["".join(RNG.choices("ACGT", k=60)) for _ in range(1500)])
POEM = text(["".join(RNG.choices("春花秋月何時了往事知多少小樓昨夜又東風", k=5)) for _ in range(1500)])
CHINESE_NAMES = text(["".join(RNG.choices([chr(n) for n in range(0x4E00, 0x5200)], k=3)) for _ in range(1500)])


@pytest.mark.parametrize("sample", [NAMES, CHINESE_NAMES, NAMES.replace("\n", "\r\n")])
def test_a_list_of_names_is_documents_and_says_so(sample):
    found = guess_unit(sample)
    assert found.unit == "documents"
    assert "one document per line; --set data.unit=stream" in found.note


@pytest.mark.parametrize(
    "sample",
    [CODE, LOG, DNA, VERSE, POEM, NAMES.replace("\n", "\n\n"), NAMES[:5000], text(NAMES.split("\n")[:100] * 15), ""],
)
def test_other_texts_are_streams_without_a_note(sample):
    assert guess_unit(sample) == ("stream", None)


@pytest.mark.parametrize("sample", [SENTENCES])
def test_lines_that_may_be_documents_stay_a_stream_with_a_note(sample):
    found = guess_unit(sample)
    assert found.unit == "stream"
    assert "--set data.unit=documents" in found.note


def test_the_unit_of_a_list_is_recognised_kept_and_can_be_changed(tmp_path):
    (tmp_path / "names.txt").write_text(NAMES)
    found = prepare(DataConfig(train=str(tmp_path / "names.txt")), "chars")
    assert found.train.unit == found.valid.unit == found.config.unit == "documents"
    (note,) = found.warnings
    assert "names.txt' is read as a list" in note
    stream = prepare(DataConfig(train=str(tmp_path / "names.txt"), unit="stream"), "chars")
    assert stream.train.unit == "stream"
    assert stream.warnings == ()


@pytest.mark.parametrize("spec", ["builtin:prose", "builtin:python"])
def test_builtin_texts_are_streams(source, spec):
    assert source(spec).unit == "stream"
    assert guess_unit(next(source(spec).pieces())) == ("stream", None)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("tinyshakespeare", "input.txt"), ("ptb", "ptb.train.txt.gz"), ("wikitext-2", "train.txt.gz")],
)
def test_benchmarks_are_streams_without_a_note(real_data, source, folder, name):
    found = source(real_data(folder) / name)
    assert found.unit == "stream"
    assert found.warnings == ()
