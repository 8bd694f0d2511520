"""What the tasks of labels, tags and answers share: examples of a short target given a text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from typing_extensions import TypeVar

from chainrule.config import DataConfig, RunConfig, Settings
from chainrule.data.batching import Pairs, by_length
from chainrule.data.examples import shortened
from chainrule.data.parallel import PairedCorpus
from chainrule.data.token_files import Tokens
from chainrule.errors import ConfigError
from chainrule.features.encoders import RunEncoder
from chainrule.interface.base import AutoregressiveModel, NeuralModel
from chainrule.interface.capabilities import FitsStatistics
from chainrule.metrics import score_rows
from chainrule.tasks.base import HeldOut, RunT, TokenizerRun
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tasks.training_data import LikelihoodData, TrainingBatches
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Fraction, Reporter

WINDOW = 512  # texts that are buffered, so that those of similar length are read together
ROWS_AT_ONCE, TOKENS_AT_ONCE = 256, 8192  # of one forward pass, padding included

NeuralT = TypeVar("NeuralT", bound=NeuralModel)
PredictorT_co = TypeVar("PredictorT_co", bound=AutoregressiveModel, covariant=True, default=AutoregressiveModel)
Given = TypeVar("Given")
Found = TypeVar("Found")


# Runs


class LinePrediction(NamedTuple):
    """The prediction for a line of input."""

    line: str  # for people
    record: dict[str, Any]  # for programs


@dataclass(frozen=True, kw_only=True, repr=False)
class PredictionRun(TokenizerRun[PredictorT_co]):
    """A model of a short target given a text, with the tokenizer of the text."""

    does = "predicts labels, tags or answers"
    use = "chainrule predict {run} < my.txt"

    @abstractmethod
    def predict_lines(
        self, lines: Iterable[str], *, search: str | None = None, beam: int = 5
    ) -> Iterator[LinePrediction | None]:
        """The prediction for each line, in order; None for an empty line. There may be any number of lines."""

    @abstractmethod
    def score(self, data: str, *, progress: Fraction | bool | None = True) -> Settings:
        """Compare predictions with the data's own targets. The result is also stored in scores.jsonl."""

    def evaluate(self, request: ScoreRequest, progress: Callable[[float], None] | None = None) -> ScoreReport:
        if request.data is None or request.given("text", "source", "references", "stride", "per_token"):
            raise ConfigError(f"{str(self.path)!r} {self.does}; give annotated data with --data, and nothing else")
        return self.report(self.score(request.data, progress=progress), request.picture)

    def report(self, found: Settings, picture: Path | None) -> ScoreReport:
        """A score as a report; tasks with a confusion matrix draw it."""
        if picture is not None:
            raise ConfigError(f"{str(self.path)!r} {self.does} and has no confusion matrix; remove --picture")
        values = found.model_dump(mode="json")
        return ScoreReport(values, score_rows(values))

    def about(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.kind, "tokenizer_note": self.tokenizer.note}


def in_windows(
    texts: Iterable[Given], predict: Callable[[Sequence[Given]], Sequence[Found]], *, window: int = WINDOW
) -> Iterator[Found | None]:
    """Predictions for a window of texts at a time, in order; None for empty texts."""
    waiting = iter(texts)
    while now := list(islice(waiting, window)):
        found = iter(predict([text for text in now if text]))
        for text in now:
            yield next(found) if text else None


def in_groups(
    lengths: Sequence[int],
    compute: Callable[[Sequence[int]], Sequence[Found]],
    *,
    progress: Callable[[float], None] | None = None,
) -> list[Found]:
    """The results of `compute` for all texts; it receives the indices of texts of similar length."""
    found: dict[int, Found] = {}
    for group in by_length(lengths, ROWS_AT_ONCE, TOKENS_AT_ONCE):
        found |= zip(group, compute(group), strict=True)
        if progress is not None:
            progress(len(found) / len(lengths))
    return [found[row] for row in range(len(lengths))]


