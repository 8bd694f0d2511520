"""The type that training computes in."""

from __future__ import annotations

import pytest
import torch

from chainrule.config import TrainConfig
from chainrule.families import build
from chainrule.interface.base import Trainable
from chainrule.objectives import Noise
from chainrule.training import precision
from chainrule.training.distributed import ONE
from chainrule.training.learner import build_learner
from chainrule.training.placement import place
from chainrule.training.precision import computing_type
from chainrule.types import Batch, Sequences

LARGE = {"layers": 2, "width": 96, "heads": 2, "context": 16}
SMALL = {"layers": 2, "width": 16, "heads": 2, "context": 16}


def gpt(shape: dict[str, int]) -> Trainable:
    torch.manual_seed(0)
    model = build("gpt", {"vocabulary": 7, **shape}).train()
    assert isinstance(model, Trainable)
    return model


def gradient(settings: TrainConfig) -> torch.Tensor:
    model = gpt(SMALL)
    learner = build_learner(place(model, settings, ONE), settings, Noise(range(7)))
    learner.gradient(Batch(Sequences.full(torch.randint(7, (4, 12), generator=torch.Generator().manual_seed(1)))))
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_computing_in_half_precision_keeps_weights_and_gradients_in_float32(half: str) -> None:
    found, whole = gradient(TrainConfig(precision=half)), gradient(TrainConfig(precision="float32"))  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    assert not torch.equal(found, whole)
    torch.testing.assert_close(found, whole, rtol=0.1, atol=0.02)


def test_a_processor_with_instructions_for_bfloat16_computes_large_models_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: True)
    assert computing_type(TrainConfig(), gpt(LARGE)) is torch.bfloat16
    assert computing_type(TrainConfig(), gpt(SMALL)) is None
    assert computing_type(TrainConfig(precision="float32"), gpt(LARGE)) is None


def test_a_processor_without_them_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: False)
    assert computing_type(TrainConfig(), gpt(LARGE)) is None
    assert computing_type(TrainConfig(precision="bfloat16"), gpt(LARGE)) is torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_with_bfloat16_computes_in_it_by_default() -> None:
    supported = torch.cuda.is_bf16_supported(including_emulation=False)
    assert (computing_type(TrainConfig(), gpt(SMALL).to("cuda")) is torch.bfloat16) == supported
