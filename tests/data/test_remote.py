"""Data by URL: files of other file systems are copied to the cache once, or read where they are."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from chainrule.config import DataConfig
from chainrule.data.corpus import prepare
from chainrule.data.text import open_source
from chainrule.errors import DataError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def bucket() -> Any:
    system = fsspec.filesystem("memory")
    system.pipe({"/bucket/b.txt": b"two\n" * 30, "/bucket/a.txt": b"one\n" * 30, "/bucket/notes.md": b"no\n"})
    yield system
    system.rm("/bucket", recursive=True)


def test_files_of_a_pattern_are_read_in_order(bucket: Any):
    found = prepare(DataConfig(train="memory://bucket/*.txt", unit="stream", valid_fraction=0.5), "chars")
    assert found.tokenizer.decode(found.train.tokens) == "one\n" * 30
    assert found.tokenizer.decode(found.valid.tokens).count("�") == 60  # `two` has letters that are not in `one`


def test_a_file_is_copied_once_and_again_when_it_changes(bucket: Any, monkeypatch: pytest.MonkeyPatch):
    copied = []
    copy = type(bucket).get_file
    monkeypatch.setattr(
        type(bucket), "get_file", lambda self, name, *rest: (copied.append(name), copy(self, name, *rest))
    )
    config = DataConfig(train="memory://bucket/a.txt")
    first = prepare(config, "chars").train
    prepare(config, "words")
    assert copied == ["/bucket/a.txt"]
    bucket.pipe("/bucket/a.txt", b"other\n" * 40)
    assert len(prepare(config, "chars").train) > len(first)
    assert len(copied) == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("memory://bucket/nothing.txt", "there is no file at"),
        ("memory://bucket/*.csv", "there is no file at"),
        ("nosuch://bucket/a.txt", "install the package of the protocol"),
    ],
)
def test_an_address_that_does_not_exist_is_reported(bucket: Any, spec: str, message: str):
    with pytest.raises(DataError, match=message):
        prepare(DataConfig(train=spec), "chars")


def test_a_stream_is_read_where_it_is(bucket: Any, monkeypatch: pytest.MonkeyPatch):
    bucket.pipe("/bucket/c.txt.gz", gzip.compress(b"three\n" * 30))
    config = DataConfig(train="memory://bucket/*.txt*", unit="stream", valid_fraction=0.1)
    copied = prepare(config, "chars").train
    monkeypatch.setattr(type(bucket), "get_file", lambda *_: pytest.fail("a file was copied"))
    config = config.model_copy(update={"remote": "stream"})
    streamed = prepare(config, "chars").train
    assert streamed.tokens.tolist() == copied.tokens.tolist()
    assert streamed.fingerprint != copied.fingerprint
    bucket.pipe("/bucket/a.txt", b"other\n" * 40)
    assert len(prepare(config, "chars").train) > len(streamed)


def test_workers_read_their_own_parts_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = "".join(f"line {number}: the cat sat on mat {number * 7 % 13}\n" for number in range(2000))
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(name + "\n" + lines)
    monkeypatch.setattr("chainrule.data.text.SHARD", 20_000)
    local = DataConfig(train=str(folder), unit="stream", workers=2)
    remote = local.model_copy(update={"train": f"file://{folder}", "remote": "stream"})
    assert len(open_source(remote.train, remote).shards()) > 4
    whole = prepare(local, "words").train
    assert prepare(remote, "words").train.tokens.tolist() == whole.tokens.tolist()
