"""Decoding in one pass: all tokens of a block at once, by a `BlockPredictor` that has no other predictions.

A hybrid at γ = 1 is such a model. Its predictions do not depend on the other tokens of the block, so choosing all of
them at once gives what choosing them one by one would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import BlockPredictor
from chainrule.types import Sequences


class Block(NamedTuple):
    """Predictions of the next positions of each row."""

    logits: Tensor  # (B, K, V)
    counts: list[int]  # number of positions of each row, at most K


def decodes_in_one_pass(model: AutoregressiveModel) -> bool:
    return isinstance(model, BlockPredictor) and model.one_pass


def next_block(model: BlockPredictor, texts: Sequence[Sequence[int]], limit: int) -> Block:
    """Predictions of the rest of the current block of each text, at most `limit` positions."""
    vectors, firsts, ends, _ = model.lookahead(None, texts)
    counts = [min(limit, end - len(text)) for end, text in zip(ends, texts, strict=True)]
    rows = vectors.new_zeros(len(texts), max(counts), vectors.shape[-1])
    for row, (text, first, count) in enumerate(zip(texts, firsts, counts, strict=True)):
        begin = len(text) - first
        rows[row, :count] = vectors[row, begin : begin + count]
    return Block(model.lookahead_logits(rows), counts)


class OnePassOutput(NamedTuple):
    ids: list[int]  # up to and including EOS, if that was generated
    log_prob: float  # nats of the generated tokens


@torch.inference_mode()
def decode_targets(
    model: BlockPredictor, source: Sequences, *, eos: int, suppress: Sequence[int]
) -> list[OnePassOutput]:
    """The most probable token at every position that is to be generated, up to the first EOS."""
    ahead = model.lookahead(source, [[]] * len(source.lengths))
    log_probs = F.log_softmax(model.lookahead_logits(ahead.vectors), -1)
    if suppress:
        log_probs[..., list(suppress)] = -torch.inf
    best, chosen = log_probs.max(-1)  # (B, P) each
    found = []
    for nats, ids, end, generated in zip(best, chosen, ahead.ends, ahead.generated, strict=True):
        here = generated[:end].nonzero()[:, 0]
        tokens: list[int] = ids[here].tolist()
        count = tokens.index(eos) + 1 if eos in tokens else len(tokens)
        found.append(OnePassOutput(tokens[:count], float(nats[here[:count]].sum())))
    return found
