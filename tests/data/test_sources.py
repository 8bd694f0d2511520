import bz2
import gzip
import io
import json
import lzma
import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.data import text
from chainrule.data.source import clip, cut
from chainrule.data.splits import Part
from chainrule.errors import DataError, MissingExtra

TEXT = "Äpfel und Birnen\n\n  eingerückt\r\nletzte Zeile ohne Ende"


def message(source, spec, **settings) -> str:
    """Return the error of reading a spec."""
    with pytest.raises(DataError) as caught:
        list(source(spec, **settings).pieces())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.txt", bytes),
        ("a.txt.gz", gzip.compress),
        ("a.txt.xz", lzma.compress),
        ("a.txt.bz2", bz2.compress),
        ("a.txt.zst", zstd),
    ],
)
def test_compressed_files_are_read_like_plain_ones(tmp_path, source, name, pack):
    (tmp_path / name).write_bytes(pack(TEXT.encode()))
    assert "".join(source(tmp_path / name).pieces()) == TEXT


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress), (".zst", zstd)]
)
def test_a_truncated_or_damaged_archive_is_named(tmp_path, source, suffix, pack):
    data = pack(os.urandom(1 << 18).hex().encode())
    (tmp_path / f"short{suffix}").write_bytes(data[: len(data) // 2])
    (tmp_path / f"wrong{suffix}").write_bytes(b"this is no archive at all")
    assert "truncated" in message(source, tmp_path / f"short{suffix}")
    damaged = message(source, tmp_path / f"wrong{suffix}")
    assert "damaged" in damaged
    assert f"wrong{suffix}" in damaged


def test_several_zstd_frames_are_one_text(tmp_path, source):
    (tmp_path / "a.zst").write_bytes(zstd(b"one\n" * 100_000) + zstd(b"two\n"))
    assert "".join(source(tmp_path / "a.zst").pieces()) == "one\n" * 100_000 + "two\n"


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("zstandard", "a.zst", "zstd"), ("pyarrow", "a.parquet", "parquet")]
)
def test_a_missing_extra_is_named(tmp_path, source, monkeypatch, module, name, extra):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"chainrule\[{extra}\]"):
        list(source(tmp_path / name).pieces())


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path, source):
    (tmp_path / "a.txt").write_text("\ufeffone\ufefftwo", encoding="utf-8")
    assert list(source(tmp_path / "a.txt").pieces()) == ["one\ufefftwo"]
    assert "".join(text.read_text(tmp_path / "a.txt", chunk=1)) == "one\ufefftwo"


def test_a_character_split_between_chunks_is_decoded(tmp_path, source, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXT * 3, encoding="utf-8", newline="")
    assert "".join(text.read_text(tmp_path / "a.txt", chunk=1)) == TEXT * 3


def test_a_folder_is_its_text_files_in_order_with_newlines_between(tmp_path, source):
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "a.txt").write_text("first")
    (folder / "b" / "c.txt.gz").write_bytes(gzip.compress(b"second\n"))
    (folder / "d.md").write_text("third")
    (folder / "empty.txt").write_text("")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / ".git" / "hidden.txt").write_text("hidden")
    everything = source(folder)
    assert "".join(everything.pieces()) == "first\nsecond\nthird"
    assert everything.warnings == (f"'{folder}': skipped 1 files that are not UTF-8 text, e.g. 'picture.png'",)


def test_a_glob_is_sorted_and_may_be_recursive(tmp_path, source):
    (tmp_path / "x").mkdir()
    for name in ("b.txt", "a.txt", "x/c.txt", "d.md"):
        (tmp_path / name).write_text(name + "\n")
    assert "".join(source(tmp_path / "*.txt").pieces()) == "a.txt\nb.txt\n"
    assert "".join(source(tmp_path / "**" / "*.txt").pieces()) == "a.txt\nb.txt\nx/c.txt\n"


def test_standard_input_is_read_twice(source, monkeypatch):
    text._spool.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    piped = source("-")
    assert list(piped.pieces()) == list(piped.pieces()) == [TEXT]
    text._spool.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert source("-").identity() == piped.identity()


def test_a_pipe_is_read_twice(tmp_path, source):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(TEXT.encode()))
    writer.start()
    piped = source(tmp_path / "pipe")
    writer.join()
    assert list(piped.pieces()) == list(piped.pieces()) == [TEXT]


def test_text_in_place_of_a_path_is_an_error(source):
    assert "give the path of a text file" in message(source, "It was the best of times\n" * 1000)


def test_lines_can_be_documents_and_empty_ones_are_skipped(tmp_path, source):
    (tmp_path / "a.txt").write_text("one\n\n two\n", newline="")
    assert source(tmp_path / "a.txt").unit == "stream"
    assert list(source(tmp_path / "a.txt", unit="documents").pieces()) == ["one", " two"]


RECORDS = [{"text": "one\nline"}, {"text": ""}, {"text": None}, {"text": "zwei ä"}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"])
def test_records_are_documents_by_default(tmp_path, source, name):
    path = tmp_path / name
    lines = "\n".join(json.dumps(record) for record in RECORDS).encode() + b"\n\n"
    if name == "a.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(RECORDS), path)
    else:
        path.write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    assert list(source(path).pieces()) == ["one\nline", "zwei ä"]
    assert "".join(source(path, unit="stream").pieces()) == "one\nline\n\n\nzwei ä\n"
    missing = message(source, path, field="txt")
    assert "no field 'txt', only text; did you mean data.field=text?" in missing
    assert name in missing


def test_another_field_may_contain_the_text(tmp_path, source):
    (tmp_path / "a.jsonl").write_text('{"body": "b", "text": "t"}\n')
    assert list(source(tmp_path / "a.jsonl", field="body").pieces()) == ["b"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"text": "a"', "not valid JSON"),
        ('["a"]', "is a list, not a record"),
        ('{"text": 3}', "contains 3, not text"),
        ('{"text": "\\ud800"}', "not valid Unicode"),
        ('{"Körper": "x"}', "no field 'text', only Körper; set data.field to the field with the text"),
    ],
)
def test_a_bad_record_is_named_by_its_line(tmp_path, source, line, complaint):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n", encoding="utf-8")
    found = message(source, tmp_path / "a.jsonl")
    assert found.startswith("line 2 of ")
    assert "a.jsonl" in found
    assert complaint in found


