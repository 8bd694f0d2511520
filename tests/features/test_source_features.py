"""Features of a pretrained model as the encoder of translation families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import chainrule
from chainrule.errors import ConfigError, RunError
from chainrule.families import build
from chainrule.nn.pretrained_encoders import BertEncoder
from chainrule.testing import check_model
from chainrule.types import Batch, Sequences
from tests.features.folders import PIECES, write_bert, write_small_gpt2

SIZES: dict[str, dict[str, Any]] = {
    "seq2seq": {"width": 8, "layers": 2},
    "transformer": {"width": 8, "heads": 2, "decoder_layers": 1},
    "fat": {"width": 8, "heads": 2, "key_width": 4},
}
PAIRS = "cat sat\tKatze sitzt\ndog sat\tHund sitzt\ncat\tKatze\ndog cat\tHund Katze\n" * 5


def model_of(family: str, folder: Path, **settings: object) -> Any:
    torch.manual_seed(0)
    sizes = {"vocabulary": 9, "source_vocabulary": PIECES, **SIZES[family]}
    model = build(family, {**sizes, "features": str(folder), **settings})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


@pytest.mark.parametrize("write", [write_bert, write_small_gpt2])
@pytest.mark.parametrize("family", SIZES)
def test_a_family_with_pretrained_features_passes_every_check(tmp_path: Path, family: str, write: Any) -> None:
    write(tmp_path)
    findings = check_model(lambda: model_of(family, tmp_path))
    passed = {finding.check for finding in findings if finding.status == "passed"}
    assert {"predictions ignore the future", "the source matters", "saving and loading is bit exact"} < passed


@pytest.mark.parametrize("family", SIZES)
def test_the_encoder_is_replaced(tmp_path: Path, family: str) -> None:
    """Its blocks and the source embeddings are not there."""
    write_bert(tmp_path)
    model = model_of(family, tmp_path)
    assert model.tokens.source is None
    assert not [name for name, _ in model.named_parameters() if name.startswith(("encoder", "features.pretrained"))]
    assert [name for name, _ in model.named_parameters() if name.startswith("features.narrow")]


@torch.no_grad()
@pytest.mark.parametrize("family", SIZES)
def test_frozen_features_of_the_training_sources_are_computed_once(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bert(tmp_path / "bert")
    model = model_of(family, tmp_path / "bert")
    source = Sequences.full(torch.randint(PIECES, (3, 5), generator=torch.Generator().manual_seed(1)))
    batch = Batch(Sequences.full(torch.tensor([[1, 2, 0]] * 3)), source)
    expected = model.log_prob(batch)
    model.fit_statistics([(row, row) for row in source.ids.tolist()])

    def refuse(*_: object) -> None:
        raise AssertionError("the pretrained model was run again")

    monkeypatch.setattr(BertEncoder, "forward", refuse)
    torch.testing.assert_close(model.log_prob(batch), expected)


@pytest.mark.parametrize(("family", "tokenizer"), [("seq2seq", "words"), ("transformer", "chars"), ("fat", "words")])
def test_a_run_with_features_translates_after_loading_and_refuses_another_model(
    tmp_path: Path, family: str, tokenizer: str
) -> None:
    folder, pairs = tmp_path / "bert", tmp_path / "pairs.tsv"
    write_bert(folder)
    pairs.write_text(PAIRS, encoding="utf-8")
    settings = {
        "model": {**SIZES[family], "features": str(folder)},
        "data": {"duplicates": "keep"},
        "train": {"validate_bleu": False},
    }
    run: Any = chainrule.train(
        family, data=str(pairs), tokenizer=tokenizer, steps=2, out=tmp_path / "run", settings=settings, progress=False
    )
    again: Any = chainrule.load(tmp_path / "run")
    [[first, *_]], [[second, *_]] = run.translate("dog sat"), again.translate("dog sat")
    # Training encoded the sources in batches and kept their vectors, whose last bits depend on the batch.
    assert first.text == second.text
    assert first.log_prob == pytest.approx(second.log_prob, abs=1e-6)
    assert not [name for name in load_file(tmp_path / "run" / "model.safetensors") if "pretrained" in name]
    write_bert(folder, seed=1)
    with pytest.raises(RunError, match="is not the one that this model was trained with"):
        chainrule.load(tmp_path / "run")


def test_a_fine_tuned_encoder_learns(tmp_path: Path) -> None:
    write_bert(tmp_path)
    model = model_of("transformer", tmp_path, fine_tune=True)
    source = Sequences.full(torch.randint(PIECES, (2, 4), generator=torch.Generator().manual_seed(1)))
    model.log_prob(Batch(Sequences.full(torch.tensor([[1, 0], [2, 0]])), source)).sum().backward()
    gradients = [part.grad for name, part in model.named_parameters() if name.startswith("features.pretrained")]
    assert any(found is not None and float(found.abs().sum()) > 0 for found in gradients)


def test_skipped_tokens_and_features_are_not_combined(tmp_path: Path) -> None:
    write_bert(tmp_path)
    with pytest.raises(ConfigError, match="drops source tokens, and a pretrained encoder"):
        model_of("fat", tmp_path, skip={"threshold": 0.1})


@pytest.mark.parametrize("family", ["t5", "nonautoregressive", "hybrid_regressive"])
def test_families_built_on_the_transformer_have_encoders_of_their_own(family: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'model\.features'"):
        build(family, {"vocabulary": 40, "source_vocabulary": 40, "features": "models/bert"})
