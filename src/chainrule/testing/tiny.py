"""A tiny model of every family: small enough to enumerate all that it can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from chainrule.models import FAMILIES, build
from chainrule.models.base import AutoregressiveModel, CountModel
from chainrule.types import Sequences

VOCABULARY = 5

TINY: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ngram": {"": {"order": 3}},
    "recurrent": {
        cell: {"cell": cell, "layers": 2, "width": 6}
        for cell in ("rnn", "lstm", "lstm_peephole", "lstm_coupled", "gru", "gru_input_reset")
    },
    "gpt": {
        layout: {"layout": layout, "layers": 2, "width": 8, "heads": 2, "context": 16} for layout in ("modern", "gpt2")
    },
}
"""family -> variant -> settings; a variant is a choice that changes the equations."""


def variants() -> list[tuple[str, str]]:
    """Every (family, variant); a family that is missing here is an error, not an omission."""
    return [(name, variant) for name in FAMILIES for variant in TINY[name]]


def tiny_model(name: str, variant: str = "", *, seed: int = 0, vocabulary: int = VOCABULARY) -> AutoregressiveModel:
    """A model with random weights, or random counts; call it under a default dtype of float64 for exact checks."""
    torch.manual_seed(seed)
    variant = variant or next(iter(TINY[name]))
    model = build(name, {"vocabulary": vocabulary, **TINY[name][variant]})
    if isinstance(model, CountModel):
        model.observe(Sequences.full(torch.randint(vocabulary, (3, 40))))
        model.estimate()
    with torch.no_grad():
        for parameter in model.parameters():  # away from zero and from symmetry, so that every path is exercised
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()
