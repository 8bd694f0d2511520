"""Features of a pretrained model in place of the encoder of a translation model."""

from __future__ import annotations

from typing import Self, cast

from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.features.pretrained import Pretrained
from chainrule.interface.capabilities import TokenPairs
from chainrule.types import Progress, Sequences


class FeaturesConfig(ModelConfig):
    """Settings of models whose encoder may be a pretrained one."""

    features: str | None = Field(None, description="folder of a pretrained BERT or GPT-2 that encodes the source")
    fine_tune: bool = Field(False, description="fine-tune the pretrained model")
    features_fingerprint: str | None = Field(None, description="fingerprint of the pretrained model; set by training")


class SourceFeatures(nn.Module):
    """m_n = W f_n + w for the hidden vectors f of a pretrained model (see `features.pretrained`)."""

    def __init__(self, pretrained: Pretrained, width: int) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.narrow = nn.Linear(pretrained.width, width)

    @classmethod
    def of(cls, config: ModelConfig, vocabulary: int, width: int) -> Self | None:
        """The pretrained encoder of the settings for sources of a vocabulary; None if they name none."""
        if not isinstance(config, FeaturesConfig) or config.features is None:
            return None
        opened = Pretrained.open_matching(
            config.features,
            vocabulary=vocabulary,
            fine_tune=config.fine_tune,
            fingerprint=config.features_fingerprint,
        )
        return cls(opened, width)

    @property
    def settings(self) -> dict[str, str]:
        """Settings that identify the pretrained model, to be stored with those of the run."""
        return {"features_fingerprint": self.pretrained.fingerprint}

    @property
    def context(self) -> int | None:
        """Maximum source length; None: unlimited."""
        return self.pretrained.context

    def forward(self, source: Sequences) -> Tensor:
        """(B, S) to (B, S, D); zeros past the lengths."""
        return cast(Tensor, self.narrow(self.pretrained(source))) * source.mask[..., None]

    def precompute(self, pairs: TokenPairs, progress: Progress | None = None) -> None:
        """Compute the frozen features of the sources of pairs once and cache them on disk."""
        if not self.pretrained.fine_tune:
            limit = self.context
            sources = (source for source, _ in pairs if limit is None or len(source) <= limit)
            self.pretrained.precompute(sources, progress=progress)
