"""`chainrule translate --draft`: speculative decoding gives the same translations."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chainrule.config import DataConfig, RunConfig
from chainrule.decoding import Search
from chainrule.errors import ConfigError
from chainrule.tasks import load
from chainrule.tasks.translation import TranslationRun
from chainrule.testing import tiny_model
from chainrule.testing.tiny import tiny_parallel
from chainrule.tokenizers.words import Words
from chainrule.training.checkpoint import RunFolder
from tests.cli.test_bad_input import refused
from tests.conftest import Command

LINES = b"a b\nc d a b\n\nd\na b c c\n"
Give = Callable[[], None]


def create(path: Path, family: str, *, target: tuple[str, ...] = ("x", "y", "z")) -> Path:
    parallel = family in ("nonautoregressive", "hybrid_regressive")
    model = tiny_parallel(family) if parallel else tiny_model(family)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    settings = model.config.model_dump(mode="json", exclude_none=True)
    data = DataConfig(train="pairs.tsv", unit="documents")
    folder = RunFolder(path)
    config = RunConfig(family=family, tokenizer="words", data=data, model=settings)
    folder.create(config, Words(list(target)), Words(["a", "b", "c", "d"]))
    folder.write_weights(model)
    return path


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Put some lines on standard input."""

    def put() -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES), encoding="utf-8"))

    return put


@pytest.mark.parametrize("batch", [1, 3])
def test_a_hybrid_drafts_for_itself_with_the_same_output(
    chainrule: Command, lines: Give, tmp_path: Path, batch: int
) -> None:
    words = ("translate", create(tmp_path / "hybrid", "hybrid"), "--beam", 1, "--batch", batch)
    lines()
    plain = chainrule(*words)
    lines()
    drafted = chainrule(*words, "--draft", "self")
    assert drafted.code == 0, drafted.err
    assert drafted.out == plain.out
    assert drafted.out.count("\n") == 5
    assert len(drafted.out.split()) > 20


def test_a_draft_run_leaves_the_output_unchanged(chainrule: Command, lines: Give, tmp_path: Path) -> None:
    words = ("translate", create(tmp_path / "base", "transformer"), "--beam", 1)
    lines()
    plain = chainrule(*words)
    lines()
    drafted = chainrule(*words, "--draft", create(tmp_path / "other", "seq2seq"))
    assert drafted.code == 0, drafted.err
    assert drafted.out == plain.out


def test_unsupported_drafts_are_refused_in_one_line(chainrule: Command, lines: Give, tmp_path: Path) -> None:
    hybrid, base = create(tmp_path / "hybrid", "hybrid"), create(tmp_path / "base", "transformer")
    foreign = create(tmp_path / "foreign", "seq2seq", target=("u", "v", "w"))
    parallel = create(tmp_path / "parallel", "nonautoregressive")
    for words, *message in (
        ((hybrid, "--draft", "self"), "the beam width is 5", "set the beam width to 1"),
        ((base, "--beam", 1, "--draft", "self"), "has no lookahead branch"),
        ((base, "--beam", 1, "--draft", foreign), "other vocabularies", "the same tokenizers"),
        ((base, "--beam", 1, "--draft", parallel), "generates all tokens in parallel"),
        ((parallel, "--draft", "self"), "generates all tokens in parallel"),
        ((hybrid, "--beam", 1, "--draft", "self", "--agree-with", base), "cannot use a draft"),
        ((hybrid, "--beam", 1, "--draft", tmp_path / "nowhere"), "no run at"),
    ):
        lines()
        refused(chainrule("translate", *words), *message)


def test_python_takes_the_same_drafts(tmp_path: Path) -> None:
    run = load(create(tmp_path / "hybrid", "hybrid"), TranslationRun, device="cpu")
    texts, greedy = ["a b", "d c"], Search(beam=1)
    plain = [best.text for best, *_ in run.translate(texts, greedy)]
    assert [best.text for best, *_ in run.translate(texts, greedy, draft="self")] == plain
    assert [best.text for best, *_ in run.translate(texts, greedy, draft=run)] == plain
    with pytest.raises(ConfigError, match="give a run, 'self' or 'int8'"):
        run.translate(texts, greedy, draft="ngram")
