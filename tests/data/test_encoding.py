"""Encodings other than UTF-8 are named, with the command that converts them."""

import pytest

from chainrule.config import DataConfig
from chainrule.data.encoding import wide_encoding
from chainrule.data.labelled import read_labelled
from chainrule.data.squad import read_squad
from chainrule.errors import DataError

TEXT = "To be, or not to be:\nthat is the question.\n"


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32-le", "UTF-32LE"),
        ("utf-32-be", "UTF-32BE"),
    ],
)
def test_wide_encodings_are_recognised(tmp_path, source, encoding, name):
    assert wide_encoding(TEXT.encode(encoding)) == name
    (tmp_path / "a.txt").write_text(TEXT, encoding=encoding)
    with pytest.raises(DataError) as caught:
        list(source(tmp_path / "a.txt").pieces())
    assert f"a.txt' is {name} text; convert it to UTF-8, e.g. with iconv -f {name} -t UTF-8" in str(caught.value)


@pytest.mark.parametrize(
    "data", [TEXT.encode(), "日本語".encode(), b"", b"a", b"\0\0\0\0", b"text\0more", b"\x89PNG\0\0"]
)
def test_other_bytes_are_not_mistaken_for_them(data):
    assert wide_encoding(data) is None


def test_every_reader_names_the_encoding(tmp_path, source):
    (tmp_path / "a.tsv").write_text("good\t1\nbad\t0\n", encoding="utf-16")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n', encoding="utf-16")
    (tmp_path / "a.json").write_text('{"data": []}', encoding="utf-16")
    readers = [
        lambda: read_labelled(str(tmp_path / "a.tsv"), DataConfig(train="")),
        lambda: list(source(tmp_path / "a.jsonl").pieces()),
        lambda: read_squad(str(tmp_path / "a.json")),
    ]
    for read in readers:
        with pytest.raises(DataError, match="UTF-16 text"):
            read()
