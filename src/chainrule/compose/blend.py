"""A gated combination of several models over one vocabulary: the base class of mixtures and ensembles.

Shape letters: B rows, K tokens in a chunk, V vocabulary, P parts, N predictions, F features.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, final

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.compose.composite import build_part, part_settings, state_size
from chainrule.compose.gate import GATES, Gate
from chainrule.compose.sliding import Sliding
from chainrule.config import ModelConfig
from chainrule.errors import ConfigError
from chainrule.interface.base import AutoregressiveModel, readable
from chainrule.interface.capabilities import Composite, is_right_to_left
from chainrule.kernels import step as kernels
from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable, Describable
from chainrule.types import Batch, Sequences, State, Step

GateName = Literal["fixed", "learned", "context"]
FLOOR = -1e4  # nats: log-probability of a token that is impossible under a part; avoids −∞ times a weight of 0


class BlendConfig(ModelConfig):
    gate: GateName = Field("context", description="fixed: as given; learned: constant; context: per token")
    weights: tuple[float, ...] | None = Field(None, description="initial weight of each part; none: equal weights")
    parts: tuple[dict[str, Any], ...] = Field(min_length=1, description="for each part its family and settings")

    @model_validator(mode="after")
    def _one_weight_per_part(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.parts):
            raise ValueError(f"{len(self.weights)} weights for {len(self.parts)} parts; give one per part")
        return self


class BlendState(NamedTuple):
    parts: tuple[State, ...]
    gate: State


class PartPredictions(NamedTuple):
    """Predictions of the parts, and the features of the gate."""

    log_probs: tuple[Tensor, ...]  # (B, K, V) of each part
    features: Tensor  # (B, K, F)
    state: BlendState


class Evidence(NamedTuple):
    """What fitting a gate needs of N predictions (see `fit`)."""

    features: Tensor  # (N, F)
    own: Tensor  # (N, P) log-probability of the target under each part
    others: Tensor  # (N, P, S) log-probabilities of S other tokens; S = 0 where the combination does not need them
    corrections: Tensor  # (N, S) log of the number of tokens that each of them represents

    def at(self, rows: Tensor) -> Evidence:
        """A subset of the predictions."""
        return Evidence(*(tensor[rows] for tensor in self))


class Blend(AutoregressiveModel, Composite, Compilable):
    """Parts combined by a gate. A part with a limited context gets a sliding window, so the whole is unlimited."""

    Config: ClassVar[type[BlendConfig]] = BlendConfig
    task = "text"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "no_gradient_reaches_the_future": "a sliding part embeds windows shorter than the text, so no axis of its "
        "embeddings is the time of the text; the check by changed tokens applies"
    }
    config: BlendConfig

    def __init__(self, config: BlendConfig, parts: Sequence[AutoregressiveModel] | None = None) -> None:
        super().__init__(config)
        if parts is None:
            parts = [self.build_part(settings, f"model.parts.{number}") for number, settings in enumerate(config.parts)]
        if len({is_right_to_left(part) for part in parts}) > 1:
            raise ConfigError(
                "some parts are left-to-right models and others right-to-left models; combine parts of one direction"
            )
        self.parts = nn.ModuleList(map(self.unlimited, parts))
        weights = torch.tensor(config.weights or [1 / len(parts)] * len(parts), dtype=torch.get_default_dtype())
        self.gate: Gate = GATES[config.gate](self.initial_scores(weights), config.vocabulary)

    @classmethod
    def of(
        cls,
        parts: Sequence[AutoregressiveModel],
        *,
        gate: GateName = "context",
        weights: Sequence[float] | None = None,
    ) -> Self:
        """Combine existing models, which are held and not copied."""
        if len(set(map(id, parts))) < len(parts):
            raise ConfigError("the same model is given twice; give it once, with a larger weight")
        if len({part.vocabulary for part in parts}) > 1:
            sizes = " and ".join(str(part.vocabulary) for part in parts)
            raise ConfigError(f"the parts have vocabularies of {sizes} tokens; combine models of one vocabulary")
        settings = {**cls.settings_of(parts), "gate": gate, "weights": weights}
        return cls(cls.Config.parse(settings, where="model"), parts).to(parts[0].device).eval()

    @classmethod
    def settings_of(cls, parts: Sequence[AutoregressiveModel]) -> dict[str, Any]:
        """The settings that follow from the parts."""
        return {"vocabulary": parts[0].vocabulary, "parts": [part_settings(part) for part in parts]}

    def build_part(self, settings: Mapping[str, Any], where: str) -> AutoregressiveModel:
        """A part from its settings."""
        return build_part(settings, self.config.vocabulary, where=where)

    def unlimited(self, part: AutoregressiveModel) -> AutoregressiveModel:
        """A part that reads texts of any length."""
        return part if part.context is None else Sliding.of(part)

    # Defined by subclasses

    @abstractmethod
    def initial_scores(self, weights: Tensor) -> Tensor:
        """The gate scores (P,) that correspond to these weights."""

    @abstractmethod
    def weights(self, scores: Tensor) -> Tensor:
        """The weights that correspond to gate scores (..., P)."""

    @abstractmethod
    def combine(self, log_probs: Sequence[Tensor], scores: Tensor) -> Tensor:
        """Log-probabilities (B, K, V) of the whole from those of each part and gate scores (B, K, P)."""

    @abstractmethod
    def describe_combination(self, program: ProgramBuilder, log_probs: Sequence[Vector], scores: Vector) -> None:
        """`combine` in a compiled step."""

    @abstractmethod
    def evidence(
        self, log_probs: Sequence[Tensor], targets: Tensor, features: Tensor, generator: torch.Generator
    ) -> Evidence:
        """What fitting needs of N predictions, (N, V) per part; random draws use the generator."""

    @property
    @abstractmethod
    def evidence_size(self) -> int:
        """Number of values in the evidence of one prediction."""

    @abstractmethod
    def losses(self, scores: Tensor, evidence: Evidence) -> Tensor:
        """Negative log-likelihood (N,) of the targets in nats, for scores (N, P)."""

    # Common to all

    @property
    def components(self) -> Sequence[AutoregressiveModel]:
        return cast(Sequence[AutoregressiveModel], self.parts)

    @final
    def begin(self, rows: int, source: Sequences | None = None) -> PartPredictions:
        """The first predictions of the parts."""
        steps = [part.start(source, batch_size=rows) for part in self.components]
        log_probs = tuple(normalised(step.logits) for step in steps)
        features, gate = self.gate.start(log_probs)
        return PartPredictions(log_probs, features, BlendState(tuple(step.state for step in steps), gate))

    @final
    def read(self, tokens: Tensor, state: State) -> PartPredictions:
        """The predictions of the parts after each of the tokens (B, K)."""
        states, gate = cast(BlendState, state)
        steps = [part.extend(tokens, before) for part, before in zip(self.components, states, strict=True)]
        log_probs = tuple(normalised(step.logits) for step in steps)
        features, gate = self.gate.extend(tokens, log_probs, gate)
        return PartPredictions(log_probs, features, BlendState(tuple(step.state for step in steps), gate))

    @final
    def part_log_probs(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
        """Log-probabilities (B, T, V) of each part for all positions of a batch, and the features of the gate."""
        log_probs = tuple(normalised(part.logits(batch)) for part in self.components)
        return log_probs, self.gate_features(readable(batch.target), log_probs)

    @final
    def gate_features(self, ids: Tensor, log_probs: Sequence[Tensor]) -> Tensor:
        """The features of the gate (B, T, F) at all positions of texts (B, T)."""
        features, gate = self.gate.start([one[:, :1] for one in log_probs])
        if ids.shape[1] > 1:
            later = self.gate.extend(ids[:, :-1], [one[:, 1:] for one in log_probs], gate).features
            features = torch.cat([features, later], dim=1)
        return features

    @final
    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        log_probs, features, state = self.begin(batch_size, source)
        return Step(self.combine(log_probs, self.gate.scores(features)), state)

    @final
    def extend(self, tokens: Tensor, state: State) -> Step:
        if (compiled := kernels.extend(self, tokens, state)) is not None:
            return compiled
        log_probs, features, after = self.read(tokens, state)
        return Step(self.combine(log_probs, self.gate.scores(features)), after)

    @final
    def logits(self, batch: Batch) -> Tensor:
        log_probs, features = self.part_log_probs(batch)
        return self.combine(log_probs, self.gate.scores(features))

    # In a compiled step

    @property
    def has_program(self) -> bool:
        described = (isinstance(part, Describable) and kernels.has_program(part) for part in self.components)
        return all(described) and len({kernels.dtype_of(part) for part in self.components}) == 1

    def describe_step(self, program: ProgramBuilder) -> None:
        log_probs = [program.new(self.vocabulary) for _ in self.components]
        slot = 0
        for part, one in zip(self.components, log_probs, strict=True):
            assert isinstance(part, Describable)
            with program.part_of_model(slot, one):
                part.describe_step(program)
            program.log_softmax(one, floor=FLOOR)
            slot += state_size(part)
        self.describe_combination(program, log_probs, self.gate.describe(program, log_probs, slot))

    def make_room(self, state: State, count: int) -> State:
        parts, gate = cast(BlendState, state)
        described = cast(Sequence[Describable], self.components)
        grown = tuple(part.make_room(before, count) for part, before in zip(described, parts, strict=True))
        return state if all(map(operator.is_, grown, parts)) else BlendState(grown, gate)

    def room(self, state: State) -> float:
        described = cast(Sequence[Describable], self.components)
        return min(part.room(before) for part, before in zip(described, cast(BlendState, state).parts, strict=True))


def normalised(logits: Tensor) -> Tensor:
    """Log-probabilities in float32 at least, bounded from below by FLOOR."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)).clamp(min=FLOOR)
