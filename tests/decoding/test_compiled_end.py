"""Compiled generation of rows that end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chainrule.decoding import Search
from chainrule.decoding.beam import beam_search
from chainrule.decoding.compiled import CompiledGeneration
from chainrule.decoding.sampling import GREEDY
from chainrule.decoding.translation import decode_sources
from chainrule.interface.base import AutoregressiveModel
from chainrule.kernels import step
from chainrule.testing import tiny_model
from chainrule.types import Sequences, select

EOS = 0


def model_of(family: str, variant: str) -> AutoregressiveModel:
    torch.manual_seed(3)
    model = tiny_model(family, variant).eval().float()
    assert isinstance(model, AutoregressiveModel)
    return model


@torch.inference_mode()
def test_a_call_returns_when_half_of_its_rows_have_ended() -> None:
    model = model_of("gpt", "modern")
    rows, steps = 4, 8
    state = select(model.start().state, torch.zeros(rows, dtype=torch.int64))
    first = torch.arange(rows) % model.vocabulary
    whole = CompiledGeneration.of(model, GREEDY, ())
    assert whole is not None
    found = whole.read(first, state, np.empty((rows, steps, 0)))
    assert found is not None
    ids = found[0].ids
    assert ids.shape == (rows, steps)
    end = int(ids[0, 2])  # a token that some row chooses
    ended = np.array([(row == end).argmax() if (row == end).any() else steps for row in ids])
    last = int(np.sort(ended)[rows // 2 - 1])  # the step at which half of the rows have chosen it
    state = select(model.start().state, torch.zeros(rows, dtype=torch.int64))
    until = CompiledGeneration.of(model, GREEDY, (), end)
    assert until is not None
    found = until.read(first, state, np.empty((rows, steps, 0)))
    assert found is not None
    assert np.array_equal(found[0].ids, ids[:, : min(last + 1, steps)])
    assert (found[1].positions == min(last + 1, steps) + 1).all()  # BOS and all tokens but the last one chosen


@pytest.mark.parametrize(
    ("family", "variant"), [("transformer", "added"), ("seq2seq", "attention"), ("fat", "left to right")]
)
@pytest.mark.parametrize("compiled", [True, False])
@torch.inference_mode()
def test_greedy_translations_are_those_of_a_beam_of_one(family: str, variant: str, compiled: bool) -> None:

    model = model_of(family, variant)
    generator = torch.Generator().manual_seed(0)
    sources = [[*torch.randint(1, 4, (length,), generator=generator).tolist(), EOS] for length in (1, 5, 3, 7, 2, 4)]
    search = Search(beam=1)
    if compiled:
        greedy = decode_sources(model, sources, search, eos=EOS)
    else:
        with step.torch_only():
            greedy = decode_sources(model, sources, search, eos=EOS)
    for source, [found] in zip(sources, greedy, strict=True):
        [[best]] = beam_search(
            model,
            [[]],
            width=1,
            length=[search.limit(len(source), model.context)],
            eos=EOS,
            source=Sequences.pack([source], model.device),
        )
        assert (found.ids, found.finished) == (best.ids, best.finished)
        assert found.log_prob == pytest.approx(best.log_prob, abs=1e-4)
