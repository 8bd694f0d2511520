"""The type that training computes in."""

from __future__ import annotations

import math

import pytest
import torch

from chainrule.config import TrainConfig
from chainrule.families import FAMILIES, build
from chainrule.interface.base import NeuralModel, OwnObjective, Trainable
from chainrule.interface.conditional import Conditional, ParallelModel
from chainrule.objectives import Noise
from chainrule.testing.tiny import (
    EMBEDDERS,
    PARALLEL,
    TINY,
    embedder_variants,
    parallel_variants,
    tiny_embedder,
    tiny_model,
    tiny_parallel,
    variants,
)
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


def trained_models() -> list[tuple[str, str]]:
    kinds = (NeuralModel, OwnObjective)
    found = dict.fromkeys([*variants(), *parallel_variants(), *embedder_variants()])
    return [(name, variant) for name, variant in found if issubclass(FAMILIES[name], kinds)]


def any_batch(model: Trainable) -> Batch:
    length, generator = min(10, getattr(model, "context", None) or 10), torch.Generator().manual_seed(2)
    target = Sequences(
        torch.randint(model.vocabulary, (3, length), generator=generator), torch.tensor([length, length - 1, length])
    )
    if not isinstance(model, Conditional | ParallelModel):
        return Batch(target)
    width = min(12, model.source_context or 12)
    return Batch(target, Sequences.full(torch.randint(model.source_vocabulary, (3, width), generator=generator)))


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize(("name", "variant"), trained_models())
def test_every_family_can_be_trained_in_half_precision(name: str, variant: str, half: str) -> None:
    model = next(
        make(name, variant)
        for make, known in ((tiny_parallel, PARALLEL), (tiny_embedder, EMBEDDERS), (tiny_model, TINY))
        if name in known
    )
    assert isinstance(model, Trainable)
    settings = TrainConfig(precision=half, label_smoothing=0.1)  # type: ignore[arg-type]
    learner = build_learner(place(model.train(), settings, ONE), settings, Noise(range(7)))
    torch.manual_seed(0)  # of samples, such as the rows for which a hybrid computes its second branch
    assert math.isfinite(learner.gradient(any_batch(model)).total)


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
