"""Runs over sequences: what runs of text, translation and images share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from chainrule.config import DataConfig
from chainrule.data.corpus import Corpus, Report
from chainrule.errors import ConfigError, DecodingError
from chainrule.evaluation.likelihood import Score, score
from chainrule.evaluation.protocol import protocol_for
from chainrule.evaluation.token_scores import TokenScore, token_scores
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import ParallelModel
from chainrule.metrics import score_rows
from chainrule.tasks.base import HeldOut, TokenizerRun
from chainrule.tasks.comparing import ComparisonData
from chainrule.tasks.gamma import with_gamma
from chainrule.tasks.mixable import MixableRun, named_data
from chainrule.tasks.scoring import ScoreReport, ScoreRequest, TextToken, TokenScores
from chainrule.training.progress import Fraction, shown_fraction

TextModelT_co = TypeVar("TextModelT_co", bound=AutoregressiveModel | ParallelModel, covariant=True)


class ScoredCorpus(NamedTuple):
    """Data to score."""

    corpus: Corpus
    source: Corpus | None  # of a translation
    name: str


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenRun(TokenizerRun[TextModelT_co]):
    """A run whose model is a distribution over texts."""

    does = "models texts"

    @property
    def autoregressive(self) -> AutoregressiveModel:
        """The model, which must predict the next token."""
        if isinstance(self.model, ParallelModel):
            raise DecodingError(
                f"{str(self.path)!r} is a {self.config.family}, which generates all tokens in parallel and does not "
                "predict a next one; give a run of an autoregressive family, such as transformer"
            )
        return self.model

    def with_gamma(self, gamma: float | None) -> Self:
        """The run of a hybrid with a fixed γ: 0 is the autoregressive branch, 1 the non-autoregressive one.

        At γ = 1 all positions of a target, or of a chunk of text, are generated in one pass. None: γ as trained.
        """
        return with_gamma(self, gamma)

    def score(
        self,
        text: str | None = None,
        *,
        data: str | None = None,
        source: str | None = None,
        stride: int | None = None,
        progress: Fraction | bool | None = True,
    ) -> Score:
        """Score a text, or a file or any other data spec. The result is also stored in scores.jsonl.

        A translation run scores a text given its `source`, a file given the file of its sources, or data of pairs.
        """
        corpus, given, name = self.scored_corpus(text, data, source)
        protocol = protocol_for(self.model, corpus, stride=stride)
        with shown_fraction(progress, "scoring") as report:
            result = score(self.model, corpus, protocol, source=given, progress=report)
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
    ) -> TokenScores:
        """The surprisal of each token, and the most probable tokens in its place: a list, coloured in a notebook."""
        model = self.autoregressive
        corpus, given, _ = self.scored_corpus(text, data, source)
        protocol = protocol_for(model, corpus, stride=stride)
        found = token_scores(model, corpus, protocol, source=given, alternatives=alternatives)
        return TokenScores([self._text_token(one) for one in (found[::-1] if is_right_to_left(model) else found)])

    @abstractmethod
    def scored_corpus(self, text: str | None, data: str | None, source: str | None = None) -> ScoredCorpus:
        """Encode a text or data to score, with its source if the run translates."""

    def evaluate(self, request: ScoreRequest, progress: Callable[[float], None] | None = None) -> ScoreReport:
        if request.picture is not None:
            raise ConfigError("--picture draws a confusion matrix; it is for classifiers and taggers only")
        if request.references is not None:
            raise ConfigError("--references needs --task translation; add it, or score the file with --data")
        which: dict[str, Any] = {"data": request.data, "source": request.source, "stride": request.stride}
        values = self.score(request.text, **which, progress=progress).model_dump(mode="json")
        tokens = []
        if request.per_token:
            tokens = self.token_scores(request.text, **which, alternatives=request.alternatives).texts
            values["per_token"] = [_plain_token(one) for one in tokens]
        return ScoreReport(values, score_rows(values), tokens=tokens)

    def _text_token(self, token: TokenScore) -> TextToken:
        piece, *others = self.tokenizer.pieces([token.token, *(other.token for other in token.alternatives)])
        return TextToken(piece, token, tuple(others))


def _plain_token(token: TextToken) -> dict[str, Any]:
    others = zip(token.alternatives, token.score.alternatives, strict=True)
    return {
        "token": token.piece,
        "id": token.score.token,
        "surprisal": token.score.surprisal,
        "rank": token.score.rank,
        "alternatives": [{"token": piece, "id": one.token, "probability": one.probability} for piece, one in others],
    }


class SequenceSplits(NamedTuple):
    """Data as a run encodes it."""

    train: Corpus
    valid: Corpus
    test: Corpus | None


@dataclass(frozen=True, kw_only=True, repr=False)
class SequenceRun(MixableRun[AutoregressiveModel]):
    """A run whose model is of sequences without a source."""

    does = "models sequences without a source"

    @abstractmethod
    def splits(self, config: DataConfig, progress: Report | None = None) -> SequenceSplits:
        """The data that the settings name, encoded with this run's vocabulary."""

    @abstractmethod
    def encode(self, config: DataConfig, spec: str) -> Corpus:
        """Other data, read as the settings say."""

    def held_out_splits(self, config: DataConfig, progress: Report | None = None) -> dict[str, HeldOut]:
        _, valid, test = self.splits(config, progress)
        return text_splits(config, valid, test)

    def held_out(self, config: DataConfig, split: str) -> HeldOut:
        return HeldOut(self.encode(config, named_data(config, split)), None, config.named(split))


def text_splits(config: DataConfig, valid: Corpus, test: Corpus | None) -> dict[str, HeldOut]:
    """Held-out sequences by the names of their splits."""
    found = {"validation": HeldOut(valid, None, config.named("validation"))}
    return found if test is None else found | {"test": HeldOut(test, None, config.named("test"))}


# Comparisons


class SpeedPrompt(NamedTuple):
    """Prompt of the decoding benchmark, and the maximum number of tokens to generate."""

    prompt: list[int]
    length: int


class SequenceComparison(ComparisonData):
    """Sequences without a source, compared by their likelihood."""

    neural_cache: ClassVar[int | None]  # size of the neural cache of a mixture's parts

    @abstractmethod
    def model_settings(self, name: str) -> Mapping[str, Any]:
        """Settings of a family that follow from the data, such as the vocabulary size."""

    @abstractmethod
    def speed_prompt(self) -> SpeedPrompt:
        """Prompt and length of the decoding benchmark."""

    @abstractmethod
    def sample(self, run: SequenceRun, seed: int, longest: int | None = None) -> dict[str, str]:
        """An unconditional sample of the model of at most `longest` tokens, as fields of a `ComparisonRow`."""
