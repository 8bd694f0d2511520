"""The plan of a comparison, made before training and stored in plan.json: families, model sizes, budget per family."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from chainrule.comparison.schedule import Schedule, expected_training
from chainrule.config import DataConfig, Settings, apply_overrides
from chainrule.data.recognition import recognise_task
from chainrule.errors import ConfigError, nearest
from chainrule.families import family
from chainrule.interface.base import CountModel, NeuralModel
from chainrule.interface.conditional import ParallelModel
from chainrule.reports.formatting import duration
from chainrule.tasks import COMPARISONS
from chainrule.tasks.comparing import OWN_SPLIT, ComparisonData, Entry, ExampleComparison
from chainrule.tasks.sequences import SequenceComparison
from chainrule.training.sizing import operations_per_second, sizes_for, sizes_for_examples

TEST_FRACTION = 0.1  # of the data, for the metrics, unless the user gives a validation or test file
VALID_FRACTION = 0.05  # of the training data, for early stopping and for fitting mixture gates


class Job(Settings):
    """The training of one model."""

    name: str
    family: str
    summary: str = ""
    taught: bool = Field(False, description="whether it is trained on the translations of the best other model")
    data: dict[str, Any] = Field({}, description="data settings of this model only: its teacher")
    model: dict[str, Any] = Field({}, description="model settings")
    train: dict[str, Any] = Field({}, description="training settings")


class ComparisonPlan(Settings):
    """The content of plan.json."""

    format: Literal[4] = 4
    command: str = Field(description="command that reproduces the comparison")
    task: str = Field("text", description="text, images, labels or translation")
    data: DataConfig
    tokenizer: str
    seed: int
    threads: int = Field(description="threads per job")
    workers: int = Field(description="number of jobs that run in parallel")
    minutes: float | None = Field(description="time budget of the whole comparison")
    tokens: int | None = Field(description="training tokens per job, instead of a time budget")
    schedule: Schedule | None = Field(None, description="how the time is divided; none for a budget in tokens")
    overrides: list[str] = Field([], description="settings given by the user")
    listed: bool = Field(False, description="whether the user listed the families")
    jobs: list[Job]
    left_out: list[str] = Field([], description="families for which there is no time")

    def job(self, name: str) -> Job:
        """The job of this name."""
        return next(job for job in self.jobs if job.name == name)

    @property
    def budget(self) -> str:
        """The budget per family, for display."""
        threads = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        if self.schedule is None:
            return f"{self.tokens:,} training tokens each, on {threads}"
        each = f"{duration(self.schedule.training)} of training each"
        return f"{duration(60 * (self.minutes or 0))} in all, {each}, on {threads}, {self.workers} at a time"


def make_plan(
    entries: Mapping[str, Entry],
    *,
    task: ComparisonData,
    minutes: float | None,
    tokens: int | None,
    threads: int,
    chosen: Mapping[str, Mapping[str, Any]],
    cores: int | None = None,
    **settings: Any,
) -> ComparisonPlan:
    """Divide the time evenly among the families and choose the size of each; settings in `chosen` take precedence.

    `cores` are those of a cluster; by default those of this machine.
    """
    neural = sum(is_neural(entry.family) for entry in entries.values())
    workers = max(1, min(neural, (cores or os.cpu_count() or 1) // threads))
    training = None if minutes is None else expected_training(60 * minutes, neural, workers)
    return ComparisonPlan(
        minutes=minutes,
        tokens=tokens,
        threads=threads,
        workers=workers,
        task=task.task,
        schedule=None if training is None else Schedule(training=training),
        jobs=_jobs(
            entries,
            task,
            operations=None if training is None else training * operations_per_second(threads),
            tokens=tokens,
            chosen=chosen,
        ),
        **settings,
    )


def _jobs(
    entries: Mapping[str, Entry],
    task: ComparisonData,
    *,
    operations: float | None,
    tokens: int | None,
    chosen: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """A job per model, its size chosen for the budget and the data."""
    train_tokens = len(task.train)
    if isinstance(task, SequenceComparison):
        return make_jobs(
            list(entries),
            train_tokens=train_tokens,
            model_settings=task.model_settings,
            operations=operations,
            tokens=tokens,
            chosen=chosen,
        )
    assert isinstance(task, ExampleComparison)
    jobs = []
    for name, entry in entries.items():
        given = chosen.get(name, {})
        sizes = sizes_for_examples(
            entry.family,
            task.model_settings,
            train_tokens=task.train_tokens,
            operations=operations,
            tokens=tokens,
            model={**entry.model, **given.get("model", {})},
            train={**entry.train, **given.get("train", {})},
        )
        jobs.append(
            Job(
                name=name,
                family=entry.family,
                summary=entry.summary,
                taught=entry.taught,
                model=sizes.model,
                train=sizes.train,
            )
        )
    return jobs


def split_config(
    data: str,
    valid: str | None,
    test: str | None,
    test_fraction: float | None,
    settings: Mapping[str, Any],
    own_test: Callable[[DataConfig], str | None] = lambda config: None,
) -> DataConfig:
    """The data settings that define the training, validation and test splits; see `compare`.

    `own_test` returns the spec of the test split that comes with the data, if there is one.
    """
    _require_files(data, valid, test)
    # Validation text is cut from the start: the text just before the test text is most like it, so models train on it.
    values: dict[str, Any] = {"train": data, "valid_fraction": VALID_FRACTION, "valid_from": "start", **settings}
    if test is None and test_fraction is None:
        test = own_test(DataConfig.parse(values, where="data"))
    if test == OWN_SPLIT:
        values |= {} if valid is None else {"valid": valid}
    elif test is not None:
        values |= {"test": test, **({} if valid is None else {"valid": valid})}
    elif valid is not None:
        values["test"] = valid
    else:
        values["test_fraction"] = test_fraction or TEST_FRACTION
    return DataConfig.parse(values, where="data")


def data_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """The user's `--set data.…` values."""
    found = apply_overrides({}, overrides).get("data", {})
    return dict(found) if isinstance(found, dict) else {}