def test_a_broken_parquet_file_is_named(tmp_path, source):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    assert "a.parquet" in message(source, tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "contains no text"),
        (b"\xef\xbb\xbf", "contains no text"),
        (b"text\0more", "NUL byte at offset 4"),
        (b"caf\xe9 au lait", "invalid continuation byte at offset 3"),
        ("ä".encode() + b"\xc3", "unexpected end of data at offset 2"),
    ],
)
def test_what_is_not_text_is_named_with_the_offset(tmp_path, source, content, complaint):
    (tmp_path / "a.txt").write_bytes(content)
    found = message(source, tmp_path / "a.txt")
    assert complaint in found
    assert "a.txt" in found


def test_the_offset_of_a_bad_byte_counts_from_the_start_of_the_file(tmp_path):
    (tmp_path / "a.txt").write_bytes("ää".encode() + b"x\xff")
    with pytest.raises(DataError, match="offset 5"):
        list(text.read_text(tmp_path / "a.txt", chunk=1))


def test_the_error_for_a_missing_path_suggests_a_similar_one(tmp_path, source):
    (tmp_path / "shakespeare.txt").write_text("x")
    assert "did you mean" in message(source, tmp_path / "shakespear.txt")
    assert "there is no folder" in message(source, tmp_path / "nowhere" / "a.txt")
    assert "no file matches" in message(source, tmp_path / "*.csv")


def test_a_folder_without_text_is_an_error(tmp_path, source):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"\0")
    assert "contains no text files" in message(source, folder)


def test_text_and_records_do_not_mix(tmp_path, source):
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.txt").write_text("x")
    (folder / "b.jsonl").write_text("{}")
    assert "mixes text and records ('a.txt', 'b.jsonl')" in message(source, folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_read_permission_is_named(tmp_path, source):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.txt").chmod(0)
    assert "permission denied" in message(source, tmp_path / "a.txt")


def test_a_permission_error_is_explained(tmp_path, source, monkeypatch):
    (tmp_path / "a.txt").write_text("x")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("chainrule.data.compression._decompressed", refuse)
    assert "permission denied" in message(source, tmp_path / "a.txt")


def test_normalisation_is_off_by_default_and_follows_the_settings(tmp_path, source):
    (tmp_path / "a.txt").write_text("  a\u0301 \t b  \n\n\tc\r\n", encoding="utf-8", newline="")
    path = tmp_path / "a.txt"
    assert "".join(source(path).pieces()) == "  a\u0301 \t b  \n\n\tc\r\n"
    assert "".join(source(path, unicode="NFC").pieces()) == "  á \t b  \n\n\tc\r\n"
    assert "".join(source(path, squeeze_spaces=True).pieces()) == " a\u0301 b \n\n c\r\n"
    assert "".join(source(path, strip_ends=True).pieces()) == "a\u0301 \t b\n\nc\n"
    assert list(source(path, unit="documents", strip_ends=True).pieces()) == ["a\u0301 \t b", "c"]


def test_normalisation_does_not_depend_on_where_pieces_are_cut(tmp_path, source, monkeypatch):
    whole = "".join(f"  line {number}\t e\u0301 \n" if number % 3 else "x\n\n" for number in range(2000))
    (tmp_path / "a.txt").write_text(whole, encoding="utf-8")
    tidy = source(tmp_path / "a.txt", unicode="NFC", squeeze_spaces=True, strip_ends=True)
    uncut = "".join(tidy.pieces())
    monkeypatch.setattr("chainrule.data.source.cut", lambda chunks: cut(chunks, size=100, longest=1000))
    pieces = list(tidy.pieces())
    assert len(pieces) > 50
    assert "".join(pieces) == uncut == tidy.normalisation(whole)


@given(st.lists(st.text("ab \n", max_size=30)), st.integers(1, 20), st.integers(0, 40))
def test_cutting_keeps_the_text_and_bounds_the_pieces(chunks, size, more):
    longest = size + more
    pieces = list(cut(chunks, size, longest))
    assert "".join(pieces) == "".join(chunks)
    assert all(pieces)
    assert all(len(piece) < longest + 3 * size for piece in pieces)


def test_a_stream_is_cut_where_a_line_starts_that_is_not_indented():
    lines = "def f():\n    return 1\n\n" * 100
    pieces = list(cut([lines], size=250, longest=10_000))
    assert len(pieces) > 5
    assert all(piece.startswith("def") and piece.endswith("\n\n") for piece in pieces)


def test_a_very_long_line_is_split_in_a_stream_and_refused_as_a_document(tmp_path, source):
    (tmp_path / "a.txt").write_text("x" * (9 << 20))
    assert max(map(len, source(tmp_path / "a.txt").pieces())) == 8 << 20
    assert "too long for a document" in message(source, tmp_path / "a.txt", unit="documents")


@given(st.lists(st.text("abc", max_size=5)), st.integers(0, 20), st.integers(0, 20))
def test_clipping_gives_the_characters_of_the_part(pieces, start, length):
    clipped = list(clip(pieces, Part.of(start, start + length)))
    assert "".join(clipped) == "".join(pieces)[start : start + length]
    assert all(clipped)
