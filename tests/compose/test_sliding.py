"""A sliding window gives the distribution that scoring by half-overlapping windows measures, for any length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chainrule.compose.sliding import Sliding
from chainrule.data.corpus import Corpus
from chainrule.decoding import Sampling, generate_tokens
from chainrule.evaluation.likelihood import score
from chainrule.evaluation.protocol import protocol_for
from chainrule.evaluation.token_scores import token_scores
from chainrule.models.gpt import GPT, GPTConfig
from chainrule.testing.checks import float64
from chainrule.types import Batch, Sequences, merge, select

VOCABULARY = 7


def small_gpt(context: int) -> GPT:
    torch.manual_seed(0)
    with float64():
        model = GPT(GPTConfig(vocabulary=VOCABULARY, layers=2, width=8, heads=2, context=context))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def text(length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(VOCABULARY, size=length)


@pytest.mark.parametrize("context", [1, 2, 7, 8])
def test_the_score_equals_that_of_windows(context: int) -> None:
    model = small_gpt(context)
    stride = max(1, context // 2)
    corpus = Corpus.of_tokens(text(context + 5 * stride), vocabulary=VOCABULARY)
    by_windows, by_sliding = (token_scores(one, corpus) for one in (model, Sliding.of(model)))
    assert [one.surprisal for one in by_sliding] == pytest.approx([one.surprisal for one in by_windows], abs=1e-10)
    assert score(Sliding.of(model), corpus).protocol.method == "carried"


def test_another_overlap_is_another_stride() -> None:
    model = small_gpt(8)
    corpus = Corpus.of_tokens(text(8 + 4 * 2), vocabulary=VOCABULARY)
    by_windows = score(model, corpus, protocol_for(model, corpus, stride=2))
    assert score(Sliding.of(model, overlap=6), corpus).nats_per_token == pytest.approx(by_windows.nats_per_token)


@torch.no_grad()
def test_every_prediction_sees_the_overlap_and_nothing_before_its_window() -> None:
    model = Sliding.of(small_gpt(8))
    ids = torch.from_numpy(text(30))[None]
    logits = model.logits(Batch(Sequences.full(ids)))
    for position in range(30):
        seen = position if position < 8 else 4 + (position - 8) % 4
        window = ids[:, position - seen : position + 1]
        expected = model.model.logits(Batch(Sequences.full(window)))[:, -1]
        torch.testing.assert_close(logits[:, position], expected)


@torch.no_grad()
def test_windows_of_rows_at_different_positions_move_independently() -> None:
    model = Sliding.of(small_gpt(6))
    prompts = [torch.from_numpy(text(20)[:length])[None] for length in (3, 5, 11, 12)]
    following = torch.from_numpy(text(9))[None]
    alone = [model.extend(following, model.extend(one, model.start().state).state).logits for one in prompts]
    states = [model.extend(one, model.start().state).state for one in prompts]
    order = torch.tensor([3, 0, 2, 1])
    together = model.extend(following.expand(4, -1), select(merge(states), order)).logits
    torch.testing.assert_close(together, torch.cat(alone)[order])


def test_generation_equals_generation_by_windows() -> None:
    model = small_gpt(8)
    sampling = Sampling(temperature=1.0)
    texts = [
        generate_tokens(one, [[1, 2], []], length=40, sampling=sampling, seeds=[3, 4], eos=None)
        for one in (model, Sliding.of(model))
    ]
    assert [one.ids for one in texts[0]] == [one.ids for one in texts[1]]