def comparable_task(data: str, settings: Mapping[str, Any], families: Sequence[str] | None) -> str:
    """The task of the data as far as they show it, or that of the families if these are made for another."""
    _require_files(data)
    known = [name for kind in COMPARISONS.values() for name in kind.families()]
    for name in families or ():  # before the data is looked at
        if name not in known:
            raise ConfigError(f"unknown family {name!r}; {nearest(name, known)}")
    found = recognise_task(DataConfig.parse({"train": data, **settings}, where="data"))
    wanted = set(families or ())
    if found not in COMPARISONS or not wanted <= set(COMPARISONS[found].families()):
        suitable = [name for name, kind in COMPARISONS.items() if wanted and wanted <= set(kind.families())]
        if suitable:
            return suitable[0]
        if found not in COMPARISONS:
            raise ConfigError(
                f"{data!r} is data of {found}, whose models cannot be compared; give text, images, labels or pairs, or "
                "read it as text with --task text"
            )
    return found


def _require_files(*specs: str | None) -> None:
    if "-" in specs:
        raise ConfigError(
            "a comparison reads its data in several processes, standard input only once; save it to a file"
        )


def chosen_settings(overrides: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The user's `--set` values by family, and for the data under "data"."""
    values = apply_overrides({}, overrides)
    for name, table in values.items():
        if name not in (*names, "data"):
            raise ConfigError(
                f"--set {name}.…: {nearest(name, (*names, 'data'))}; for example --set gpt.model.width=192"
            )
        if not isinstance(table, dict) or (name != "data" and not set(table) <= {"model", "train"}):
            raise ConfigError(f"--set {name}.… takes {name}.model.KEY=VALUE or {name}.train.KEY=VALUE")
    return values


def chosen_entries(
    requested: Sequence[str] | None, task: type[ComparisonData], encoders: Sequence[str] = ()
) -> dict[str, Entry]:
    """The models to compare, in the order of the registry. Raises ConfigError for a name that does not apply."""
    known = task.entries(encoders)
    for name in requested or ():
        if name not in known:
            raise ConfigError(f"unknown family {name!r}; {nearest(name, known)}")
    others = [name for name in known if name not in task.families()]
    wanted = [*(task.default_families() if requested is None else requested), *others]
    return {name: entry for name, entry in known.items() if name in wanted}


def is_neural(name: str) -> bool:
    """Whether a family is trained by gradients, so that a budget applies to it."""
    return issubclass(family(name), NeuralModel | ParallelModel)


def make_jobs(
    names: Iterable[str],
    *,
    model_settings: Callable[[str], Mapping[str, Any]],
    train_tokens: int,
    operations: float | None,
    tokens: int | None,
    chosen: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """A job per family, its size chosen for a budget of `operations` or of training `tokens`."""
    jobs = []
    for name in names:
        given = chosen.get(name, {})
        settings, training = dict(given.get("model", {})), dict(given.get("train", {}))
        known = model_settings(name)
        kind = family(name)
        if not issubclass(kind, NeuralModel):
            suggested = kind.suggested_settings(known["vocabulary"]) if issubclass(kind, CountModel) else {}
            jobs.append(Job(name=name, family=name, model={**suggested, **settings}, train=training))
            continue
        sizes = sizes_for(
            name,
            known,
            train_tokens=train_tokens,
            operations=operations,
            tokens=tokens,
            model=settings,
            train=training,
        )
        jobs.append(Job(name=name, family=name, model=sizes.model, train=sizes.train))
    return jobs


def counted_first(jobs: Iterable[Job]) -> list[str]:
    """Names with count-based families first: they finish within seconds, so a first result comes early."""
    return [job.name for job in sorted(jobs, key=lambda job: is_neural(job.family))]
