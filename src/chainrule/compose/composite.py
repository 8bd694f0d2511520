"""Settings of the parts of composites: a table with the name of the family and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from chainrule.errors import ConfigError
from chainrule.families import FAMILIES, build
from chainrule.interface.base import AutoregressiveModel, Model
from chainrule.interface.conditional import Conditional
from chainrule.types import Sequences, tensors


def build_part(settings: Mapping[str, Any], vocabulary: int, *, where: str) -> AutoregressiveModel:
    """Build a part from its table: `family` and that family's settings; the vocabulary is the composite's."""
    part = _built(settings, vocabulary, where)
    if not isinstance(part, AutoregressiveModel) or isinstance(part, Conditional):
        raise ConfigError(
            f"'{where}' is a {part.task} model; composites are made of autoregressive models without a source"
        )
    return part


def build_conditional_part(
    settings: Mapping[str, Any], vocabulary: int, source_vocabulary: int, *, where: str
) -> AutoregressiveModel:
    """The same for a part with a source."""
    own = {"source_vocabulary": source_vocabulary, **settings}
    part = _built(own, vocabulary, where) if own["source_vocabulary"] == source_vocabulary else None
    if not isinstance(part, AutoregressiveModel) or not isinstance(part, Conditional):
        raise ConfigError(
            f"'{where}' is not an autoregressive model of targets given sources of {source_vocabulary} token ids; "
            "combine translation models, or classifiers, with one tokenizer"
        )
    return part


def _built(settings: Mapping[str, Any], vocabulary: int, where: str) -> Model:
    if not isinstance(settings.get("family"), str):
        raise ConfigError(f"setting '{where}.family' is missing; set it to the family of the part")
    own = {name: value for name, value in settings.items() if name != "family"}
    if own.setdefault("vocabulary", vocabulary) != vocabulary:
        raise ConfigError(
            f"'{where}' has a vocabulary of {own['vocabulary']} tokens and the composite one of {vocabulary}; "
            "combine models of one vocabulary"
        )
    return build(settings["family"], own, where=where)


def part_settings(model: AutoregressiveModel) -> dict[str, Any]:
    """The table from which `build_part` builds such a model."""
    for name, kind in FAMILIES.items():
        if type(model) is kind:
            return {"family": name, **model.config.model_dump(mode="json", exclude_none=True)}
    raise ConfigError(
        f"{type(model).__name__} is not a registered family; only registered families can be parts of a composite"
    )


def state_size(model: AutoregressiveModel) -> int:
    """The number of tensors in the state of a model."""
    source = Sequences.full(torch.zeros(1, 1, dtype=torch.int64)) if isinstance(model, Conditional) else None
    return len(tensors(model.start(source, batch_size=1).state))
