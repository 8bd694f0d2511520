"""Beginning with what another run has learnt: its vocabulary, its settings and its weights.

The new run may be of the same family, to go on with other data or another budget, or of another one that is built of
the same parts: a `nonautoregressive` model has the encoder, the decoder and the embeddings of a `transformer`. A weight
is taken over where its name and its shape agree; a name may have another part of a model before it (`body.encoder.…` is
`encoder.…`). All others begin as they always do.
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

FOUND_IN_DATA = ("vocabulary", "source_vocabulary")  # settings of a model that nobody chooses


@dataclass(frozen=True)
class Start:
    """A run to begin with."""

    folder: RunFolder
    config: RunConfig

    @classmethod
    def open(cls, path: str, family: str) -> Self:
        """Refuses a run that can give nothing to the family."""
        folder = RunFolder(Path(path))
        config = folder.config()
        first, second = family_named(config.family), family_named(family)
        for name, one in ((config.family, first), (family, second)):
            if not issubclass(one, Trainable):
                raise ConfigError(f"start_from is about weights that are trained, and a {name} has none; leave it out")
        if first.task != second.task:
            raise ConfigError(
                f"{path!r} is a run for {first.task} and {family} is for {second.task}; start from a run of the same "
                "task"
            )
        return cls(folder, config)

    def settings(self, family: str) -> dict[str, Any]:
        """What the new run takes over where the user says nothing else; its vocabularies it must take over."""
        known = family_named(family).Config.model_fields.keys() - set(FOUND_IN_DATA)
        found: dict[str, Any] = {
            "tokenizer": self.config.tokenizer,
            "data": {"separate": self.config.data.separate},
            "model": {name: value for name, value in self.config.model.items() if name in known},
        }
        if self.config.source_tokenizer is not None:
            found["source_tokenizer"] = self.config.source_tokenizer
        return found

    def require_vocabularies(self, wanted: RunConfig) -> None:
        """Weights are about tokens, so the tokens have to be the same."""
        pairs = {
            "tokenizer": (self.config.tokenizer, wanted.tokenizer),
            "source_tokenizer": (self.config.source_tokenizer, wanted.source_tokenizer),
            "data.separate": (self.config.data.separate, wanted.data.separate),
        }
        for name, (old, new) in pairs.items():
            if old != new:
                raise ConfigError(
                    f"a run that starts from another has its vocabulary, but {name} is {new!r} and was {old!r}; leave "
                    "it out"
                )

    @torch.no_grad()
    def give(self, model: Model) -> float:
        """Copy what fits into a new model; the share of its weights that this was."""
        weights = self.folder.weights()
        copied = 0
        state = model.state_dict()
        own: dict[str, Tensor] = {name: state[name] for name in distinct_tensors(model)}
        for name, tensor in own.items():
            found = _fitting(name, tensor, weights)
            if found is not None:
                tensor.copy_(found)
                copied += tensor.numel()
        if not copied:
            raise ConfigError(
                f"no weight of {str(self.folder.path)!r} fits a model with these settings; leave out those of the "
                "model, so that the run's own are taken, or start from another one"
            )
        return copied / sum(tensor.numel() for tensor in own.values())


def _fitting(name: str, tensor: Tensor, weights: Mapping[str, Tensor]) -> Tensor | None:
    """The weight of this name and shape; of several with a name that differs at its start, the first."""
    same = [weights[name]] if name in weights else []
    alike = [one for other, one in weights.items() if name.endswith(f".{other}") or other.endswith(f".{name}")]
    return next((one for one in (*same, *alike) if one.shape == tensor.shape), None)
