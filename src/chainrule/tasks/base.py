"""What every task has: its runs and their scores. Its data in training is in `tasks.training_data`.

Task            what a model is for; names its run and opens the data
Run             a trained model in its folder, with the verbs of its task
└── TokenizerRun    ... over tokens of text

Runs that score texts, and runs that can be mixed and compared, are in `tasks.sequences`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, cast

import torch
from typing_extensions import TypeVar

from chainrule.config import DataConfig, RunConfig, Settings
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.verify import Finding, verify
from chainrule.evaluation.verify_parallel import verify_parallel
from chainrule.interface.base import AutoregressiveModel, CountModel, Model
from chainrule.interface.conditional import ParallelModel
from chainrule.metrics import HEADLINES, known_metrics, protocol_line
from chainrule.reports.learning import curve_svg
from chainrule.reports.notebook import run_html
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.curves import LearningCurve, learning_curve
from chainrule.training.description import Description, last_scores, write_description
from chainrule.training.loop import Outcome
from chainrule.training.progress import Reporter

if TYPE_CHECKING:
    from chainrule.tasks.training_data import TrainingData

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


# Held-out data


class HeldOut(NamedTuple):
    """A validation or test set."""

    corpus: Corpus  # what is predicted
    source: Corpus | None  # what it is predicted from, document by document, if the task has a source
    name: str  # what reports call it


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
    codes = torch.int16  # of quantised tables
    return sum(x.numel() for x in (*model.parameters(), *tables) if x.is_floating_point() or x.dtype == codes)


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
