"""Runs that can be mixed: what `chainrule mix` needs of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from chainrule.config import DataConfig, RunConfig, Settings
from chainrule.data.corpus import Corpus, Report
from chainrule.evaluation.likelihood import score
from chainrule.interface.base import AutoregressiveModel
from chainrule.tasks.base import HeldOut, ModelT_co, Run
from chainrule.tasks.weights import Weights, with_weights
from chainrule.training.checkpoint import RunFolder


@dataclass(frozen=True, kw_only=True, repr=False)
class MixableRun(Run[ModelT_co]):
    """A run whose model can be a part of a mixture or an ensemble."""

    does = "models sequences, translates or labels texts"

    @property
    @abstractmethod
    def autoregressive(self) -> AutoregressiveModel:
        """The model, which must predict the next token."""

    @property
    @abstractmethod
    def vocabulary(self) -> object:
        """The meaning of the token ids: equal for runs that share a vocabulary."""

    def with_weights(self, weights: Weights) -> Self:
        """The run with its matrices stored in int8, which decodes faster and predicts slightly worse; or as it is."""
        return with_weights(self, weights)

    def sample_metrics(self, corpus: Corpus, source: Corpus | None, count: int) -> dict[str, float]:
        """Metrics of the first `count` texts that need decoding, if there are any."""
        return {}

    @abstractmethod
    def held_out_splits(self, config: DataConfig, progress: Report | None = None) -> dict[str, HeldOut]:
        """The validation and test data that the settings name or cut off, in this run's vocabulary."""

    @abstractmethod
    def held_out(self, config: DataConfig, split: str) -> HeldOut:
        """The validation or test data that the settings name, without a look at the training data."""

    @abstractmethod
    def create(self, folder: RunFolder, config: RunConfig) -> None:
        """Create the folder of a run with the same vocabulary."""

    def score_held_out(self, held_out: HeldOut, progress: Callable[[float], None]) -> Settings:
        """The metrics that the card reports; by default the likelihood."""
        return score(self.autoregressive, held_out.corpus, source=held_out.source, progress=progress)


def named_data(config: DataConfig, split: str) -> str:
    """The spec of the validation or test data, which the settings name."""
    spec = config.test if split == "test" else config.valid
    assert spec is not None
    return spec
