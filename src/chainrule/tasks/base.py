"""What every task has: its data in training, its runs and its scores.

Task            what a model is for; names the classes below and opens the data
TrainingData    the encoded data of one run: batches, validation, final scores
Run             a trained model in its folder, with the verbs of its task
└── TokenizerRun    ... over tokens of text

Runs that score texts, and runs that can be mixed and compared, are in `tasks.sequences`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, cast

import numpy as np
import torch
from typing_extensions import TypeVar

from chainrule.config import DataConfig, RunConfig, Settings, TrainConfig
from chainrule.data.batching import Feed
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.likelihood import protocol_for, score
from chainrule.evaluation.verify import Finding, verify
from chainrule.evaluation.verify_parallel import verify_parallel
from chainrule.families import build
from chainrule.features import use_tokenizer
from chainrule.interface.base import AutoregressiveModel, CountModel, Model, NeuralModel, Trainable
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import ParallelModel
from chainrule.metrics import HEADLINES, known_metrics, protocol_line
from chainrule.objectives import Noise
from chainrule.reports.learning import curve_svg
from chainrule.reports.notebook import run_html
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.counting import count, counts_on_disk
from chainrule.training.curves import LearningCurve, learning_curve
from chainrule.training.description import Description, last_scores, write_description
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
ModelT_co = TypeVar("ModelT_co", bound=Model, covariant=True, default=Model)
RunT = TypeVar("RunT", bound="Run")


# Tasks


class Task(ABC):
    """What a model is for. A task is one file of this package and one entry of `TASKS`."""

    run: ClassVar[type[Run]]
    default_data: ClassVar[str | None] = None  # what is trained on if no data is given
    missing_data: ClassVar[str]  # error when no training data is given: which forms the task reads

    @classmethod
    @abstractmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> TrainingData[Any, Any]:
        """Read and encode the data; `stored` is a run whose vocabularies are used instead of new ones."""

    @classmethod
    def run_for(cls, data: DataConfig) -> type[Run]:
        """The kind of run for data of this task; by default one kind for all."""
        return cls.run

    @classmethod
    def recognises(cls, data: str) -> bool:
        """Whether a data spec belongs to this task whatever the family; by default the family decides."""
        return False

    @classmethod
    def stored(cls, data: DataConfig) -> bool:
        """The same for the settings of a run that was trained before."""
        return False


def refuse_pairs(config: RunConfig) -> None:
    """Raise ConfigError if settings of translation are given to another task."""
    given = {
        "data.source": config.data.source,
        "data.valid_source": config.data.valid_source,
        "data.test_source": config.data.test_source,
        "data.distil_from": config.data.distil_from,
        "source_tokenizer": config.source_tokenizer,
        "train.validate_bleu": config.train.validate_bleu,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{config.family} is not a translation model, but {name} is set; remove it, or train a translation "
                "family (chainrule models lists them)"
            )


# Data in training


class TrainingBatches(NamedTuple):
    """Batches, and the learner for such batches."""

    feed: Feed[Any]
    learner: type[NextTokens]  # unless the model has its own objective


class HeldOut(NamedTuple):
    """A validation or test set."""

    corpus: Corpus  # what is predicted
    source: Corpus | None  # what it is predicted from, document by document, if the task has a source
    name: str  # what reports call it


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
            with counts_on_disk(model, folder.path, config.memory):
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
        if resume and (saved := folder.last_state()) is not None:
            trainer.restore(saved)
        elif resume:
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
        """On a part of the validation data, as pieces in parallel and windows without overlap."""
        corpus, source, _ = self.monitored
        protocol = protocol_for(
            model, corpus, stride=model.context, pieces=VALIDATION_PIECES, tokens=settings.validate_tokens
        )
        return score(model, corpus, protocol, source=source).nats_per_token

    def score_split(self, run: RunT, split: str, progress: Callable[[float], None]) -> Settings:
        corpus, source, _ = self.held_out[split]
        return score(self.model_of(run), corpus, source=source, progress=progress)


# Runs


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(ABC, Generic[ModelT_co]):
    """A trained model and the record of its training. What can be done with it depends on its task."""

    model_type: ClassVar[type[Any]] = Model  # ModelT_co at run time
    does: ClassVar[str]  # completes "a run that …": "translates"
    use: ClassVar[str]  # an example command for a {run}

    folder: RunFolder
    config: RunConfig
    model: ModelT_co
    outcome: Outcome | None = None  # of the training that created this object

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None = None) -> Self:
        """A run with everything else that it needs from its folder."""
        if not isinstance(model, cls.model_type):
            raise RunError(f"{str(folder.path)!r} is a {config.family}, which is not a model of this task")
        return cls(
            folder=folder, config=config, model=cast(ModelT_co, model), outcome=outcome, **cls.stored_parts(folder)
        )

    @classmethod
    def stored_parts(cls, folder: RunFolder) -> dict[str, Any]:
        """Fields of the run that are read from its folder."""
        return {}

    @property
    def path(self) -> Path:
        return self.folder.path

    def __repr__(self) -> str:
        scores = [one for one in self.folder.records("scores.jsonl") if one.get("split") == "validation"]
        known = {key: metric(value) for key, metric, value in known_metrics(scores[-1] if scores else {})}
        shown = next((known[key] for key in HEADLINES if key in known), "not scored")
        return (
            f"<{type(self).__name__} {self.path}: {self.config.family}, {parameters(self.model):,} parameters, {shown}>"
        )

    def _repr_html_(self) -> str:
        """Facts and scores as tables, and the learning curve, for notebooks."""
        curve = self.learning_curve()
        picture = "" if curve is None else curve_svg(curve, name=self.path.name)
        return run_html(self.info(), self.summary_rows(), picture)

    def learning_curve(self) -> LearningCurve | None:
        """The validation metric and the training loss against time; None for models that are not trained in steps."""
        return learning_curve(self.folder.records("metrics.jsonl"))

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What `info` adds for this task, as plain values."""

    def summary_rows(self) -> dict[str, Any]:
        """Rows that tables of a run add for this task."""
        return {}

    def card_lines(self) -> list[str]:
        """Lines that the card adds for this task."""
        return []

    def evaluate(self, request: ScoreRequest, progress: Callable[[float], None] | None = None) -> ScoreReport:
        """Carry out `chainrule score` for this task; refused where a task has no score."""
        raise mismatch(self, "models texts")

    def keep_score(self, result: Settings, corpus: Corpus, name: str, *, split: str | None = None) -> None:
        """Append a score to scores.jsonl: the metrics, their protocol and the data; skipped in a read-only folder."""
        if self.folder.writable:
            about = {"data": name, "split": split, "fingerprint": corpus.fingerprint}
            self.folder.append("scores.jsonl", {**about, **result.model_dump(mode="json")})

    def score_splits(
        self,
        held_out: Mapping[str, HeldOut],
        scored: Callable[[str, Callable[[float], None]], Settings],
        reporter: Reporter,
    ) -> None:
        """Score each split by `scored(split, progress)` and store the results."""
        for split, (corpus, _, name) in held_out.items():
            reporter.begin(f"scoring the {split} data")
            try:
                result = scored(split, lambda share: reporter.update(share, {}))
            finally:
                reporter.end()
            self.keep_score(result, corpus, name, split=split)

    def verify(self, *, seed: int = 0) -> list[Finding]:
        """Run the checks of every family on this model."""
        if isinstance(self.model, ParallelModel):
            return verify_parallel(self.model, seed=seed)
        if not isinstance(self.model, AutoregressiveModel):
            return [Finding("checks of the likelihood", "not applicable", f"a {self.config.family} has none")]
        return verify(self.model, seed=seed)

    def info(self) -> dict[str, Any]:
        """What the run is, as plain values."""
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
            **last_scores(self.folder),
        }

    def describe(self) -> Description:
        """Store what `chainrule info` shows, so that it need not load the model."""
        description = Description(self.info(), self.summary_rows())
        write_description(self.folder, description)
        return description

    def card(self) -> str:
        """The run as Markdown, for card.md."""
        about = self.info()
        lines = [
            f"# {self.path.name}: {about['family']}",
            "",
            about["summary"],
            "",
            f"- parameters: {about['parameters']:,}",
            f"- vocabulary: {about['vocabulary']:,} ({about['tokenizer']}; {about['tokenizer_note']})",
            f"- training data: {about['data']}",
            *self.card_lines(),
        ]
        if about["steps"]:
            lines.append(f"- steps: {about['steps']:,}, tokens: {about['tokens']:,}, seconds: {about['seconds']:,.0f}")
        for split in ("validation", "test"):
            if (found := about[split]) is not None:
                lines += ["", f"## {split.capitalize()}: {found['data']}", "", "| metric | value |", "|---|---|"]
                lines += [f"| {metric.label} | {value:,.6g} |" for _, metric, value in known_metrics(found)]
                if "protocol" in found:
                    lines += ["", f"Protocol: {protocol_line(found['protocol'])}."]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenizerRun(Run[ModelT_co]):
    """A run with a tokenizer."""

    tokenizer: Tokenizer

    @classmethod
    def stored_parts(cls, folder: RunFolder) -> dict[str, Any]:
        return {"tokenizer": folder.tokenizer()}

    def about(self) -> dict[str, Any]:
        return {"tokenizer": self.config.tokenizer, "tokenizer_note": self.tokenizer.note}


def require(run: Run, kind: type[RunT]) -> RunT:
    """The run, which must be of a kind; raises RunError otherwise."""
    if not isinstance(run, kind):
        raise mismatch(run, kind.does)
    return run


def mismatch(run: Run, wanted: str) -> RunError:
    """The error for a run that does something else than is asked for."""
    return RunError(
        f"{str(run.path)!r} is a {run.config.family}, which {run.does} ({run.use.format(run=run.path)}); "
        f"give a run that {wanted}"
    )


def parameters(model: torch.nn.Module) -> int:
    """Number of parameters: weights of networks, probabilities of count tables."""
    tables = [buffer for part in model.modules() if isinstance(part, CountModel) for buffer in part.buffers()]
    return sum(x.numel() for x in (*model.parameters(), *tables) if x.is_floating_point())


def choose_device(name: str) -> torch.device:
    """`auto` is the fastest device available: cuda, then mps, then cpu."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        others = [kind for kind, there in usable.items() if there]
        raise ConfigError(
            f"device {name!r} is not available on this machine; choose {' or '.join(['auto', *others, 'cpu'])}"
        ) from None
    return device
