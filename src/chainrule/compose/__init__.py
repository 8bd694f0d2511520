"""Models made of models. Each is an autoregressive model itself: scored, decoded, saved, loaded and composed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.compose.ensemble import Ensemble
from chainrule.compose.mixture import Mixture
from chainrule.compose.recall import Recall
from chainrule.compose.reverse import Reverse
from chainrule.compose.sliding import Sliding
from chainrule.errors import ConfigError, nearest
from chainrule.models import FAMILIES
from chainrule.models.base import AutoregressiveModel, Model

COMPOSITES: dict[str, type[AutoregressiveModel]] = {
    "mixture": Mixture,
    "ensemble": Ensemble,
    "reverse": Reverse,
    "sliding": Sliding,
    "recall": Recall,
}


def kind(name: str) -> type[Model]:
    """The class of a family or of a composite."""
    known: dict[str, type[Model]] = {**FAMILIES, **COMPOSITES}
    if name not in known:
        raise ConfigError(f"unknown family {name!r}; {nearest(name, known)}")
    return known[name]


def build(name: str, settings: Mapping[str, Any], *, where: str = "model") -> Model:
    """A new model of a family or a composite, its parts included; what the settings leave open takes the defaults."""
    chosen = kind(name)
    return chosen(chosen.Config.parse(settings, where=where))