# Data


class ExampleData(LikelihoodData[NeuralT, RunT]):
    """Targets to predict from texts. `tokenizer` is that of the texts."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: PairedCorpus,
        held_out: Mapping[str, PairedCorpus],
        names: Mapping[str, str],
        warnings: tuple[str, ...],
        embedder: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.pairs, self.splits, self.warnings = tokenizer, train, dict(held_out), warnings
        self.embedder = embedder or {}  # settings of the run that is the encoder of a new model
        self.corpus = train.target
        self.held_out = {split: HeldOut(pairs.target, pairs.source, names[split]) for split, pairs in held_out.items()}
        self.monitored = self.held_out["validation"]

    @property
    def bytes_per_token(self) -> None:
        """Labels are not text."""
        return

    def data_settings(self, config: DataConfig) -> DataConfig:
        return config.model_copy(update={"unit": "documents"})

    def batches(self, model: NeuralT, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        if self.embedder:
            _read_encoder(model, config.model["encoder_run"])
        if isinstance(model, FitsStatistics):
            train, *held_out = (_cut(pairs, model.source_context) for pairs in (self.pairs, *self.splits.values()))
            progress = partial(reporter.preparing, "features of the texts")
            model.fit_statistics(train, held_out=chain.from_iterable(held_out), progress=progress)
        feed = Pairs(self.pairs, config.train.batch_tokens, config.seed, longest=(model.source_context, model.context))
        if feed.left_out:
            reporter.note(
                f"{feed.left_out:,} of {self.pairs.pairs:,} training examples are longer than the model's context and "
                "are left out"
            )
        return TrainingBatches(feed, WholeSequences)

    def shorten(self, limit: int | None, reporter: Reporter, what: str) -> None:
        """Cut the training sources to what the model can read, and note how many that were."""
        if limit is not None:
            self.pairs, long = shortened(self.pairs, limit)
            if long:
                reporter.note(f"{long:,} training {what} are cut to their first {limit:,} tokens")

    def reversed(self) -> NoReturn:
        raise ConfigError("labels, tags and answers are not read from right to left; remove the direction")


def _cut(pairs: PairedCorpus, limit: int | None) -> Iterable[tuple[Tokens, Tokens]]:
    """Pairs whose sources are cut to what the model can read."""
    return ((source[:limit], target) for source, target in pairs.ids())


# Encoders that were trained before


def encoder_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The tokenizer of the pretrained encoder; None if the encoder is trained from scratch."""
    if (folder := config.model.get("features")) is not None:
        return HuggingFace.read(Path(folder) / "tokenizer.json")
    if (run := config.model.get("encoder_run")) is not None:
        return RunFolder(Path(run)).tokenizer()
    return None


class KnownParts(NamedTuple):
    """What a model of labels takes over from a run: the one that goes on or is scored, or its encoder's."""

    tokenizer: Tokenizer | None
    labels: Sequence[str]  # none: found in the data
    embedder: dict[str, Any]  # settings of the run that is the encoder of a new model


def known_parts(config: RunConfig, stored: RunFolder | None) -> KnownParts:
    if stored is None:
        return KnownParts(encoder_tokenizer(config), (), embedder_settings(config))
    return KnownParts(stored.tokenizer(), stored.config().model.get("labels", ()), {})


def embedder_settings(config: RunConfig) -> dict[str, Any]:
    """The settings of the run that is the encoder of a new model."""
    if (run := config.model.get("encoder_run")) is None:
        return {}
    stored = RunFolder(Path(run)).config()
    return {"embedder": {"family": stored.family, **stored.model}}


def _read_encoder(model: NeuralModel, run: str) -> None:
    """Load the weights of the encoder's run into a new model."""
    for part in model.children():
        if isinstance(part, RunEncoder):
            RunFolder(Path(run)).read_weights(part.model)
