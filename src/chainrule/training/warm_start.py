"""Initialisation from another run (`start_from`): its vocabulary, its settings and its weights.

The new run may be of the same family, to continue with other data or another budget, or of a family that shares
parts with it: a `nonautoregressive` model has the encoder, the decoder and the embeddings of a `transformer`. A weight
is copied if its name and shape match; one name may have an additional prefix (`body.encoder.…` matches `encoder.…`).
All other weights keep their random initialisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.families import family as family_named
from chainrule.interface.base import Model, Trainable
from chainrule.training.checkpoint import RunFolder, distinct_tensors

FROM_DATA = ("vocabulary", "source_vocabulary")  # model settings that follow from the data


@dataclass(frozen=True)
class WarmStart:
    """A run that a new run is initialised from."""

    folder: RunFolder
    config: RunConfig

    @classmethod
    def open(cls, path: str, family: str) -> Self:
        """Open a run; raises ConfigError if a model of the family cannot be initialised from it."""
        folder = RunFolder(Path(path))
        config = folder.config()
        first, second = family_named(config.family), family_named(family)
        for name, one in ((config.family, first), (family, second)):
            if not issubclass(one, Trainable):
                raise ConfigError(f"start_from copies trained weights, and {name} has none; leave it out")
        if first.task != second.task:
            raise ConfigError(
                f"{path!r} is a {first.task} run and {family} is a {second.task} family; start from a run of the same "
                "task"
            )
        return cls(folder, config)

    def settings(self, family: str) -> dict[str, Any]:
        """Return the settings that the new run inherits unless the user sets them."""
        known = family_named(family).Config.model_fields.keys() - set(FROM_DATA)
        found: dict[str, Any] = {
            "tokenizer": self.config.tokenizer,
            "data": {"separate_vocabularies": self.config.data.separate_vocabularies},
            "model": {name: value for name, value in self.config.model.items() if name in known},
        }
        if self.config.source_tokenizer is not None:
            found["source_tokenizer"] = self.config.source_tokenizer
        return found

    def require_vocabularies(self, wanted: RunConfig) -> None:
        """Raise ConfigError if the new run has another vocabulary: weights belong to token ids."""
        pairs = {
            "tokenizer": (self.config.tokenizer, wanted.tokenizer),
            "source_tokenizer": (self.config.source_tokenizer, wanted.source_tokenizer),
            "data.separate_vocabularies": (self.config.data.separate_vocabularies, wanted.data.separate_vocabularies),
        }
        for name, (old, new) in pairs.items():
            if old != new:
                raise ConfigError(
                    f"start_from keeps the vocabulary of the run, but {name} is {new!r} and was {old!r}; leave it out"
                )

    @torch.no_grad()
    def copy_weights(self, model: Model) -> float:
        """Copy all matching weights into a new model; return the fraction of its weights that were copied."""
        weights = self.folder.weights()
        copied = 0
        state = model.state_dict()
        own: dict[str, Tensor] = {name: state[name] for name in distinct_tensors(model)}
        for name, tensor in own.items():
            found = _matching(name, tensor, weights)
            if found is not None:
                tensor.copy_(found)
                copied += tensor.numel()
        if not copied:
            raise ConfigError(
                f"no weight of {str(self.folder.path)!r} matches a model with these settings; leave out the model "
                "settings to inherit those of the run, or start from another run"
            )
        return copied / sum(tensor.numel() for tensor in own.values())


def _matching(name: str, tensor: Tensor, weights: Mapping[str, Tensor]) -> Tensor | None:
    """Return the weight of this name and shape, else the first whose name differs by a prefix only."""
    same = [weights[name]] if name in weights else []
    alike = [one for other, one in weights.items() if name.endswith(f".{other}") or other.endswith(f".{name}")]
    return next((one for one in (*same, *alike) if one.shape == tensor.shape), None)
