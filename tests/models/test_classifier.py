"""Text classifiers with all encoders; properties of every family are in tests/testing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule
from chainrule.config import DataConfig, RunConfig
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.families import build
from chainrule.models.classifier import Classifier
from chainrule.nn.attention import AttentionPooling
from chainrule.tasks import load
from chainrule.tasks.labels import LabelRun
from chainrule.testing.tiny import tiny_model
from chainrule.tokenizers.words import Words
from chainrule.training.checkpoint import RunFolder
from chainrule.types import Batch, Sequences
from tests.features.folders import write_bert

GOOD, BAD, OTHER = ("good", "great", "fine"), ("bad", "awful", "dull"), ("the", "film", "was", "a", "story")


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Texts whose label is determined by one word."""
    chance = random.Random(0)
    lines = []
    for number in range(240):
        words = [*chance.choices(OTHER, k=chance.randint(1, 5)), chance.choice(GOOD if number % 2 else BAD)]
        chance.shuffle(words)
        lines.append(f"{' '.join(words)}\t{'positive' if number % 2 else 'negative'}\n")
    path = tmp_path / "reviews.tsv"
    path.write_text("".join(lines))
    return path


def train(data: Path, out: Path, steps: int = 4, **model: Any) -> LabelRun:
    settings = {
        "model": {"embedding": 16, "hidden": 16, "heads": 1, **model},
        "train": {"batch_tokens": 256, "learning_rate": 0.02},
    }
    run = chainrule.train("classifier", data=str(data), out=out, steps=steps, settings=settings, seed=1)
    assert isinstance(run, LabelRun)
    return run


def test_labels_determined_by_one_word_are_learnt(reviews: Path, tmp_path: Path) -> None:
    run = train(reviews, tmp_path / "run", steps=60)
    assert run.info()["validation"]["accuracy"] == 1.0
    found = list(load(tmp_path / "run", LabelRun).predict(["a great story", "", "the film was dull"]))
    assert [one and one.label for one in found] == ["positive", None, "negative"]
    assert found[0] is not None
    assert sum(found[0].probabilities.values()) == pytest.approx(1)


def test_the_best_checkpoint_can_be_selected_by_accuracy(reviews: Path, tmp_path: Path) -> None:
    chainrule.train(
        "classifier", data=str(reviews), out=tmp_path / "run", steps=30,
        settings={"train": {"best_by": "accuracy", "patience": 2, "validate_every": 3, "batch_tokens": 256}},
    )  # fmt: skip
    records = [one for one in RunFolder(tmp_path / "run").records("metrics.jsonl") if "valid_accuracy" in one]
    best = max(one["valid_accuracy"] for one in records)
    assert load(tmp_path / "run").info()["validation"]["accuracy"] == pytest.approx(best)
    assert records[-1]["step"] < 30  # patience


def test_a_metric_that_is_not_measured_cannot_select_the_best_checkpoint(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.best_by is 'accuracy', which is not measured for this task"):
        chainrule.train(
            "recurrent", data=str(text_file), out=tmp_path / "run", steps=1,
            settings={"model": {"width": 4}, "train": {"best_by": "accuracy"}},
        )  # fmt: skip


def test_attention_pooling_is_initially_the_mean_without_padding() -> None:
    pooling = AttentionPooling(4, 3, heads=2)
    vectors = torch.randn(2, 5, 4)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    pooled = pooling(vectors, mask)
    torch.testing.assert_close(pooled[0, :4], vectors[0].mean(0))
    torch.testing.assert_close(pooled[1, 4:], vectors[1, :3].mean(0))
    assert pooling.weights(vectors, mask)[1, :, 3:].sum() == 0


def test_attention_maps_are_distributions_over_unpadded_tokens() -> None:
    model = tiny_model("classifier")
    assert isinstance(model, Classifier)
    source = Sequences(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1]))
    maps = model.attention_maps(Batch(Sequences.full(torch.zeros(2, 1, dtype=torch.int64)), source))
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 1))
    assert maps.shape == (2, 1, 3)
    assert maps[0].std() > 0
    assert maps[1, 0, 1:].sum() == 0


