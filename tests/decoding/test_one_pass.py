"""Hybrids at γ = 1: all tokens of a block in one pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chainrule.decoding import GREEDY, Sampling, Search, generate_tokens
from chainrule.decoding.translation import decode_sources
from chainrule.errors import DecodingError
from chainrule.interface.base import Recomputed
from chainrule.models.hybrid import Hybrid
from chainrule.models.hybrid_language import HybridLanguage
from chainrule.types import Batch, Sequences
from tests.models.test_hybrid import SOURCE_VOCABULARY, language_model, translator

PROMPTS = [[1, 2, 3], [], [4], [1, 2, 3, 4, 5, 6]]


def count_passes(model: HybridLanguage | Hybrid, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each pass of the non-autoregressive branch."""
    passes: list[int] = []
    plan = model.parallel.plan

    def counted(source: torch.Tensor, *rest: Any) -> Any:
        passes.append(len(source))
        return plan(source, *rest)

    def refuse(*_: object) -> None:
        raise AssertionError("the autoregressive branch was run")

    monkeypatch.setattr(model.parallel, "plan", counted)
    monkeypatch.setattr(model, "read_target", refuse)
    return passes


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9)])
def test_a_text_in_one_pass_per_chunk_is_that_of_single_steps(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    model = language_model().with_gamma(1.0)
    options: dict[str, Any] = {"length": 10, "sampling": sampling}
    stepwise = [
        generate_tokens(Recomputed(model), [prompt], seeds=[seed], **options)[0] for seed, prompt in enumerate(PROMPTS)
    ]
    passes = count_passes(model, monkeypatch)
    found = generate_tokens(model, PROMPTS, seeds=range(4), **options)
    assert [one.ids for one in found] == [one.ids for one in stepwise]
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in stepwise])
    assert len(passes) == 4  # chunks of 4 for 10 tokens that begin within a chunk


def test_a_translation_in_one_pass_is_the_most_probable_token_of_every_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = translator(min_mass=0.0, gate="fixed", gamma=1.0)
    sources = [[3, 4, 0], [5, 0], [8, 2, 1, 6, 0]]
    expected = decode_sources(stepwise_translator(), sources, Search(beam=1), eos=0)
    passes = count_passes(model, monkeypatch)
    found = decode_sources(model, sources, Search(beam=1), eos=0, batch=3)
    assert passes == [3]
    for [one], [other] in zip(found, expected, strict=True):
        count = len(one.ids)  # steps continue past the planned positions
        assert one.ids == other.ids[:count]
        assert one.finished == "length" or (one.ids, one.finished) == (other.ids, "eos")


class Stepwise(Hybrid):
    """Decoded step by step at any γ."""

    @property
    def one_pass(self) -> bool:
        return False


def stepwise_translator() -> Hybrid:
    model = translator(min_mass=0.0, gate="fixed", gamma=1.0)
    model.__class__ = Stepwise
    return model


@torch.no_grad()
def test_positions_with_little_mass_are_not_generated() -> None:
    every, some = translator(min_mass=0.0).with_gamma(1.0), translator(min_mass=0.4).with_gamma(1.0)
    source = Sequences.full(torch.tensor([[3, 4, 7, 2, 1, 8, 5]]))
    assert int(source.ids.max()) < SOURCE_VOCABULARY
    mass = some.plan(source).mass[0]
    kept = (mass >= 0.4).nonzero()[:, 0].tolist()
    assert 0 < len(kept) < len(mass)
    no_eos = [0]  # so that no translation ends early
    [[complete]] = decode_sources(every, source.ids.tolist(), Search(beam=1), eos=0, suppress=no_eos)
    [[found]] = decode_sources(some, source.ids.tolist(), Search(beam=1), eos=0, suppress=no_eos)
    assert found.ids == [complete.ids[position] for position in kept]


def test_the_likelihood_at_gamma_one_is_that_of_the_non_autoregressive_branch() -> None:
    model = language_model(min_mass=100.0)  # more than any position has
    batch = Batch(Sequences.full(torch.tensor([[1, 2, 3, 4, 5, 6, 0, 1, 2]])))
    with torch.no_grad():
        torch.testing.assert_close(model.with_gamma(1.0).logits(batch), model.branch_log_probs(model.hidden(batch))[1])


def test_one_pass_takes_no_draft_and_has_one_translation() -> None:
    model = language_model().with_gamma(1.0)
    with pytest.raises(DecodingError, match="cannot use a draft"):
        generate_tokens(model, [[1]], length=3, sampling=GREEDY, seeds=[0], draft=model)
    with pytest.raises(DecodingError, match="one translation per source"):
        decode_sources(translator().with_gamma(1.0), [[3, 0]], Search(beam=2, n_best=2))
