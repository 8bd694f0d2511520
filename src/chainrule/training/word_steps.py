"""Steps of word vectors as products of small matrices: the gradient of `Word2Vec.loss`, written out.

With scores S = H Oᵀ, targets A and weights W (see `nn.negative_sampling`) the loss is Σ W softplus(S) − A S, so that

    ∂loss/∂S = W σ(S) − A,    ∂loss/∂H = (∂loss/∂S) O,    ∂loss/∂O = (∂loss/∂S)ᵀ H

and only the rows that were read or scored change. Autograd would give gradients as large as the tables.

Word by word, a frequent word would be moved again and again by small steps, each from where the last one led. At once,
their sum could throw it far beyond the goal: the steps would grow without end. So where the scores of a row weigh more
than 1/rate in a step, it moves by their mean times that.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.models.word2vec import Word2Vec
from chainrule.nn.negative_sampling import Blocks, Lesson, loss_of

AT_ONCE = 64  # blocks whose words all see the vectors of before the step


@torch.no_grad()
def learn_by_products(model: Word2Vec, lesson: Lesson, rate: float) -> float:
    """Move the vectors down the gradient of a lesson's loss, some blocks at a time; give the loss before each step."""
    total = 0.0
    for blocks in _cut(model.blocks(lesson)):
        hidden = model.hidden(blocks)  # (S, L, D)
        scored = F.embedding(blocks.scored, model.outputs)  # (S, O, D)
        scores = hidden @ scored.mT  # (S, L, O)
        total += float(loss_of(scores, blocks))
        pull = blocks.positive - blocks.weight * scores.sigmoid()
        back, load = pull @ scored, blocks.weight.sum(2)  # (S, L, D), (S, L)
        if blocks.mix is not None:
            back, load = blocks.mix.mT @ back, (blocks.mix.mT @ load[..., None])[..., 0]
        _move(model.inputs, blocks.read, back, load, rate)
        _move(model.outputs, blocks.scored, pull.mT @ hidden, blocks.weight.sum(1), rate)
    return total


def _cut(blocks: Blocks) -> Iterator[Blocks]:
    for begin in range(0, len(blocks.read), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        mix = None if blocks.mix is None else blocks.mix[some]
        yield Blocks(blocks.read[some], mix, blocks.scored[some], blocks.positive[some], blocks.weight[some])


def _move(table: Tensor, rows: Tensor, pulls: Tensor, load: Tensor, rate: float) -> None:
    """Add pulls (S, R, D) to rows (S, R) of a table; `load` (S, R) is how much the scores weigh that they come from."""
    distinct, place = torch.unique(rows.flatten(), return_inverse=True)
    loads = load.new_zeros(len(distinct)).index_add_(0, place, load.flatten())
    rates = rate / (rate * loads).clamp(min=1.0)
    table.index_add_(0, rows.flatten(), pulls.flatten(0, 1) * rates[place, None])