def test_no_token_can_follow_a_label() -> None:
    model = tiny_model("classifier")
    source = Sequences.full(torch.tensor([[1, 2]]))
    state = model.start(source).state
    with pytest.raises(DataError, match="does not fit into the context of 1"):
        model.extend(torch.tensor([[0]]), state)


def test_frozen_pretrained_weights_are_not_stored_with_the_run(reviews: Path, tmp_path: Path) -> None:
    write_bert(tmp_path / "bert")
    run = train(reviews, tmp_path / "run", features=str(tmp_path / "bert"))
    assert run.tokenizer.kind == "huggingface"  # that of the pretrained model
    weights = RunFolder(tmp_path / "run")._read_tensors(tmp_path / "run" / "model.safetensors")
    assert not [name for name in weights if name.startswith("encoder")]
    assert run.model.config.features_fingerprint
    write_bert(tmp_path / "bert", seed=5)
    with pytest.raises(RunError, match="is not the one that this model was trained with"):
        load(tmp_path / "run")


def test_frozen_features_are_computed_once(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chainrule.nn.pretrained_encoders import BertEncoder

    write_bert(tmp_path / "bert")
    first = train(reviews, tmp_path / "one", features=str(tmp_path / "bert"))

    def refuse(*_: object) -> None:
        raise AssertionError("the model was asked again")

    monkeypatch.setattr(BertEncoder, "forward", refuse)
    second = train(reviews, tmp_path / "two", features=str(tmp_path / "bert"))
    assert first.info()["validation"] == second.info()["validation"]


def test_a_pretrained_bert_can_be_fine_tuned(reviews: Path, tmp_path: Path) -> None:
    write_bert(tmp_path / "bert")
    run = train(reviews, tmp_path / "run", features=str(tmp_path / "bert"), fine_tune=True)
    fresh = build("classifier", run.config.model)
    learnt, given = run.model.state_dict(), fresh.state_dict()
    changed = [name for name in learnt if name.startswith("encoder") and not torch.equal(learnt[name], given[name])]
    assert len(changed) > 10


def embedder_run(path: Path) -> Path:
    """An ELMo with random weights."""
    words = Words([*GOOD, *BAD, *OTHER])
    settings = {"vocabulary": words.vocabulary, "layers": 1, "width": 6}
    torch.manual_seed(0)
    folder = RunFolder(path)
    data = DataConfig(train="somewhere", unit="documents")
    folder.create(RunConfig(family="elmo", tokenizer="words", data=data, model=settings), words)
    folder.write_weights(build("elmo", settings))
    return path


@pytest.mark.parametrize("fine_tune", [False, True])
def test_an_elmo_run_is_the_encoder_and_changes_only_if_fine_tuned(
    reviews: Path, tmp_path: Path, fine_tune: bool
) -> None:
    elmo = embedder_run(tmp_path / "elmo")
    given = RunFolder(elmo)._read_tensors(elmo / "model.safetensors")
    run = train(reviews, tmp_path / "run", encoder_run=str(elmo), fine_tune=fine_tune)
    shutil.rmtree(elmo)  # its weights are in the new run
    again = load(tmp_path / "run", LabelRun)
    learnt = dict(again.model.encoder.model.state_dict())
    assert fine_tune != all(torch.equal(learnt[name], tensor) for name, tensor in given.items())
    assert list(again.predict(["a great film"])) == list(run.predict(["a great film"]))


def test_a_long_text_is_truncated_to_the_context_of_the_encoder(reviews: Path, tmp_path: Path) -> None:
    run = train(reviews, tmp_path / "run", encoder="attentive_conv", encoder_context=4)
    [short, long] = run.predict(["good film", "good film was bad awful dull"])
    [same] = run.predict(["good film was dull"])
    assert short is not None and long is not None and same is not None  # noqa: PT018
    assert (short.cut, long.cut) == (False, True)
    assert long.probability == pytest.approx(same.probability)  # three tokens of each


@pytest.mark.parametrize(
    "model", [{"encoder": "pretrained"}, {"encoder": "words", "features": "x"}, {"encoder": "run"}]
)
def test_an_encoder_and_its_folder_go_together(model: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="require each other"):
        build("classifier", {"vocabulary": 2, "source_vocabulary": 5, **model})
