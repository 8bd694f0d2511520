"""Mixtures and ensembles of models with a source: of translation models, and of classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from chainrule.compose.blend import Blend, BlendConfig
from chainrule.compose.composite import build_conditional_part
from chainrule.compose.ensemble import Ensemble
from chainrule.compose.mixture import Mixture, MixtureConfig
from chainrule.errors import ConfigError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.conditional import Conditional
from chainrule.nn.label_model import LabelConfig


class ConditionalBlendConfig(BlendConfig, LabelConfig):
    """Settings of blends with a source; `labels` is empty unless the parts are classifiers."""


class ConditionalMixtureConfig(ConditionalBlendConfig, MixtureConfig):
    """The same, with the weights of a mixture."""


class ConditionalBlend(Conditional, Blend):
    """Parts with a common source. Every part reads it itself, so they may have different encoders.

    A target must fit into the context of each part: there are no sliding windows.
    """

    Config: ClassVar[type[ConditionalBlendConfig]] = ConditionalBlendConfig
    task = "translation"  # or that of the parts (see `tasks.run_of`)
    check_exceptions: ClassVar[Mapping[str, str]] = {}
    config: ConditionalBlendConfig

    def build_part(self, settings: Mapping[str, Any], where: str) -> AutoregressiveModel:
        return build_conditional_part(settings, self.config.vocabulary, self.config.source_vocabulary, where=where)

    def unlimited(self, part: AutoregressiveModel) -> AutoregressiveModel:
        return part

    @classmethod
    def settings_of(cls, parts: Sequence[AutoregressiveModel]) -> dict[str, Any]:
        first = parts[0]
        for part in parts:
            if not isinstance(part, Conditional) or not isinstance(first, Conditional):
                raise ConfigError("some parts have a source and others have none; combine parts of one task")
            if part.source_vocabulary != first.source_vocabulary:
                sizes = f"{first.source_vocabulary} and {part.source_vocabulary}"
                raise ConfigError(f"the parts have source vocabularies of {sizes} tokens; combine models of one")
        assert isinstance(first, Conditional)
        labels = first.config.labels if isinstance(first.config, LabelConfig) else ()
        return {**super().settings_of(parts), "source_vocabulary": first.source_vocabulary, "labels": labels}

    @property
    def context(self) -> int | None:
        return min((part.context for part in self.components if part.context is not None), default=None)

    @property
    def source_context(self) -> int | None:
        limits = [part.source_context for part in self.components if part.source_context is not None]
        return min(limits, default=None)


class ConditionalMixture(ConditionalBlend, Mixture):
    """A weighted sum of models with a source: P(y | s) = Σ_i γ_i P_i(y | s), token by token or label by label."""

    Config: ClassVar[type[ConditionalMixtureConfig]] = ConditionalMixtureConfig


class ConditionalEnsemble(ConditionalBlend, Ensemble):
    """A weighted product of models with a source: P(y_t | y_<t, s) ∝ Π_i P_i(y_t | y_<t, s)^{w_i}."""
