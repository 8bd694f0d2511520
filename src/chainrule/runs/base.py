"""What every run has: a folder, its settings, a model, and the record of how it came to be."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch

from chainrule.card import card
from chainrule.config import DataConfig, RunConfig, Settings
from chainrule.data.corpus import Corpus, Report
from chainrule.errors import DecodingError, RunError
from chainrule.evaluation.likelihood import Score, TokenScore, protocol_for, score, token_scores
from chainrule.evaluation.verify import Finding, verify
from chainrule.evaluation.verify_parallel import verify_parallel
from chainrule.interface.base import AutoregressiveModel, CountModel, Model
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import ParallelModel
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome

RunT = TypeVar("RunT", bound="Run")


@dataclass(frozen=True, kw_only=True)
class Run(ABC):
    """A trained model and the record of how it came to be. What can be done with it depends on what it models."""

    does: ClassVar[str]  # what such a run is for, after "a run that": "translates"
    use: ClassVar[str]  # the command that does it, for a {run}

    folder: RunFolder
    config: RunConfig
    model: Model
    outcome: Outcome | None = None  # of the training that gave this object

    @classmethod
    @abstractmethod
    def of(cls, folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None) -> Self:
        """A model with what else such a run needs of its folder."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What there is to tell of what it was trained on, in plain values."""

    def keep_score(self, result: Settings, corpus: Corpus, name: str, *, split: str | None = None) -> None:
        """Add a line to scores.jsonl: the numbers, their protocol, and which data they are about.

        A run that may be read but not written, someone else's say, can still be scored.
        """
        if os.access(self.path, os.W_OK):
            about = {"data": name, "split": split, "fingerprint": corpus.fingerprint}
            self.folder.append("scores.jsonl", {**about, **result.model_dump(mode="json")})

    def verify(self, *, seed: int = 0) -> list[Finding]:
        """The checks of every family, on this very model."""
        if isinstance(self.model, ParallelModel):
            return verify_parallel(self.model, seed=seed)
        if not isinstance(self.model, AutoregressiveModel):
            raise RunError(f"{str(self.path)!r} is a {self.config.family}, which has no likelihood to verify")
        return verify(self.model, seed=seed)

    def info(self) -> dict[str, Any]:
        """What the run is, in plain values."""
        scores = self.folder.records("scores.jsonl")
        metrics = [record for record in self.folder.records("metrics.jsonl") if "loss" in record]
        last = metrics[-1] if metrics else {}
        return {
            "path": str(self.path),
            "family": self.config.family,
            "summary": type(self.model).summary(),
            "parameters": parameters(self.model),
            "vocabulary": self.model.vocabulary,
            "context": self.model.context,
            "receptive_field": self.model.receptive_field if isinstance(self.model, AutoregressiveModel) else None,
            **self.about(),
            "data": self.config.data.train,
            "steps": last.get("step"),
            "tokens": last.get("tokens"),
            "seconds": last.get("seconds"),
            "validation": next((one for one in reversed(scores) if one.get("split") == "validation"), None),
            "test": next((one for one in reversed(scores) if one.get("split") == "test"), None),
        }

    def card(self) -> str:
        """The run in prose, for card.md."""
        return card(self.path.name, self.info())


@dataclass(frozen=True, kw_only=True)
class TokenRun(Run):
    """A run whose model is one of texts: how likely are they?"""

    does = "models texts"

    model: AutoregressiveModel | ParallelModel
    tokenizer: Tokenizer

    @property
    def autoregressive(self) -> AutoregressiveModel:
        """The model, as one that has a next token."""
        if isinstance(self.model, ParallelModel):
            raise DecodingError(
                f"{str(self.path)!r} is a {self.config.family}, which writes all tokens at once and has no next one; "
                "give a run of an autoregressive family, such as transformer"
            )
        return self.model

    def score(
        self,
        text: str | None = None,
        *,
        data: str | None = None,
        source: str | None = None,
        stride: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Score:
        """Score a text, or a file or any other data spec. The result is also kept in scores.jsonl.

        A run that translates scores a text given its `source`, a file given the file of its sources, or data of pairs.
        """
        corpus, given, name = self.corpus(text, data, source)
        protocol = protocol_for(self.model, corpus, stride=stride)
        result = score(self.model, corpus, protocol, source=given, progress=progress)
        self.keep_score(result, corpus, name)
        return result

    def token_scores(
        self,
        text: str | None = None,
        *,
        data: str | None = None,
        source: str | None = None,
        stride: int | None = None,
        alternatives: int = 5,
    ) -> list[TokenScore]:
        """Each token's surprisal and what the model expected instead."""
        model = self.autoregressive
        corpus, given, _ = self.corpus(text, data, source)
        protocol = protocol_for(model, corpus, stride=stride)
        found = token_scores(model, corpus, protocol, source=given, alternatives=alternatives)
        return found[::-1] if is_right_to_left(self.model) else found

    @abstractmethod
    def corpus(
        self, text: str | None, data: str | None, source: str | None = None
    ) -> tuple[Corpus, Corpus | None, str]:
        """What to score, what it is given where the run translates, and what to call it."""

    def about(self) -> dict[str, Any]:
        return {"tokenizer": self.config.tokenizer, "tokenizer_note": self.tokenizer.note}


class Splits(NamedTuple):
    """Data as a run encodes it."""

    train: Corpus
    valid: Corpus
    test: Corpus | None


@dataclass(frozen=True, kw_only=True)
class SequenceRun(Run):
    """A run whose model is one of sequences without a source: such runs can be put together, and compared."""

    does = "models sequences that have no source"

    @property
    @abstractmethod
    def autoregressive(self) -> AutoregressiveModel:
        """The model, as one that has a next token."""

    @property
    @abstractmethod
    def vocabulary(self) -> object:
        """What its tokens mean: a value that is equal for runs of one vocabulary."""

    @abstractmethod
    def splits(self, config: DataConfig, progress: Report | None = None) -> Splits:
        """The data that settings name, in the run's own vocabulary."""

    @abstractmethod
    def encode(self, config: DataConfig, spec: str) -> Corpus:
        """Other data, read as the settings say."""

    @abstractmethod
    def create(self, folder: RunFolder, config: RunConfig) -> None:
        """Begin a run of the same vocabulary."""


def require(run: Run, kind: type[RunT]) -> RunT:
    """The run, which must be of a kind that does what is asked for."""
    if not isinstance(run, kind):
        raise RunError(
            f"{str(run.path)!r} is a {run.config.family}, which {run.does} ({run.use.format(run=run.path)}); "
            f"give a run that {kind.does}"
        )
    return run


def parameters(model: torch.nn.Module) -> int:
    """Learned numbers: weights of networks, probabilities of tables."""
    tables = [buffer for part in model.modules() if isinstance(part, CountModel) for buffer in part.buffers()]
    return sum(x.numel() for x in (*model.parameters(), *tables) if x.is_floating_point())
