"""Mixtures and ensembles of translation runs and of classifiers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import chainrule as package
from chainrule.compose.conditional import ConditionalEnsemble, ConditionalMixture
from chainrule.errors import ConfigError
from chainrule.tasks.labels import LabelRun
from chainrule.tasks.translation import TranslationRun
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences
from tests.cli.test_bad_input import refused
from tests.conftest import Command

WORDS = ("red", "green", "blue", "small", "large", "old", "new", "warm")
TRAIN = {"train": {"batch_tokens": 256, "validate_bleu": False}, "data": {"valid_fraction": 0.3}}


@pytest.fixture
def translators(tmp_path: Path) -> list[Path]:
    """A seq2seq and a transformer that reverse two words."""
    pairs = tmp_path / "pairs.tsv"
    lines = [f"{one} {other}\t{other} {one}" for one in WORDS for other in WORDS]
    pairs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    kinds = {
        "seq2seq": {"width": 16, "layers": 1},
        "transformer": {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    }
    for kind, model in kinds.items():
        package.train(
            kind, data=str(pairs), tokenizer="words", steps=40, settings={"model": model, **TRAIN},
            out=tmp_path / kind, progress=False,
        )  # fmt: skip
    return [tmp_path / kind for kind in kinds]


@pytest.fixture
def classifiers(tmp_path: Path) -> list[Path]:
    data = tmp_path / "labels.tsv"
    lines = [f"{one} {other}\t{'colour' if one in WORDS[:3] else 'size'}" for one in WORDS for other in WORDS]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = []
    for seed in (0, 1):
        found.append(tmp_path / f"classifier-{seed}")
        package.train(
            "classifier", data=str(data), steps=5, seed=seed, out=found[-1], progress=False,
            settings={"model": {"embedding": 8, "hidden": 8}, "data": {"valid_fraction": 0.5}},
        )  # fmt: skip
    return found


@pytest.mark.parametrize("kind", ["mixture", "ensemble"])
def test_mixed_translation_runs_predict_no_worse_than_the_best_and_translate(
    chainrule: Command, translators: list[Path], tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "both"
    outcome = chainrule("mix", *translators, "--out", out, "--kind", kind, "--gate", "learned", "--json")
    assert outcome.code == 0, outcome.err
    about = json.loads(outcome.out)
    parts = [json.loads(chainrule("info", run, "--json").out) for run in translators]
    assert about["family"] == f"conditional_{kind}"
    assert about["validation"]["nats_per_token"] <= min(one["validation"]["nats_per_token"] for one in parts) + 1e-4
    run = package.load(out)
    assert isinstance(run, TranslationRun)
    [[best, *others]] = run.translate("red large")
    assert len(others) == 0 or best.score >= others[0].score
    assert chainrule("verify", out).code == 0
    assert "nats/token" in chainrule("score", out, "--data", tmp_path / "pairs.tsv").out


def test_mixed_classifiers_label_texts(chainrule: Command, classifiers: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "both"
    outcome = chainrule("mix", *classifiers, "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    assert {"accuracy", "macro_f1"} <= json.loads(outcome.out)["validation"].keys()
    run = package.load(out)
    assert isinstance(run, LabelRun)
    [found] = run.predict("red small")
    assert found is not None
    assert set(found.probabilities) == {"colour", "size"}
    assert sum(found.probabilities.values()) == pytest.approx(1.0)
    assert run.score(str(tmp_path / "labels.tsv"), progress=False).examples == len(WORDS) ** 2


def test_fixed_weights_average_the_probabilities_of_classifiers(classifiers: list[Path], tmp_path: Path) -> None:
    mixed = package.mix(classifiers, out=tmp_path / "both", gate="fixed", weights=[1, 3], progress=False)
    assert isinstance(mixed, LabelRun)
    first, second, both = (
        next(run.predict("blue old")) for run in (*(package.load(one, LabelRun) for one in classifiers), mixed)
    )
    assert first is not None
    assert second is not None
    assert both is not None
    expected = (first.probabilities["size"] + 3 * second.probabilities["size"]) / 4
    assert both.probabilities["size"] == pytest.approx(expected, abs=1e-6)


def test_the_source_decides_in_every_part() -> None:
    """A part that were given no source, or that of another row, would predict the same for both."""
    parts = [tiny_model("seq2seq", seed=1), tiny_model("transformer", seed=2)]
    target = Sequences.full(torch.tensor([[1, 2, 3], [1, 2, 3]]))
    batch = Batch(target, Sequences.full(torch.tensor([[1, 2, 3, 0], [3, 1, 1, 0]])))
    for kind in (ConditionalMixture, ConditionalEnsemble):
        model = kind.of(parts, gate="fixed")
        together = model.logits(batch)
        assert not torch.allclose(together[0], together[1])
        assert torch.allclose(model.start(batch.source).logits[:, 0], together[:, 0], atol=1e-5)


def test_runs_of_different_tasks_are_refused(
    chainrule: Command, translators: list[Path], classifiers: list[Path], tmp_path: Path
) -> None:
    refused(chainrule("mix", translators[0], classifiers[0], "--out", tmp_path / "both"), "mix runs of one task")
    assert not (tmp_path / "both").exists()


def test_a_neural_cache_is_refused_for_translation(chainrule: Command, translators: list[Path], tmp_path: Path) -> None:
    outcome = chainrule("mix", *translators, "--neural-cache", 100, "--out", tmp_path / "both")
    refused(outcome, "neural cache is for runs of text")


def test_parts_without_a_source_cannot_be_mixed_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match="combine parts of one task"):
        ConditionalMixture.of([tiny_model("seq2seq"), tiny_model("gpt")])
