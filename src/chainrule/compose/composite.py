"""What composites have in common: they hold other models, and a part's settings are a table with its family's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.errors import ConfigError
from chainrule.families import FAMILIES, build
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.conditional import Conditional


def build_part(settings: Mapping[str, Any], vocabulary: int, *, where: str) -> AutoregressiveModel:
    """A part from its table: `family` and that family's settings; the vocabulary is the composite's."""
    if not isinstance(settings.get("family"), str):
        raise ConfigError(f"setting '{where}.family' is missing; name the family of the part")
    own = {name: value for name, value in settings.items() if name != "family"}
    if own.setdefault("vocabulary", vocabulary) != vocabulary:
        raise ConfigError(
            f"'{where}' has a vocabulary of {own['vocabulary']} tokens and the whole one of {vocabulary}; "
            "models of one vocabulary can be put together"
        )
    part = build(settings["family"], own, where=where)
    if not isinstance(part, AutoregressiveModel) or isinstance(part, Conditional):
        raise ConfigError(f"'{where}' is a model of {part.task}; composites are made of models that have no source")
    return part


def part_settings(model: AutoregressiveModel) -> dict[str, Any]:
    """The way back: the table that `build_part` makes such a model from."""
    for name, kind in FAMILIES.items():
        if type(model) is kind:
            return {"family": name, **model.config.model_dump(mode="json", exclude_none=True)}
    raise ConfigError(f"{type(model).__name__} is not a registered family; only those can be put together and saved")
