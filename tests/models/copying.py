"""The smallest translations: a text into itself, or into itself reverse round."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.interface.base import DensityModel, NeuralModel
from chainrule.types import Batch, Sequences

EOS = 0
LONGEST = 5


def pairs(model: DensityModel, rows: int, *, reverse: bool, generator: torch.Generator) -> Batch:
    """Random sequences of one to five tokens and EOS, with their copies or reversals."""
    lengths = torch.randint(1, LONGEST + 1, (rows,), generator=generator)
    ids = torch.randint(1, model.vocabulary, (rows, LONGEST + 1), generator=generator)
    positions = torch.arange(LONGEST + 1).expand_as(ids)
    ids = ids.masked_fill(positions >= lengths[:, None], EOS)
    order = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    return Batch(Sequences(ids.gather(1, order) if reverse else ids, lengths + 1), Sequences(ids, lengths + 1))


def learn(model: NeuralModel, *, reverse: bool, steps: int, rows: int = 32, rate: float = 0.005) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    model.train()
    for _ in range(steps):
        batch = pairs(model, rows, reverse=reverse, generator=generator)
        real = batch.target.mask
        loss = F.cross_entropy(model.readout(model.hidden(batch)[real]), batch.target.ids[real])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def exact_matches(model: NeuralModel, *, reverse: bool, rows: int = 64) -> float:
    """The fraction of held-out sequences whose greedy translation is exactly right."""
    target, source = pairs(model, rows, reverse=reverse, generator=torch.Generator().manual_seed(2))
    step = model.start(source)
    decoded: list[Tensor] = []
    for _ in range(target.ids.shape[1]):
        decoded.append(step.logits[:, -1].argmax(-1))
        step = model.step(decoded[-1], step.state)
    right = (torch.stack(decoded, dim=1) == target.ids) | ~target.mask
    return float(right.all(1).float().mean())
