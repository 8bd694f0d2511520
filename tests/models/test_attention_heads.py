"""Attention weights by layer and head, for the families that expose them."""

from __future__ import annotations

import pytest
import torch

from chainrule.interface.capabilities import AttentionHeads
from chainrule.interface.conditional import HasAttention
from chainrule.testing.tiny import SOURCE_VOCABULARY, VOCABULARY, tiny_model
from chainrule.types import Batch, Sequences

FORMS = [("gpt", "modern"), ("gpt", "gpt2"), ("attentive_conv", "untied"), ("transformer", "rotary")]


def a_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(VOCABULARY, (2, 6), generator=generator)
    source = torch.randint(SOURCE_VOCABULARY, (2, 4), generator=generator)
    return Batch(Sequences.full(target), Sequences(source, torch.tensor([4, 3])))


@pytest.mark.parametrize(("family", "form"), FORMS)
@torch.inference_mode()
def test_the_weights_of_every_head_sum_to_one_and_never_reach_ahead(family: str, form: str) -> None:
    model = tiny_model(family, form).eval()
    assert isinstance(model, AttentionHeads)
    batch = a_batch()
    weights = model.attention_heads(batch if isinstance(model, HasAttention) else batch._replace(source=None))
    assert torch.allclose(weights.sum(-1), torch.ones(()).to(weights))
    if isinstance(model, HasAttention):
        assert weights.shape == (2, 2, 2, 6, 4)
        assert torch.allclose(model.attention_maps(batch), weights.mean((0, 2)))
        assert torch.all(weights[:, 1, :, :, 3] == 0)  # padding of the second source
    else:
        assert weights.shape == (2, 2, 2, 6, 6)
        assert torch.all(weights.triu(1) == 0)


@pytest.mark.parametrize(("family", "form"), FORMS[:3])
@torch.inference_mode()
def test_recording_the_weights_leaves_the_predictions_as_they_are(family: str, form: str) -> None:
    model = tiny_model(family, form).eval()
    batch = a_batch()._replace(source=None)
    before = model.logits(batch)
    model.attention_heads(batch)
    assert torch.equal(model.logits(batch), before)
