"""The data of a task in training: how a model is trained, validated and scored on it.

TrainingData        the encoded data of one run: batches, validation, final scores
└── LikelihoodData  ... validated and scored by the likelihood
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Self, cast

import numpy as np
import torch
from typing_extensions import TypeVar

from chainrule.config import DataConfig, RunConfig, Settings, TrainConfig
from chainrule.data.batching import Feed
from chainrule.data.corpus import Corpus
from chainrule.data.workers import local_workers
from chainrule.errors import ConfigError, NotANumber
from chainrule.evaluation.likelihood import score
from chainrule.evaluation.protocol import protocol_for
from chainrule.families import build
from chainrule.features import use_tokenizer
from chainrule.interface.base import CountModel, NeuralModel, Trainable
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import ParallelModel
from chainrule.objectives import Noise
from chainrule.tasks.base import HeldOut, Run, RunT
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.counting import count, counts_on_disk
from chainrule.training.distributed import current
from chainrule.training.footprint import require_memory
from chainrule.training.learner import NextTokens, build_learner
from chainrule.training.loop import Outcome, trainer_type
from chainrule.training.placement import place
from chainrule.training.progress import Record, Recorder, Reporter
from chainrule.training.warm_start import WarmStart

UNIGRAM_TOLERANCE = 0.02  # a model may be this much worse than token frequencies without a warning
RISE = 0.05  # of the validation loss above its minimum, from which on a model is said to overfit
VALIDATION_PIECES = 16  # parts of a stream that are validated in parallel during training

ModelT = TypeVar("ModelT", bound=Trainable)
DensityT = TypeVar("DensityT", bound=NeuralModel | ParallelModel)


class TrainingBatches(NamedTuple):
    """Batches, and the learner for such batches."""

    feed: Feed[Any]
    learner: type[NextTokens]  # unless the model has its own objective


class TrainingData(ABC, Generic[ModelT, RunT]):
    """The encoded data of a run, and how a model is trained, validated and scored on it."""

    model_type: ClassVar[type[Any]]  # ModelT at run time
    run_type: ClassVar[type[Run]]  # RunT at run time
    unit: ClassVar[str] = "byte"  # bits are reported per byte, or per dim
    sized_by_budget: ClassVar[bool] = False  # whether `train` chooses the size of a model for a budget in minutes

    tokenizer: Tokenizer  # of what is predicted
    source_tokenizer: Tokenizer | None = None
    corpus: Corpus  # what is predicted in training
    held_out: dict[str, HeldOut]  # "validation", and "test" if there is one
    monitored: HeldOut  # what training validates on
    warnings: tuple[str, ...]

    # What a task defines

    @property
    @abstractmethod
    def model_settings(self) -> Mapping[str, Any]:
        """The model's settings that follow from the data, such as the vocabulary size."""

    @abstractmethod
    def data_settings(self, config: DataConfig) -> DataConfig:
        """The settings completed by what was found in the data."""

    @abstractmethod
    def batches(self, model: ModelT, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        """Training batches for a model."""

    def validation_metrics(self, model: ModelT, config: RunConfig) -> Callable[[], Record]:
        """Metrics computed at every validation in addition to the loss; none by default."""
        return dict

    @abstractmethod
    def reversed(self) -> Self:
        """The same data for a model that reads from right to left."""

    @property
    def bytes_per_token(self) -> float | None:
        """Converts nats per token to bits per byte; None if the loss does not cover the whole text."""
        return self.corpus.bytes_per_token

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        """Create the run folder with everything that exists before the first step."""
        folder.create(config, self.tokenizer, self.source_tokenizer)

    @abstractmethod
    def validate(self, model: ModelT, settings: TrainConfig) -> float:
        """The validation loss during training, in nats per token."""

    @abstractmethod
    def score_split(self, run: RunT, split: str, progress: Callable[[float], None]) -> Settings:
        """The metrics that the card reports for a split."""

    def model_of(self, run: RunT) -> ModelT:
        """The model of a run that was trained on this data."""
        return cast(ModelT, run.model)

    # From data to a run

    def train(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        device: torch.device,
        reporter: Reporter,
        start: WarmStart | None = None,
        resume: bool = False,
        scored: bool = True,
    ) -> RunT:
        """Build the model, fit it to this data, score the held-out splits and write the card."""
        settings = {**config.model, **self.model_settings}
        require_memory(config.family, settings, config.train, device)
        torch.manual_seed(config.seed)
        model = build(config.family, settings)
        config = config.model_copy(
            update={
                "model": model.config.model_dump(mode="json", exclude_none=True),
                "data": self.data_settings(config.data),
            }
        )
        use_tokenizer(model, lambda: self.source_tokenizer or self.tokenizer)
        model = model.to(device)
        data = self.reversed() if is_right_to_left(model) else self
        outcome = None
        if isinstance(model, CountModel):
            with counts_on_disk(model, folder.path, config.memory), local_workers(config.data.workers):
                count(model, data.corpus, reporter)
                data.create(folder, config)
                folder.write_weights(model)
            if config.memory is not None:
                folder.read_weights(model)
        else:
            if not isinstance(model, self.model_type):
                raise ConfigError(f"{config.family} cannot be trained on {config.data.train!r}; choose another family")
            outcome = data._fit(cast(ModelT, model), config, folder, reporter, start, resume)
            current().wait()  # until the best weights are written
            if current().world > 1 and config.train.parallel == "fsdp":  # this process has a part of the weights only
                model = build(config.family, settings).to(device)
                use_tokenizer(model, lambda: self.source_tokenizer or self.tokenizer)
            folder.read_weights(model)
        run = cast(RunT, self.run_type.of(folder, config, model.eval(), outcome))
        if scored and (outcome is None or outcome.reason != "stopped"):
            data.score(run, reporter)
        folder.write_card(run.card())
        run.describe()
        return run

    def _fit(
        self,
        model: ModelT,
        config: RunConfig,
        folder: RunFolder,
        reporter: Reporter,
        start: WarmStart | None,
        resume: bool,
    ) -> Outcome:
        """Train by gradients, from the last checkpoint if the run is resumed."""
        settings = config.train
        unigrams = Noise(self.corpus.counts(model.vocabulary))
        model.init_output_bias(unigrams.unigram_logits)
        if start is not None:
            reporter.note(f"{start.copy_weights(model):.0%} of the weights are those of {start.folder.path}")
        processes = current()
        with processes.in_turn():  # features of pretrained models are cached
            batches = self.batches(model, config, reporter)
        placement = place(model, settings, processes)
        trainer = trainer_type(model)(
            model=model,
            learner=build_learner(placement, settings, unigrams, batches.learner),
            feed=batches.feed.of_process(processes.rank, processes.world),
            config=settings,
            folder=folder,
            recorder=Recorder(folder, tensorboard=settings.tensorboard and processes.first),
            reporter=reporter,
            validate=lambda: self.validate(model, settings),
            measure=self.validation_metrics(model, config),
            bytes_per_token=self.bytes_per_token,
            unit=self.unit,
            diverged_above=self.diverged_above(model),
        )
        self.create(folder, config)
        if resume and not trainer.resume():
            folder.drop_metrics_after(0)
        outcome = trainer.run()
        note_overfitting(outcome, settings, reporter)
        self.check_outcome(model, outcome, settings, reporter)
        return outcome

    def diverged_above(self, model: ModelT) -> float:
        """The validation loss, in nats per token, from which on training has diverged; by default only infinity."""
        return math.inf

    def check_outcome(self, model: ModelT, outcome: Outcome, settings: TrainConfig, reporter: Reporter) -> None:
        """Warn about a model that has learned nothing; by default there is no baseline to compare with."""

    def score(self, run: RunT, reporter: Reporter) -> None:
        """Score all held-out splits and store the results in scores.jsonl."""
        run.score_splits(self.held_out, lambda split, progress: self.score_split(run, split, progress), reporter)


def note_overfitting(outcome: Outcome, settings: TrainConfig, reporter: Reporter) -> None:
    """Note a validation loss that rose after its minimum, and which weights are kept."""
    if not outcome.lowest * (1 + RISE) < outcome.last < math.inf:
        return
    if outcome.best_step == outcome.lowest_step:
        kept = f"the weights of step {outcome.best_step:,} are kept"
        remedy = "--set train.patience=2 stops early"
    elif settings.best_by == "loss":  # selected by something else: word vectors
        kept = "the last weights are kept, since this loss says little about the similarity of words"
        remedy = "keep the vectors that score best with chainrule words RUN score"
    else:
        kept = f"the weights of step {outcome.best_step:,}, with the best {settings.best_by}, are kept"
        remedy = "--set train.patience=2 stops early"
    reporter.note(
        f"the model overfits: its validation loss was lowest at step {outcome.lowest_step:,} ({outcome.lowest:.3f}) "
        f"and rose to {outcome.last:.3f} by step {outcome.step:,}; {kept}. Train on more text or for fewer epochs; "
        f"{remedy}"
    )


class LikelihoodData(TrainingData[DensityT, RunT]):
    """Data that is validated and scored by the likelihood of the model."""

    def diverged_above(self, model: DensityT) -> float:
        """Twice the loss of the uniform distribution, for models whose loss is that of the next token."""
        return 2 * math.log(model.vocabulary) + 1 if isinstance(model, NeuralModel) else math.inf

    def check_outcome(self, model: DensityT, outcome: Outcome, settings: TrainConfig, reporter: Reporter) -> None:
        """Warn if the best weights predict worse than the token frequencies of the training data."""
        if settings.best_by != "loss" or outcome.reason == "stopped":
            return
        counts = self.corpus.counts(model.vocabulary).astype(np.float64) + 1.0  # add-one smoothing
        held_out = np.asarray(self.monitored.corpus.tokens[: settings.validate_tokens])
        unigram = float(-np.log(counts[held_out] / counts.sum()).mean())
        if outcome.best > unigram * (1 + UNIGRAM_TOLERANCE):
            reporter.note(
                f"the model is worse than a unigram model: {outcome.best:.3f} against {unigram:.3f} nats/token on the "
                f"validation data; train longer, or lower train.learning_rate ({settings.learning_rate:g}) and "
                f"train.muon_learning_rate ({settings.muon_learning_rate:g})"
            )

    def validate(self, model: DensityT, settings: TrainConfig) -> float:
        """On a part of the validation data, as pieces in parallel and windows without overlap; NaN if it diverged."""
        corpus, source, _ = self.monitored
        protocol = protocol_for(
            model, corpus, stride=model.context, pieces=VALIDATION_PIECES, tokens=settings.validate_tokens
        )
        try:
            return score(model, corpus, protocol, source=source).nats_per_token
        except NotANumber:
            return math.nan

    def score_split(self, run: RunT, split: str, progress: Callable[[float], None]) -> Settings:
        corpus, source, _ = self.held_out[split]
        return score(self.model_of(run), corpus, source=source, progress=progress)
