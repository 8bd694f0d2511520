"""What composites have in common: they hold other models, and a part's settings are a table with its family's name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from chainrule.errors import ConfigError
from chainrule.models.base import AutoregressiveModel, Model
from chainrule.models.capabilities import Directed
from chainrule.models.conditional import Conditional


class Composite(Directed):
    """Beside AutoregressiveModel: a model that is made of others."""

    @property
    @abstractmethod
    def components(self) -> Sequence[AutoregressiveModel]:
        """The models that it is made of."""

    @property
    def backwards(self) -> bool:
        return all(reads_backwards(part) for part in self.components)


def reads_backwards(model: Model) -> bool:
    """Whether a text must be turned round before this model reads it."""
    return isinstance(model, Directed) and model.backwards


def build_part(settings: Mapping[str, Any], vocabulary: int, *, where: str) -> AutoregressiveModel:
    """A part from its table: `family` and that family's settings; the vocabulary is the composite's."""
    from chainrule.compose import build  # which knows this file's users: parts may be composites again

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
    from chainrule.compose import COMPOSITES
    from chainrule.models import FAMILIES

    for name, kind in {**FAMILIES, **COMPOSITES}.items():
        if type(model) is kind:
            return {"family": name, **model.config.model_dump(mode="json", exclude_none=True)}
    raise ConfigError(f"{type(model).__name__} is not a registered family; only those can be put together and saved")
