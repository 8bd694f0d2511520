"""A large text is encoded in shards: by any number of workers, with the tokens of the whole text."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainrule.config import DataConfig
from chainrule.data import drift, shards, text, workers
from chainrule.data.corpus import Corpus, Prepared, encode_file, prepare
from chainrule.data.source import count
from chainrule.data.splits import Span
from chainrule.data.text import open_source
from chainrule.errors import DataError
from chainrule.tokenizers import load_tokenizer, train_tokenizer

LINES = [
    "The first line .",
    "  an indented one",
    "",
    "naïve café — 中文 \u3000 x",
    "\tq\u2028r",
    "one, two; three!",
    "y " * 40,
]


def write_lines(path: Path, seed: int, count: int, *, end: str = "\n") -> Path:
    choose = random.Random(seed)
    path.write_text("\n".join(choose.choice(LINES) for _ in range(count)) + end, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of many shards, of one, without a final line end, without text, and compressed."""
    folder = tmp_path / "texts"
    folder.mkdir()
    write_lines(folder / "a.txt", 1, 900)
    write_lines(folder / "b.txt", 2, 5, end="")
    write_lines(folder / "c.txt", 3, 400, end="")
    (folder / "d.txt.gz").write_bytes(gzip.compress(write_lines(tmp_path / "d.txt", 4, 300).read_bytes()))
    write_lines(folder / "e.txt", 5, 30, end="")
    return folder


def same(one: Corpus, other: Corpus) -> None:
    assert np.array_equal(one.tokens, other.tokens)
    assert (one.offsets is None) == (other.offsets is None)
    assert one.offsets is None or np.array_equal(one.offsets, other.offsets)
    for name in ("bytes", "characters", "words", "unknown"):
        assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("unit", ["stream", "documents"])
@pytest.mark.parametrize("tokenizer", ["words", "chars", "bpe:300"])
@pytest.mark.parametrize("valid_from", ["end", "spread"])
def test_tokens_and_counts_are_those_of_the_whole_text(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: Any, tokenizer: str, valid_from: Any
):
    config = DataConfig(
        train=str(folder), unit=unit, valid_fraction=0.2, test_fraction=0.1, valid_from=valid_from, workers=1
    )
    whole = prepare(config, tokenizer, cache=tmp_path / "whole")
    monkeypatch.setattr(text, "SHARD", 2000)
    assert len(open_source(config.train, config).shards()) > 10
    divided = prepare(config, tokenizer, cache=tmp_path / "divided")
    assert divided.tokenizer.to_json() == whole.tokenizer.to_json()
    for one, other in zip(whole[1:4], divided[1:4], strict=True):
        same(one, other)


def test_shards_join_to_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch):
    source = open_source(str(folder), DataConfig(train=str(folder), unit="stream"))
    whole = "".join(source.stream())
    monkeypatch.setattr(text, "SHARD", 700)
    assert "".join("".join(shard.stream()) for shard in source.shards()) == whole
    assert len({shard.description() for shard in source.shards()}) == len(source.shards())


def test_a_line_that_is_longer_than_a_shard_is_not_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "long.txt"
    file.write_text("x" * 5000 + "\nend\n" + "y" * 3000)
    monkeypatch.setattr(text, "SHARD", 1000)
    assert text.line_starts(file, 1000) == [0, 5001, 8005]


def with_two_processes(folder: Path, cache: Path) -> Prepared:
    return prepare(DataConfig(train=str(folder), unit="stream", workers=2), "words", cache=cache)


