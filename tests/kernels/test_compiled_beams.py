"""A compiled beam search finds what the search in Python finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chainrule.decoding import beam_search
from chainrule.decoding.beam import beam_rules, beam_steps, wu
from chainrule.decoding.compiled_beam import CompiledBeamSearch
from chainrule.errors import NotANumber
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.conditional import Conditional
from chainrule.kernels import step
from chainrule.kernels.step import Compilable, torch_only
from chainrule.testing.tiny import SOURCE_VOCABULARY, composed_variants, tiny_model, variants
from chainrule.types import Sequences

COMPILED = [
    (name, variant)
    for name, variant in [*variants(), *composed_variants()]
    if isinstance(model := tiny_model(name, variant), Compilable)
    and model.has_program
    and variant != "markov"  # texts with the same bigrams tie, but for rounding
]
PROMPTS = 5
SEARCHES: list[dict[str, Any]] = [
    {"width": 1, "length": 6},
    {"width": 4, "length": 7, "eos": 0, "num": 4},
    {"width": 3, "length": [4, 9, 1, 12, 6], "eos": 1, "ended_first": True, "num": 2, "suppress": [2, 3]},
    {"width": 5, "length": 12, "eos": 0, "length_penalty": 0.0},
    {"width": 5, "length": 5, "length_penalty": 2.0, "normaliser": wu, "num": 5},
    {"width": 40, "length": 3, "eos": 2, "num": 40},
]


@pytest.fixture(autouse=True)
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "max_rows", lambda: step.MANY_ROWS)


def searched(model: AutoregressiveModel, options: dict[str, Any], prompts: list[list[int]]) -> dict[str, Any]:
    if not isinstance(model, Conditional):
        return options
    known = min(SOURCE_VOCABULARY, model.source_vocabulary)
    longest = min(6, model.source_context or 6)
    ids = torch.randint(known, (PROMPTS, longest), generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([6, 1, 4, 2, 5]).clamp(max=longest)
    return {**options, "source": Sequences(ids[: len(prompts)], lengths[: len(prompts)])}


def assert_compiled_is_reference(model: AutoregressiveModel, options: dict[str, Any], prompts: list[list[int]]) -> None:
    options = searched(model, options, prompts)
    with torch_only():
        expected = beam_search(model, prompts, **options)
    found = beam_search(model, prompts, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert [(one.ids, one.finished) for one in ours] == [(one.ids, one.finished) for one in theirs]
        assert [one.log_prob for one in ours] == pytest.approx([one.log_prob for one in theirs], abs=1e-9)


def prompts_of(model: AutoregressiveModel) -> list[list[int]]:
    return [[]] * PROMPTS if isinstance(model, Conditional) else [[1, 2], [], [3], [0, 4], [2, 2, 1]]


@pytest.mark.parametrize("options", SEARCHES, ids=range(len(SEARCHES)))
@pytest.mark.parametrize(("name", "variant"), [("transformer", "added"), ("gpt", "modern"), ("recurrent", "lstm")])
def test_the_compiled_search_finds_what_torch_finds(name: str, variant: str, options: dict[str, Any]) -> None:
    model = tiny_model(name, variant).double()
    assert_compiled_is_reference(model, options, prompts_of(model))


@pytest.mark.parametrize(("name", "variant"), COMPILED)
def test_every_family_with_a_program_is_searched_by_it(name: str, variant: str) -> None:
    model = tiny_model(name, variant).double()
    assert_compiled_is_reference(model, {"width": 4, "length": 11, "eos": 0, "num": 3}, prompts_of(model))


def test_searches_beyond_a_group_of_rows_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("transformer", "added").double()
    options = searched(model, {"width": 3, "length": 8, "eos": 0}, [[]] * PROMPTS)
    together = beam_search(model, [[]] * PROMPTS, **options)
    monkeypatch.setattr(step, "max_rows", lambda: 6)
    assert beam_search(model, [[]] * PROMPTS, **options) == together


def test_the_steps_of_a_search_in_python_lead_to_the_compiled_result() -> None:
    model = tiny_model("gpt", "modern").double()
    *_, last = beam_steps(model, [[1], []], width=3, length=6, eos=0)
    assert [[one.ids for one in beam.best()] for beam in last] == [
        [one.ids for one in found] for found in beam_search(model, [[1], []], width=3, length=6, eos=0)
    ]


def test_a_search_across_a_moving_window_or_with_a_stopping_criterion_is_left_to_python() -> None:
    model = tiny_model("gpt", "modern").double()
    assert model.context is not None

    def compiled(length: int, **options: Any) -> bool:
        rules = beam_rules(model, [[1]], width=2, length=length, **options)
        return CompiledBeamSearch.of(model, [[1]], rules, (), None) is not None

    with torch.inference_mode():
        assert compiled(4)
        assert not compiled(4 + model.context)
        assert not compiled(4, stop=lambda ids: len(ids) > 2)


def test_nan_is_reported() -> None:
    model = tiny_model("recurrent", "lstm").float()
    with torch.no_grad():
        next(iter(model.tables())).fill_(float("nan"))
    with pytest.raises(NotANumber):
        beam_search(model, [[1]], width=2, length=3)


def test_progress_ends_at_one() -> None:
    shares: list[float] = []
    beam_search(tiny_model("recurrent", "lstm"), [[1], []], width=2, length=40, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 1
