"""Activations that are computed again in the backward pass."""

from __future__ import annotations

import pytest
import torch

from chainrule.config import TrainConfig
from chainrule.errors import ConfigError
from chainrule.families import build
from chainrule.interface.base import Trainable
from chainrule.objectives import Noise
from chainrule.training.distributed import ONE
from chainrule.training.learner import build_learner
from chainrule.training.placement import place
from chainrule.types import Batch, Sequences

FORMS = {
    "gpt": {"layers": 3, "width": 16, "heads": 2, "context": 16, "dropout": 0.2},
    "bert": {"layers": 3, "width": 16, "heads": 2, "context": 16},
    "transformer": {"encoder_layers": 2, "decoder_layers": 2, "width": 16, "heads": 2, "context": 16,
                    "source_vocabulary": 7},
}  # fmt: skip


def gradient(name: str, settings: TrainConfig) -> tuple[torch.Tensor, int]:
    """The gradient of a batch, and the number of values that were kept for it."""
    torch.manual_seed(0)
    model = build(name, {"vocabulary": 7, **FORMS[name]}).train()
    assert isinstance(model, Trainable)
    learner = build_learner(place(model, settings, ONE), settings, Noise(range(7)))
    rows = Sequences.full(torch.randint(7, (4, 12), generator=torch.Generator().manual_seed(1)))
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    torch.manual_seed(2)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learner.gradient(Batch(rows, rows if name == "transformer" else None))
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), sum(kept)


@pytest.mark.parametrize("name", FORMS)
def test_activations_that_are_computed_again_give_the_same_gradient_and_fewer_are_kept(name: str) -> None:
    plain, many = gradient(name, TrainConfig())
    again, few = gradient(name, TrainConfig(checkpoint_activations=True))
    torch.testing.assert_close(again, plain)
    assert few < many


def test_a_family_without_blocks_is_refused() -> None:
    model = build("recurrent", {"vocabulary": 7})
    assert isinstance(model, Trainable)
    with pytest.raises(ConfigError, match="not for Recurrent"):
        place(model, TrainConfig(checkpoint_activations=True), ONE)
