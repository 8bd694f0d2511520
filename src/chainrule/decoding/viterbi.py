"""The likeliest sequence of a first-order model, exactly.

Where a prediction depends on no token but the last one, the best sequence that ends with a token goes on in the best
way whatever stood before it (Viterbi, 1967):

    best_1(y) = log P(y),    best_t(y) = max_x best_{t−1}(x) + log P(y | x at t − 1)

The model is known through `start` and `extend` alone: one row for each possible last token. Shape letters: B sources,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from chainrule.decoding.generate import Generation
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Sequences, select


@torch.inference_mode()
def viterbi(model: AutoregressiveModel, lengths: Sequence[int], *, source: Sequences | None = None) -> list[Generation]:
    """The likeliest sequence of each length, given the source of the same row where the model has sources."""
    if model.receptive_field is None or model.receptive_field > 1:
        raise DecodingError(
            "Viterbi's search is exact where a token depends on the one before it alone, and here it depends on more; "
            "search with a beam, or train with model.order=1"
        )
    if not lengths:
        return []
    if min(lengths) < 1:
        raise DecodingError(f"a sequence of {min(lengths)} tokens was asked for; ask for at least 1")
    rows, vocabulary, device = len(lengths), model.vocabulary, model.device
    wanted = torch.tensor(lengths, device=device)
    step = model.start(source, batch_size=rows)
    best = F.log_softmax(step.logits[:, -1].double(), -1)  # (B, V)
    state = select(step.state, torch.arange(rows, device=device).repeat_interleave(vocabulary))
    last = torch.arange(vocabulary, device=device).repeat(rows)[:, None]  # (B V, 1): each possible token in its row
    unchanged = torch.arange(vocabulary, device=device).expand(rows, -1)
    origins = []  # (B, V) each: the token before, on the best way to each token
    for length in range(1, max(lengths)):
        step = model.extend(last, state)
        state = step.state
        table = F.log_softmax(step.logits[:, -1].double(), -1).view(rows, vocabulary, vocabulary)
        reached, before = (best[..., None] + table).max(1)
        runs_on = (wanted > length)[:, None]
        best = torch.where(runs_on, reached, best)
        origins.append(torch.where(runs_on, before, unchanged))
    scores, token = best.max(1)
    ids = [token]
    for before in reversed(origins):
        ids.append(before.gather(1, ids[-1][:, None])[:, 0])
    paths = torch.stack(ids[::-1], dim=1).tolist()  # a row that has ended repeats its last token
    return [
        Generation(path[:length], score, "length")
        for path, length, score in zip(paths, lengths, scores.tolist(), strict=True)
    ]