def test_processes_encode_as_one_does(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = prepare(DataConfig(train=str(folder), unit="stream"), "words", cache=tmp_path / "whole")
    monkeypatch.setattr(text, "SHARD", 8000)
    same(with_two_processes(folder, tmp_path / "divided").train, whole.train)


def test_an_interrupted_encoding_continues_with_the_missing_shards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = DataConfig(train=str(folder), unit="stream", workers=1)
    whole = encode_file(config, train_tokenizer("chars", lambda: [*LINES, "\n"]), str(folder), cache=tmp_path / "whole")
    monkeypatch.setattr(text, "SHARD", 4000)
    tokenizer = train_tokenizer("chars", lambda: [*LINES, "\n"])
    encoded: list[Path] = []
    encode = shards._encode_shard

    def stopped(shard: shards.Shard, tokenizer: Any) -> None:
        if len(encoded) == 3:
            raise KeyboardInterrupt
        encoded.append(shard.entry)
        encode(shard, tokenizer)

    def noted(shard: shards.Shard, tokenizer: Any) -> None:
        encoded.append(shard.entry)
        encode(shard, tokenizer)

    monkeypatch.setattr(shards, "_encode_shard", stopped)
    with pytest.raises(KeyboardInterrupt):
        encode_file(config, tokenizer, str(folder), cache=tmp_path / "cache")
    first = list(encoded)
    monkeypatch.setattr(
        shards, "_encode_shard", lambda shard, tokenizer: (encoded.append(shard.entry), encode(shard, tokenizer))
    )
    same(encode_file(config, tokenizer, str(folder), cache=tmp_path / "cache"), whole)
    assert not set(first) & set(encoded[3:])
    assert not any(entry.exists() for entry in encoded)  # they are joined


class LosingExecutor(Executor):
    """Its workers are lost at the first attempts."""

    def __init__(self, losses: int) -> None:
        self.threads, self.losses = ThreadPoolExecutor(2), losses

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.losses -= 1
        if self.losses >= 0:
            lost: Future[Any] = Future()
            lost.set_exception(ConnectionError("worker died"))
            return lost
        return self.threads.submit(*pickle.loads(pickle.dumps((function, *arguments))))


def test_work_of_lost_workers_is_done_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = DataConfig(train=str(folder), unit="stream")
    whole = prepare(config, "words", cache=tmp_path / "whole")
    monkeypatch.setattr(text, "SHARD", 3000)
    with workers.working_on(LosingExecutor(3)):
        same(prepare(config, "words", cache=tmp_path / "divided").train, whole.train)
    with workers.working_on(LosingExecutor(1000)), pytest.raises(DataError, match="4 workers were lost"):
        prepare(config, "words", cache=tmp_path / "never")


def end_once(mark: str, number: int) -> int:
    if number == 3 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 9:
        raise DataError("nine is odd; give eight")
    return number * number


def test_a_killed_process_is_replaced_and_errors_are_those_of_the_work(tmp_path: Path):
    mark = str(tmp_path / "mark")
    with workers.local_workers(2):
        found = dict(workers.results(end_once, [(mark, number) for number in range(6)]))
        assert [found[number] for number in range(6)] == [0, 1, 4, 9, 16, 25]
        with pytest.raises(DataError, match="nine is odd"):
            list(workers.results(end_once, [(mark, number) for number in (8, 9)]))
    assert Path(mark).exists()


def test_processes_are_kept_until_the_block_ends():
    with workers.local_workers(2):
        first, second = ({pid for _, pid in workers.results(process_id, [(0.3,)] * 4)} for _ in range(2))
        assert len(first) == 2
        assert second == first
    assert not any(Path(f"/proc/{pid}").exists() for pid in first)


def process_id(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


held: list[int] = []


def number_held(number: int) -> int:
    """Keep a number in a variable of the module for a while, as models keep caches."""
    held[:] = [number]
    time.sleep(0.1)
    return held[0]


def test_work_in_threads_of_an_executor_shares_no_variables():
    with ThreadPoolExecutor(4) as executor, workers.working_on(executor):
        found = dict(workers.results(number_held, [(number,) for number in range(12)]))
        assert found == {number: number for number in range(12)}
        pids = {pid for _, pid in workers.results(process_id, [(0.3,)] * 8)}
    assert len(pids) == 4
    assert os.getpid() not in pids


def test_tokenizers_that_count_are_trained_by_all_workers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(text, "SHARD", 2000)
    counted: list[str] = []
    count_shard = shards._count_shard

    def noted(spec: str, *rest: Any) -> Any:
        counted.append(spec)
        return count_shard(spec, *rest)

    monkeypatch.setattr(shards, "_count_shard", noted)
    for spec in ("words", "chars"):
        prepare(DataConfig(train=str(folder), unit="stream", workers=1), spec, cache=tmp_path / "cache")
        assert counted.count(spec) > 10


@pytest.mark.parametrize("unit", ["stream", "documents"])
def test_only_shards_in_which_a_tenth_begins_are_read_to_compare_tenths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: Any
):
    file = write_lines(tmp_path / "long.txt", 6, 5000)
    source = open_source(str(file), DataConfig(train=str(file), unit=unit))
    monkeypatch.setattr(drift, "SAMPLE", 500)
    whole = drift.drift(source, cache=tmp_path / "whole")
    monkeypatch.setattr(text, "SHARD", 1000)
    count(source, cache=tmp_path / "cache")
    opened: list[Span | None] = []
    read_text = text.read_text

    def noted(path: Path, chunk: int = text.CHUNK, span: Span | None = None) -> Any:
        opened.append(span)
        return read_text(path, chunk, span)

    monkeypatch.setattr(text, "read_text", noted)
    assert len(source.shards()) > 50
    assert drift.drift(source, cache=tmp_path / "cache") == whole
    assert len(opened) <= 20  # a tenth may begin at the end of a shard


def test_a_text_without_characters_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "SHARD", 10)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\n \n" * 20)
    source = replace(open_source(str(tmp_path / "*.txt"), DataConfig(train="x", strip_ends=True)), unit="documents")
    with pytest.raises(DataError, match="contains no text"):
        count(source, cache=tmp_path / "cache")


@pytest.mark.parametrize("spec", ["chars", "bytes", "words", "words:lower", "bpe:300", "unigram:300"])
def test_tokenizers_are_sent_to_other_processes(tmp_path: Path, spec: str):
    tokenizer = train_tokenizer(spec, lambda: LINES * 5)
    sent = pickle.loads(pickle.dumps(tokenizer))
    assert sent.to_json() == tokenizer.to_json()
    tokenizer.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json").to_json() == sent.to_json()
    assert sent.encode(LINES[3]).tolist() == tokenizer.encode(LINES[3]).tolist()
