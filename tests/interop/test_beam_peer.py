"""Beam search finds the same translations as `generate` of transformers, given the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chainrule.config import ModelConfig
from chainrule.decoding import beam_search
from chainrule.interface.base import AutoregressiveModel, Recomputed
from chainrule.types import Batch, Sequences, State, Step

transformers = pytest.importorskip("transformers")

VOCABULARY, PADDING, LENGTH = 30, 30, 9


class Marian(AutoregressiveModel):
    """A translation model of transformers behind our interface, without a cache."""

    task = "translation"

    def __init__(self) -> None:
        super().__init__(ModelConfig(vocabulary=VOCABULARY))
        config = transformers.MarianConfig(
            vocab_size=VOCABULARY + 1,
            d_model=16,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=32,
            pad_token_id=PADDING,
            decoder_start_token_id=PADDING,
            eos_token_id=0,
            forced_eos_token_id=None,
        )
        self.inner = transformers.MarianMTModel(config).double().eval()
        self.inner.final_logits_bias[:, PADDING] = -1e9  # which is no word
        for parameter in self.inner.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.3)

    def logits(self, batch: Batch) -> Tensor:
        assert batch.source is not None
        ids, mask = padded(batch.source)
        inputs = torch.cat([torch.full_like(batch.target.ids[:, :1], PADDING), batch.target.ids[:, :-1]], dim=1)
        found: Tensor = self.inner(input_ids=ids, attention_mask=mask, decoder_input_ids=inputs).logits
        return found[..., :VOCABULARY]

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        return Recomputed(self).start(source, batch_size=batch_size)

    def extend(self, tokens: Tensor, state: State) -> Step:
        return Recomputed(self).extend(tokens, state)


def padded(source: Sequences) -> tuple[Tensor, Tensor]:
    return source.ids.masked_fill(~source.mask, PADDING), source.mask.long()


def generated(model: Marian, source: Sequences, **words: Any) -> Any:
    ids, mask = padded(source)
    how = transformers.GenerationConfig(
        do_sample=False,
        eos_token_id=0,
        pad_token_id=PADDING,
        decoder_start_token_id=PADDING,
        return_dict_in_generate=True,
        output_scores=True,
        max_new_tokens=LENGTH,
        **words,
    )
    return model.inner.generate(ids, attention_mask=mask, generation_config=how)


@pytest.fixture
def model() -> Marian:
    torch.manual_seed(3)
    return Marian()


@pytest.fixture
def source() -> Sequences:
    return Sequences.pack([torch.randint(1, VOCABULARY, (length,)).tolist() for length in (3, 7, 5, 1)])


@pytest.mark.parametrize("beam", [1, 2, 5])
@torch.inference_mode()
def test_both_find_the_same_translations_of_a_fixed_length_with_the_same_scores(
    model: Marian, source: Sequences, beam: int
) -> None:
    theirs = generated(model, source, num_beams=beam, num_return_sequences=beam, min_new_tokens=LENGTH)
    ours = beam_search(
        Recomputed(model),
        [[]] * 4,
        width=beam,
        length=LENGTH,
        suppress=[0],
        num=beam,
        source=source,
        length_penalty=0.0,
    )
    found = [one.ids for results in ours for one in results]
    assert found == theirs.sequences[:, 1 : LENGTH + 1].tolist()
    if beam > 1:
        normalised = theirs.sequences_scores * LENGTH  # it divides by the length
        torch.testing.assert_close(torch.tensor([one.log_prob for row in ours for one in row]), normalised.float())


@torch.inference_mode()
def test_free_length_translations_are_at_least_as_likely_as_in_transformers(model: Marian, source: Sequences) -> None:
    """Finished hypotheses stay in our beam, so the two searches explore different hypotheses."""
    theirs = generated(model, source, num_beams=5, length_penalty=0.0, early_stopping="never")
    ours = beam_search(model, [[]] * 4, width=5, length=LENGTH, eos=0, source=source, length_penalty=0.0)
    found = torch.tensor([best.log_prob for best, *_ in ours])
    assert bool((found >= theirs.sequences_scores.float() - 1e-5).all())
