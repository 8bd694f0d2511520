"""Self-speculation of hybrids: drafts of the parallel branch, verified by the whole model."""

from __future__ import annotations

import pytest
import torch

from chainrule.decoding import GREEDY, Sampling, generate_tokens
from chainrule.decoding.block_size import FixedBlockSize
from chainrule.decoding.drafts import LookaheadDrafter, Prefix
from chainrule.errors import DecodingError
from chainrule.models.hybrid import Hybrid
from chainrule.models.hybrid_language import HybridLanguage
from chainrule.testing.tiny import tiny_model
from chainrule.types import Sequences

PROMPTS = [[1, 2, 3], [], [4, 4, 0, 1, 2]]
SOURCE = Sequences(torch.tensor([[1, 2, 3, 5, 0], [3, 0, 0, 0, 0], [4, 2, 0, 0, 0]]), torch.tensor([5, 2, 3]))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["hybrid", "hybrid_language"])
def test_self_speculation_leaves_the_text_unchanged(family: str, sampling: Sampling) -> None:
    model = tiny_model(family).double()
    source = SOURCE if isinstance(model, Hybrid) else None
    words = {"length": 20, "sampling": sampling, "seeds": [1, 2, 3], "eos": None, "source": source}
    plain = generate_tokens(model, PROMPTS, **words)
    drafted = generate_tokens(model, PROMPTS, draft=LookaheadDrafter(model), block_size=FixedBlockSize(4), **words)
    assert [one.ids for one in drafted] == [one.ids for one in plain]


@torch.no_grad()
def test_draft_tokens_are_those_of_the_parallel_branch_up_to_the_end_of_its_block() -> None:
    model = tiny_model("hybrid_language", "fixed").double()  # chunks of 5
    assert isinstance(model, HybridLanguage)
    alone = model.with_gamma(1.0)
    drafter = LookaheadDrafter(model)
    drafter.begin(None)
    texts = [Prefix(0, [1, 2, 3, 4, 0, 1]), Prefix(1, [2]), Prefix(2, [0, 1, 2, 3])]
    found = drafter.propose(texts, 3, lambda logits: logits.argmax(-1))
    assert [len(row) for row in found] == [3, 3, 2]
    for (_, ids), row in zip(texts, found, strict=True):
        following = [*ids, *row]
        step = alone.extend(torch.tensor([following[:-1]]), alone.start().state)
        assert step.logits[0, len(ids) - 1 :].argmax(-1).tolist() == row


@pytest.mark.parametrize("length", [8, 25])
def test_the_lookahead_is_computed_once(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Also where rows that are finished, or targets, go on past the last position of their lookahead, the 11th."""
    model = tiny_model("hybrid").double()
    assert isinstance(model, Hybrid)
    made = []
    lookahead = Hybrid.lookahead
    monkeypatch.setattr(Hybrid, "lookahead", lambda *words: made.append(1) or lookahead(*words))
    words = {"length": length, "sampling": GREEDY, "seeds": [0] * 3, "eos": None, "source": SOURCE}
    generate_tokens(model, [[]] * 3, draft=LookaheadDrafter(model), block_size=FixedBlockSize(4), **words)
    assert len(made) == 1


def test_a_model_without_lookahead_or_with_another_vocabulary_is_refused() -> None:
    with pytest.raises(DecodingError, match="GPT has no lookahead branch"):
        LookaheadDrafter(tiny_model("gpt"))
    with pytest.raises(DecodingError, match="vocabulary of 5 tokens and the model one of 4"):
        LookaheadDrafter(tiny_model("hybrid_language")).check(tiny_model("gpt", vocabulary=4))
