"""The size of a model follows from its budget and its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chainrule
from chainrule.families import FAMILIES
from chainrule.tasks.pair_comparison import PairComparison
from chainrule.tasks.text_comparison import TextComparison
from chainrule.training.progress import Reporter
from chainrule.training.sizing import (
    EFFICIENCY,
    dropout_for,
    operations_per_second,
    parameter_count,
    shape_for,
    sizes_for_examples,
    sizes_for_minutes,
)

SIZES = {"vocabulary": 65}


def test_a_larger_budget_gives_a_wider_model():
    shapes = [shape_for("gpt", SIZES, operations) for operations in (1e11, 1e13, 1e15)]
    widths = [shape["width"] for shape in shapes]
    assert widths == sorted(set(widths))
    assert parameter_count("gpt", SIZES | shapes[1]) < parameter_count("gpt", SIZES | shapes[2])


def test_dropout_increases_with_the_number_of_epochs():
    assert [dropout_for(epochs) for epochs in (1, 5, 10, 40)] == [0.0, 0.1, 0.2, 0.3]


def test_a_small_gpt_has_fewer_layers_unless_they_are_given():
    assert shape_for("gpt", SIZES, 1e12)["layers"] < FAMILIES["gpt"].Config(vocabulary=65).layers
    assert "layers" not in shape_for("gpt", SIZES | {"layers": 6}, 1e12)


def test_the_clock_of_the_training_measures_the_speed():
    ticks = iter(range(10))
    speed = operations_per_second(1, lambda: float(next(ticks)), seconds=3.0)  # it reads the clock once per product
    assert speed == pytest.approx(EFFICIENCY * 2 * 2 * 512**3 / 4)


@pytest.mark.parametrize("operations", [1e12, 1e13, 1e14])
def test_a_hybrid_of_text_has_as_many_blocks_as_a_gpt_for_the_same_budget(operations: float):
    gpt, hybrid = (
        sizes_for_minutes(name, SIZES, train_tokens=10**7, operations=operations, model={}, train={}).model
        for name in ("gpt", "hybrid_language")
    )
    assert hybrid.get("layers") == gpt.get("layers")  # None: the default, which is the same


def test_parts_that_most_steps_skip_do_not_count_against_the_budget():
    rare, always = (shape_for("hybrid_language", SIZES | {"branch_share": share}, 3e12) for share in (0.125, 1.0))
    assert rare["width"] > always["width"]


def test_widths_that_do_not_fit_the_heads_are_passed_over():
    assert shape_for("gpt", SIZES | {"heads": 3}, 1e12)["width"] % 3 == 0


NEURAL = [name for name in TextComparison.families() if "width" in FAMILIES[name].Config.model_fields]


@pytest.mark.parametrize("family", NEURAL)
@pytest.mark.parametrize("operations", [1e10, 1e12, 1e14])
def test_every_text_family_gets_valid_sizes_for_minutes(family: str, operations: float):
    chosen = sizes_for_minutes(family, SIZES, train_tokens=10**5, operations=operations, model={}, train={})
    assert parameter_count(family, SIZES | chosen.model) > 0


def test_five_minutes_of_two_cores_keep_the_defaults_of_gpt_unless_the_text_is_small():
    operations = 5 * 60 * 30e9
    chosen = [
        sizes_for_minutes("gpt", SIZES, train_tokens=tokens, operations=operations, model={}, train={})
        for tokens in (10**6, 10**5)
    ]
    assert chosen[0].model == {}
    assert chosen[1].model.keys() == {"dropout"}
    assert [one.train for one in chosen] == [{}, {}]


class Notes(Reporter):
    def __init__(self) -> None:
        self.found: list[str] = []

    def note(self, text: str) -> None:
        self.found.append(text)


def trained(text_file: Path, out: Path, **options: Any) -> tuple[chainrule.Run, list[str]]:
    notes = Notes()
    run = chainrule.train("gpt", data=str(text_file), out=out, threads=1, scored=False, reporter=notes, **options)
    return run, [note for note in notes.found if "chosen for" in note]


def test_a_budget_in_minutes_chooses_the_size_and_says_so(text_file: Path, tmp_path: Path):
    run, [note] = trained(text_file, tmp_path / "run", minutes=0.01)
    model, defaults = run.config.model, FAMILIES["gpt"].Config(vocabulary=65)
    assert model["width"] < defaults.width
    assert model["layers"] < defaults.layers
    assert f"width {model['width']}, layers {model['layers']}, context {model['context']}" in note
    assert f"batches of {run.config.train.batch_tokens:,} tokens" in note
    assert "0.01 minutes" in note
    assert "GFLOP/s" in note
    assert "training tokens" in note
    again, notes = trained(text_file, tmp_path / "run", minutes=0.02, resume=True)
    assert again.config.model == model
    assert notes == []


def test_given_settings_take_precedence_over_the_size_for_the_budget(text_file: Path, tmp_path: Path):
    settings = {"model": {"context": 48, "layers": 1}, "train": {"batch_tokens": 96}}
    run, [note] = trained(text_file, tmp_path / "a", minutes=0.005, settings=settings)
    assert (run.config.model["context"], run.config.model["layers"], run.config.train.batch_tokens) == (48, 1, 96)
    assert "width" in note
    assert "context" not in note
    tiny = ["model.width=16", "model.layers=1"]
    run, notes = trained(text_file, tmp_path / "b", minutes=0.005, overrides=tiny)
    assert (run.config.model["width"], run.config.model["context"]) == (16, 256)
    assert notes == []
    again, notes = trained(text_file, tmp_path / "c", minutes=0.005, config=tmp_path / "b" / "config.toml")
    assert again.config.model == run.config.model
    assert notes == []
    started, notes = trained(text_file, tmp_path / "d", minutes=0.005, start_from=str(tmp_path / "b"))
    assert started.config.model["width"] == 16
    assert notes == []


def test_budgets_that_are_not_of_time_give_the_same_model_on_every_machine(text_file: Path, tmp_path: Path):
    run, notes = trained(text_file, tmp_path / "run", tokens=10, overrides=["model.layers=1", "train.batch_tokens=64"])
    assert run.config.model["width"] == FAMILIES["gpt"].Config(vocabulary=65).width
    assert notes == []


PAIRS = {"vocabulary": 300, "source_vocabulary": 300}


@pytest.mark.parametrize("name", PairComparison.families())
def test_a_larger_budget_gives_a_wider_translation_model_whose_context_stays(name: str) -> None:
    entry = PairComparison.known_entries()[name]
    chosen = [
        sizes_for_examples(
            entry.family, PAIRS, train_tokens=10**6, operations=operations, model=entry.model, train=entry.train
        )
        for operations in (1e10, 1e15)
    ]
    assert chosen[0].model["width"] < chosen[1].model["width"]
    assert chosen[0].train["batch_tokens"] <= chosen[1].train["batch_tokens"]
    assert all("context" not in one.model for one in chosen)


def test_the_encoder_of_a_classifier_is_sized_unless_it_only_looks_words_up_or_was_trained_before() -> None:
    known = {"vocabulary": 2, "source_vocabulary": 20_000}

    def sized(**model: Any) -> dict[str, Any]:
        chosen = sizes_for_examples("classifier", known, train_tokens=10**5, operations=1e10, model=model, train={})
        return chosen.model

    assert sized(encoder="attentive_conv")["embedding"] < 128
    assert "embedding" not in sized()
    assert sized(features="models/bert") == {"features": "models/bert"}
    assert sized(encoder="attentive_conv", embedding=64)["embedding"] == 64
