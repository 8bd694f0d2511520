"""The smallest translations: a text into itself, or into itself turned round."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.interface.base import DensityModel, NeuralModel
from chainrule.types import Batch, Sequences

EOS = 0
LONGEST = 5


def pairs(model: DensityModel, rows: int, *, turned: bool, generator: torch.Generator) -> Batch:
    """Random texts of one to five tokens, then EOS, on both sides."""
    lengths = torch.randint(1, LONGEST + 1, (rows,), generator=generator)
    ids = torch.randint(1, model.vocabulary, (rows, LONGEST + 1), generator=generator)
    places = torch.arange(LONGEST + 1).expand_as(ids)
    ids = ids.masked_fill(places >= lengths[:, None], EOS)
    back = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)
    return Batch(Sequences(ids.gather(1, back) if turned else ids, lengths + 1), Sequences(ids, lengths + 1))


def learn(model: NeuralModel, *, turned: bool, steps: int, rows: int = 32, rate: float = 0.005) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    model.train()
    for _ in range(steps):
        batch = pairs(model, rows, turned=turned, generator=generator)
        real = batch.target.mask
        loss = F.cross_entropy(model.readout(model.hidden(batch)[real]), batch.target.ids[real])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def exact_matches(model: NeuralModel, *, turned: bool, rows: int = 64) -> float:
    """The share of unseen texts whose greedy translation is right to the last token."""
    target, source = pairs(model, rows, turned=turned, generator=torch.Generator().manual_seed(2))
    step = model.start(source)
    written: list[Tensor] = []
    for _ in range(target.ids.shape[1]):
        written.append(step.logits[:, -1].argmax(-1))
        step = model.step(written[-1], step.state)
    right = (torch.stack(written, dim=1) == target.ids) | ~target.mask
    return float(right.all(1).float().mean())
