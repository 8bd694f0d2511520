"""Runs that are initialised from another run (`start_from`)."""

import shutil

import pytest
import torch

import chainrule
from chainrule.errors import ConfigError
from chainrule.families import build
from chainrule.models.nonautoregressive import NonAutoregressiveConfig
from chainrule.training.warm_start import WarmStart

TEXT = "the cat sat on the mat and the dog sat on the log\n" * 60
SMALL = {"model": {"layers": 1, "width": 16, "heads": 2, "context": 32}, "train": {"batch_tokens": 128}}
PAIRS = "".join(f"{word} house\tHaus {word}\n" for word in ("red", "blue", "old", "new", "big", "dear") * 20)
SMALL_PAIRS = {
    "model": {"encoder_layers": 1, "decoder_layers": 1, "width": 16, "heads": 2},
    "train": {"batch_tokens": 256, "validate_bleu": False},
}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def teacher(tmp_path, text):
    return chainrule.train("gpt", data=str(text), steps=30, settings=SMALL, out=tmp_path / "teacher", scored=False)


@pytest.fixture
def translator(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(PAIRS)
    settings = {**SMALL_PAIRS, "data": {"duplicates": "keep"}}
    return chainrule.train(
        "transformer", data=str(path), steps=2, settings=settings, out=tmp_path / "translator", scored=False
    )


def first_loss(run):
    return next(one["loss"] for one in run.folder.records("metrics.jsonl") if "loss" in one)


def test_a_run_of_the_same_family_continues_from_the_weights_of_the_other(tmp_path, teacher, text):
    """It inherits all settings, and the vocabulary even for data with characters that it does not contain."""
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("cat", "äöü"))
    log = {"train": {"log_every": 1, "batch_tokens": 128}}
    run = chainrule.train(
        "gpt", data=str(other), start_from=teacher.path, steps=1, settings=log, out=tmp_path / "new", scored=False
    )
    fresh = chainrule.train("gpt", data=str(text), steps=1, settings={**SMALL, **log}, out=tmp_path / "x", scored=False)
    assert run.model.config == teacher.model.config
    assert (run.path / "tokenizer.json").read_bytes() == (teacher.path / "tokenizer.json").read_bytes()
    assert first_loss(run) < first_loss(fresh) - 0.2


def test_a_model_of_the_same_family_and_size_receives_all_weights(teacher):
    model = build("gpt", teacher.config.model)
    assert WarmStart.open(str(teacher.path), "gpt").copy_weights(model) == 1
    given = teacher.model.state_dict()
    assert all(torch.equal(one, given[name]) for name, one in model.state_dict().items())


def test_another_family_receives_the_weights_of_shared_parts(translator):
    common = NonAutoregressiveConfig.model_fields.keys() & translator.config.model.keys()
    settings = {name: translator.config.model[name] for name in common}
    model = build("nonautoregressive", {**settings, "encoder_layers": 2})
    before = {name: one.clone() for name, one in model.state_dict().items()}
    share = WarmStart.open(str(translator.path), "nonautoregressive").copy_weights(model)
    given, after = translator.model.state_dict(), model.state_dict()
    taken = {name for name in after if torch.equal(after[name], given.get(name.removeprefix("body."), torch.empty(0)))}
    parts = ("tokens.matrix", "encoder.layers.0.mlp.out.weight", "decoder.layers.0.cross_attention.out.weight")
    assert {f"body.{part}" for part in parts} <= taken
    assert 0.5 < share < 1
    left = {name for name in after if name.startswith(("body.encoder.layers.1", "output."))}
    assert left
    assert all(torch.equal(after[name], before[name]) for name in left)


def test_a_parallel_model_is_trained_from_a_transformer(tmp_path, translator):
    run = chainrule.train(
        "nonautoregressive", data=translator.config.data.train, start_from=translator.path, steps=1,
        settings={"train": SMALL_PAIRS["train"], "data": {"duplicates": "keep"}}, out=tmp_path / "nar", scored=False,
    )  # fmt: skip
    assert run.model.config.width == 16
    assert run.config.start_from == str(translator.path)


def test_a_resumed_run_does_not_need_the_run_that_it_started_from(tmp_path, teacher, text):
    words = {"data": str(text), "start_from": teacher.path, "settings": SMALL, "out": tmp_path / "new", "scored": False}
    chainrule.train("gpt", steps=1, **words)
    shutil.rmtree(teacher.path)
    run = chainrule.train("gpt", steps=2, resume=True, **words)
    assert run.outcome is not None
    assert run.outcome.step == 2


def test_a_run_without_matching_weights_is_refused(tmp_path, teacher, text, translator):
    def start(family, run, **words):
        chainrule.train(family, data=str(text), start_from=run, steps=1, out=tmp_path / "new", **words)

    with pytest.raises(ConfigError, match="is a text run and transformer is a translation family"):
        start("transformer", teacher.path)
    with pytest.raises(ConfigError, match="keeps the vocabulary of the run, but tokenizer is 'words' and was 'chars'"):
        start("gpt", teacher.path, tokenizer="words")
    with pytest.raises(ConfigError, match="ngram has none"):
        start("ngram", teacher.path)
    with pytest.raises(ConfigError, match=r"no weight of .* matches"):
        start("recurrent", teacher.path, settings={"model": {"width": 24, "tied": False}})
    assert not (tmp_path / "new").exists()
