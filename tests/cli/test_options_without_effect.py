"""Options that would have no effect are refused, with what they need."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import chainrule as package
from chainrule.decoding import Search
from chainrule.decoding.translation import decode_sources
from chainrule.errors import DecodingError
from chainrule.testing.tiny import tiny_parallel
from tests.cli.test_bad_input import refused
from tests.conftest import Command


@pytest.fixture
def run(text_file: Path, tmp_path: Path) -> Path:
    package.train("ngram", data=str(text_file), out=tmp_path / "run", progress=False)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        (("score", "--text", "a", "--beam", "3"), "--task translation"),
        (("score", "--text", "a", "--shortlist"), "--task translation"),
        (("score", "--text", "a", "--alternatives", "3"), "--per-token"),
        (("generate", "--length-penalty", "0.5"), "--beam"),
        (("draw", "--out", "grid.png", "--keep", "0.3"), "--complete"),
        (("words", "nearest", "a", "--restricted", "9"), "score"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_an_option_without_effect_is_refused(
    chainrule: Command, run: Path, options: tuple[str, ...], needs: str
) -> None:
    verb, *rest = options
    refused(chainrule(verb, run, *rest), "has no effect here", f"it needs {needs}")


def test_a_beam_is_refused_by_a_classifier(chainrule: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "labels.tsv"
    table.write_text("".join(f"a b c\t{'x' if index % 2 else 'y'}\n" for index in range(40)))
    settings = {"model": {"embedding": 4, "attention_width": 4}}
    package.train("classifier", data=str(table), steps=1, out=tmp_path / "run", settings=settings, progress=False)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    refused(chainrule("predict", tmp_path / "run", "--beam", 3), "--beam has no effect here", "tagger")


@pytest.mark.parametrize(
    "option", [{"n_best": 2}, {"length_penalty": 0.5}, {"shortlist": True}, {"coverage_penalty": 0.1}], ids=str
)
def test_a_parallel_model_refuses_options_of_beam_search(option: dict[str, object]) -> None:
    (name,) = option
    with pytest.raises(DecodingError, match=f"{name} is an option of autoregressive models"):
        decode_sources(tiny_parallel("nonautoregressive"), [[1, 2, 0]], Search.parse({"beam": 5, **option}))
