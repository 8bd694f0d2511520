import errno
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from chainrule.config import DataConfig
from chainrule.data.cache import ABANDONED_AFTER, UNFINISHED, building
from chainrule.data.corpus import Corpus, encode_file, prepare
from chainrule.data.source import TextSource, count, split
from chainrule.data.splits import Part
from chainrule.data.token_files import token_type
from chainrule.errors import DataError
from chainrule.tokenizers import train_tokenizer
from chainrule.tokenizers.bytes import Bytes

LINES = "To be, or not to be:\nthat is the question.\n\nNaïve “quotes”\n"


@pytest.fixture
def path(tmp_path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(LINES, encoding="utf-8")
    return file


def tokenizer_of(text: str, spec: str = "chars"):
    return train_tokenizer(spec, lambda: [text])


def unreadable(monkeypatch) -> None:
    """Make any further reading of text fail the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("the source was read again")

    monkeypatch.setattr(TextSource, "pieces", refuse)


@pytest.mark.parametrize("spec", ["chars", "bytes", "words"])
def test_a_stream_is_encoded_as_one_text_would_be(path, source, spec):
    tokenizer = tokenizer_of(LINES, spec)
    corpus = Corpus.build(source(path), tokenizer)
    assert corpus.tokens.tolist() == tokenizer.encode(LINES).tolist()
    assert isinstance(corpus.tokens, np.memmap)
    assert corpus.offsets is None
    assert corpus.unit == "stream"


def test_the_type_of_the_tokens_is_the_smallest_that_holds_the_vocabulary(path, source):
    assert Corpus.build(source(path), tokenizer_of(LINES, "chars")).tokens.dtype == np.uint8
    assert Corpus.build(source(path), tokenizer_of(LINES, "bytes")).tokens.dtype == np.uint16
    assert [token_type(size) for size in (256, 257, 65536, 65537)] == [np.uint8, np.uint16, np.uint16, np.uint32]


def test_counts_are_of_the_text_and_not_of_the_tokens(path, source):
    corpus = Corpus.build(source(path), tokenizer_of("To be", "chars"))
    assert corpus.bytes == len(LINES.encode())
    assert corpus.characters == len(LINES)
    assert corpus.words == 12 + 4  # words and line ends
    assert corpus.unknown == sum(character not in "To be" for character in LINES)
    assert corpus.bytes_per_token == len(LINES.encode()) / len(LINES)


def test_documents_end_with_eos_and_have_offsets(path, source):
    tokenizer = tokenizer_of(LINES)
    corpus = Corpus.build(source(path, unit="documents"), tokenizer)
    documents = [line for line in LINES.split("\n") if line]
    assert corpus.unit == "documents"
    starts = corpus.offsets.tolist()
    assert starts == [0, *np.cumsum([len(line) + 1 for line in documents])]
    for start, end, line in zip(starts, starts[1:], documents, strict=False):
        assert corpus.tokens[start:end].tolist() == [*tokenizer.encode(line), tokenizer.eos]
    assert corpus.words == 12 + 3  # words and documents
    assert corpus.bytes == sum(len(line.encode()) + 1 for line in documents)  # with line ends


def test_buffers_are_written_in_order(path, source, monkeypatch):
    tokenizer = tokenizer_of(LINES)
    at_once = Corpus.build(source(path, unit="documents"), tokenizer, cache=path.parent / "one")
    monkeypatch.setattr("chainrule.data.token_files.BUFFER", 3)
    in_pieces = Corpus.build(source(path, unit="documents"), tokenizer, cache=path.parent / "two")
    assert in_pieces.tokens.tolist() == at_once.tokens.tolist()
    assert in_pieces.offsets.tolist() == at_once.offsets.tolist()


def test_a_second_build_does_not_read_the_source(path, source, monkeypatch):
    tokenizer = tokenizer_of(LINES)
    first = Corpus.build(source(path), tokenizer)
    unreadable(monkeypatch)
    second = Corpus.build(source(path), tokenizer)
    assert second.tokens.tolist() == first.tokens.tolist()
    assert second.fingerprint == first.fingerprint
    assert (second.bytes, second.characters, second.words) == (first.bytes, first.characters, first.words)


def test_a_second_preparation_does_not_read_the_source(path, monkeypatch):
    config = DataConfig(train=str(path), valid_fraction=0.3)
    first = prepare(config, "words")
    unreadable(monkeypatch)
    second = prepare(config, "words")
    assert second.train.fingerprint == first.train.fingerprint
    assert second.tokenizer.to_json() == first.tokenizer.to_json()


def test_every_change_of_the_tokens_changes_the_fingerprint(path, source):
    tokenizer = tokenizer_of(LINES)
    builds = [
        Corpus.build(source(path), tokenizer),
        Corpus.build(source(path), tokenizer_of(LINES, "bytes")),
        Corpus.build(source(path), tokenizer_of(LINES + "!")),
        Corpus.build(source(path), tokenizer, Part.of(0, 10)),
        Corpus.build(source(path, unit="documents"), tokenizer),
        Corpus.build(source(path, unicode="NFD"), tokenizer),
        Corpus.build(source(path, squeeze_spaces=True), tokenizer),
        Corpus.build(source(path, strip_ends=True), tokenizer),
    ]
    path.write_text(LINES.swapcase(), encoding="utf-8")
    os.utime(path, ns=(1, 1))  # the same size, another time
    builds.append(Corpus.build(source(path), tokenizer))
    assert len({corpus.fingerprint for corpus in builds}) == len(builds)


def test_the_fingerprint_includes_the_kind_of_tokenizer(path, source):
    class Other(Bytes):
        kind = "other"

    assert Bytes().to_json() == Other().to_json()
    assert Corpus.build(source(path), Bytes()).fingerprint != Corpus.build(source(path), Other()).fingerprint


@pytest.mark.parametrize("damage", ["truncate tokens", "break meta", "lose meta"])
def test_a_damaged_entry_is_built_again(path, source, cache, damage):
    tokenizer = tokenizer_of(LINES)
    corpus = Corpus.build(source(path), tokenizer)
    entry = cache / corpus.fingerprint
    match damage:
        case "truncate tokens":
            (entry / "tokens.bin").write_bytes(b"xx")
        case "break meta":
            (entry / "meta.json").write_text("{")
        case _:
            (entry / "meta.json").unlink()
    assert Corpus.build(source(path), tokenizer).tokens.tolist() == tokenizer.encode(LINES).tolist()


def test_concurrent_builders_do_not_conflict(path, source, cache):
    tokenizer = tokenizer_of(LINES)
    barrier = threading.Barrier(4)
    results: list[list[int]] = []

    def build() -> None:
        barrier.wait()
        results.append(Corpus.build(source(path), tokenizer).tokens.tolist())

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [tokenizer.encode(LINES).tolist()] * 4
    assert [entry.name for entry in cache.iterdir() if entry.name.startswith(UNFINISHED)] == []


def test_the_slower_of_two_builders_takes_the_entry_of_the_faster(tmp_path):
    entry = tmp_path / "cache" / "name"
    with building(entry) as slow:
        (slow / "who").write_text("slow")
        with building(entry) as fast:
            (fast / "who").write_text("fast")
    assert (entry / "who").read_text() == "fast"
    assert [path.name for path in entry.parent.iterdir()] == ["name"]


@pytest.mark.parametrize(("code", "complaint"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only")])
def test_a_failed_write_leaves_no_entry(path, source, cache, monkeypatch, code, complaint):
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("chainrule.data.seams.append", fail)
    with pytest.raises(DataError, match=complaint) as caught:
        Corpus.build(source(path), tokenizer_of(LINES))
    assert "CHAINRULE_CACHE" in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_failed_read_leaves_no_entry(tmp_path, source, cache):
    (tmp_path / "bad.txt").write_bytes(b"good\n" * (1 << 19) + b"\xff")
    with pytest.raises(DataError, match=r"bad\.txt"):
        Corpus.build(source(tmp_path / "bad.txt"), tokenizer_of("good\n"))
    assert list(cache.iterdir()) == []


def test_unfinished_entries_of_killed_processes_are_deleted(tmp_path):
    root = tmp_path / "cache"
    for name, age in (("old", ABANDONED_AFTER + 100), ("new", 100)):
        folder = root / f"{UNFINISHED}{name}"
        folder.mkdir(parents=True)
        (folder / "tokens.bin").write_bytes(b"x")
        for part in (folder / "tokens.bin", folder):
            os.utime(part, (time.time() - age, time.time() - age))
    with building(root / "entry"):
        pass
    assert sorted(path.name for path in root.iterdir()) == [f"{UNFINISHED}new", "entry"]


def test_a_text_in_memory_is_a_stream_or_one_document(cache):
    tokenizer = tokenizer_of("hello")
    stream = Corpus.of_text("hello!", tokenizer)
    assert stream.tokens.tolist() == tokenizer.encode("hello!").tolist()
    assert (stream.unit, stream.bytes, stream.words, stream.unknown) == ("stream", 6, 1, 1)
    document = Corpus.of_text("hello", tokenizer, "documents")
    assert document.tokens.tolist() == [*tokenizer.encode("hello"), tokenizer.eos]
    assert document.offsets.tolist() == [0, 6]
    assert not cache.exists()


def test_lone_surrogates_are_counted_as_they_are_encoded():
    corpus = Corpus.of_text("a\udcff", tokenizer_of("", "bytes"))
    assert len(corpus) == corpus.bytes == 4


@pytest.mark.parametrize("spec", ["chars", "words"])
def test_an_empty_text_is_an_error(spec):
    with pytest.raises(DataError, match="empty"):
        Corpus.of_text("", tokenizer_of("x", spec))


def test_a_text_without_tokens_is_an_error(tmp_path, source):
    (tmp_path / "blank.txt").write_text("   ")
    with pytest.raises(DataError, match=r"finds no tokens in .*blank.txt'"):
        Corpus.build(source(tmp_path / "blank.txt"), tokenizer_of("x", "words"))


def test_a_stream_is_split_by_characters(path, source):
    parts = split(source(path), {"validation": 0.25})
    first, second = parts["training"], parts["validation"]
    assert first == Part.of(0, int(len(LINES) * 0.75))
    assert second == Part.of(first.size, len(LINES))
    joined = "".join(source(path).pieces(first)) + "".join(source(path).pieces(second))
    assert joined == LINES


def test_documents_are_split_by_count(tmp_path, source):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(10)))
    records = source(tmp_path / "a.jsonl")
    assert split(records, {"validation": 0.2}) == {"training": Part.of(0, 8), "validation": Part.of(8, 10)}
    assert split(records, {"validation": 0.9}) == {"training": Part.of(0, 1), "validation": Part.of(1, 10)}
    assert list(records.pieces(Part.of(8, 10))) == ["document 8", "document 9"]


def test_test_data_is_the_end_and_validation_data_precedes_it(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 72 + "b" * 8 + "c" * 20)
    settings = {"train": str(tmp_path / "a.txt"), "test_fraction": 0.2, "valid_fraction": 0.1}
    prepared = prepare(DataConfig(**settings), "bytes")
    decoded = [prepared.tokenizer.decode(part.tokens.tolist()) for part in prepared[1:4]]
    assert decoded == ["a" * 72, "b" * 8, "c" * 20]
    early = prepare(DataConfig(**settings, valid_from="start"), "bytes")
    decoded = [early.tokenizer.decode(part.tokens.tolist()) for part in early[1:4]]
    assert decoded == ["a" * 64 + "b" * 8, "a" * 8, "c" * 20]
    given = prepare(DataConfig(**settings, valid=str(tmp_path / "a.txt")), "bytes")
    assert [len(part) for part in given[1:4]] == [80, 100, 20]


def test_too_little_to_split_is_an_error(tmp_path, source):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(DataError, match=r"has 1 document, too few to split off 0\.1"):
        split(source(tmp_path / "a.jsonl"), {"validation": 0.1})


def test_counts_are_cached(path, source, monkeypatch):
    assert count(source(path)) == len(LINES)
    unreadable(monkeypatch)
    assert count(source(path)) == len(LINES)


def test_the_tokenizer_is_trained_on_the_training_part_only(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 90 + "b" * 10)
    prepared = prepare(DataConfig(train=str(tmp_path / "a.txt")), "chars")
    assert prepared.train.unknown == 0
    assert prepared.valid.unknown == len(prepared.valid) == 10


def test_cached_tokenizers_depend_on_the_part_and_the_spec(path):
    kinds = {
        prepare(DataConfig(train=str(path), valid_fraction=fraction), spec).tokenizer.vocabulary
        for fraction in (0.1, 0.9)
        for spec in ("chars", "words", "words:5")
    }
    assert len(kinds) >= 5


def test_a_given_tokenizer_is_not_trained(path):
    tokenizer = tokenizer_of("To be")
    prepared = prepare(DataConfig(train=str(path)), "words", tokenizer=tokenizer)
    assert prepared.tokenizer is tokenizer
    assert prepared.train.tokens.tolist() == tokenizer.encode(LINES[: len(prepared.train)]).tolist()


def test_a_tokenizer_file_that_has_changed_is_read_again(path, monkeypatch):
    model = path.with_name("some.model")
    trained: list[str] = []

    def train(spec, texts):
        trained.append(spec)
        return tokenizer_of(LINES)

    monkeypatch.setattr("chainrule.data.corpus.train_tokenizer", train)
    for content in ("first", "first", "second version"):
        if not model.exists() or model.read_text() != content:
            model.write_text(content)
        prepare(DataConfig(train=str(path)), f"sentencepiece:{model}")
    assert len(trained) == 2


def test_validation_and_test_data_may_be_given(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name} text\n")
    config = DataConfig(**{name: str(tmp_path / f"{name}.txt") for name in ("train", "valid", "test")})
    prepared = prepare(config, "bytes")
    for name in ("train", "valid", "test"):
        assert prepared.tokenizer.decode(getattr(prepared, name).tokens) == f"{name} text\n"
    assert prepared.warnings == ()


def test_all_splits_have_the_unit_of_the_training_data(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "valid.txt").write_text("two\nthree\n")
    config = DataConfig(train=str(tmp_path / "train.jsonl"), valid=str(tmp_path / "valid.txt"))
    assert prepare(config, "bytes").valid.offsets.tolist() == [0, 4, 10]


def test_validation_on_training_data_is_a_warning(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "folder" / name).write_text("text\n")
    train, valid = str(tmp_path / "folder"), str(tmp_path / "folder" / "b.txt")
    (warning,) = prepare(DataConfig(train=train, valid=valid), "bytes").warnings
    assert "b.txt" in warning
    assert "do not measure generalisation" in warning
    assert prepare(DataConfig(train=train), "bytes").warnings == ()


def test_other_data_is_read_with_the_settings_of_the_run(path):
    tokenizer = tokenizer_of(LINES)
    config = DataConfig(train="elsewhere", strip_ends=True, unit="documents")
    corpus = encode_file(config, tokenizer, str(path))
    assert len(corpus.offsets) == 3 + 1


def test_progress_ends_at_the_total(path):
    calls: list[tuple[str, int, int]] = []
    prepare(DataConfig(train=str(path)), "chars", progress=lambda *call: calls.append(call))
    assert {stage for stage, _, _ in calls} == {"counting", "tokenizer", "training data", "validation data"}
    last = {stage: (done, total) for stage, done, total in calls}
    cut = int(len(LINES) * 0.9)
    assert last["training data"] == (cut, cut)
    assert last["validation data"] == (len(LINES) - cut, len(LINES) - cut)
    calls.clear()
    prepare(DataConfig(train=str(path)), "chars", progress=lambda *call: calls.append(call))
    assert calls == []


def test_tiny_shakespeare_has_its_standard_split(real_data):
    prepared = prepare(DataConfig(train=str(real_data("tinyshakespeare") / "input.txt")), "chars")
    assert (len(prepared.train), len(prepared.valid)) == (1_003_854, 111_540)
    assert prepared.tokenizer.vocabulary == 65 + 2
