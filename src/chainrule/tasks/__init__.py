"""Tasks: what models are for. One file each, and one registry.

`load` opens a run as what it is: a `TextRun` generates, a `TranslationRun` translates, an `ImageRun` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, overload

from chainrule.config import DataConfig, RunConfig
from chainrule.errors import ConfigError, nearest
from chainrule.families import Registry, build, family
from chainrule.features import use_tokenizer
from chainrule.interface.base import Model
from chainrule.tasks.base import Run, RunT, Task, choose_device, parameters, require
from chainrule.tasks.comparing import ComparisonData
from chainrule.tasks.training_data import TrainingData
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Reporter

__all__ = [
    "COMPARISONS",
    "TASKS",
    "Run",
    "Task",
    "TrainingData",
    "import_run",
    "load",
    "open_data",
    "parameters",
    "require",
    "run_of",
    "run_type",
    "task_of_data",
    "task_of_family",
]

TASKS: Registry[Task] = Registry(
    {
        "text": "tasks.text:TextTask",
        "translation": "tasks.translation:TranslationTask",
        "images": "tasks.images:ImagesTask",
        "image_labels": "tasks.image_labels:ImageLabelsTask",
        "labels": "tasks.labels:LabelsTask",
        "pair_labels": "tasks.pair_labels:PairLabelsTask",
        "tags": "tasks.tags:TagsTask",
        "answers": "tasks.answers:AnswersTask",
        "embeddings": "tasks.embeddings:EmbeddingsTask",
        "word_vectors": "tasks.word_vectors:WordVectorsTask",
        "filling": "tasks.filling:FillingTask",
    }
)
"""By the `task` of a family."""
COMPARISONS: Registry[ComparisonData] = Registry(
    {
        "text": "tasks.text_comparison:TextComparison",
        "images": "tasks.images:ImageComparison",
        "labels": "tasks.label_comparison:LabelComparison",
        "translation": "tasks.pair_comparison:PairComparison",
    }
)
"""How the models of a task are compared, by the task that the data shows."""
CLAIMING = ("images", "image_labels")
"""Tasks that claim data of their own for the families of other tasks; those are not imported without need."""


def task_of_family(name: str) -> type[Task]:
    """The task that a family was made for."""
    return TASKS[family(name).task]


def task_of_data(data: str, default: str) -> type[Task]:
    """The task that a data spec belongs to, whatever the family; else the default."""
    return _claiming(default, lambda task: task.recognises(data))


def open_data(config: RunConfig, reporter: Reporter, *, stored: RunFolder | None = None) -> TrainingData[Any, Any]:
    """Read and encode the data of a run; with `stored`, in the vocabularies of that run."""
    return task_of_data(config.data.train, family(config.family).task).open(config, reporter, stored)


def run_of(folder: RunFolder, config: RunConfig, model: Model) -> Run:
    """A model with its folder as a run of its task."""
    return run_type(config).of(folder, config, model.eval())


def run_type(config: RunConfig) -> type[Run]:
    """The kind of run that the settings of a trained model make; needs no weights."""
    task = _claiming(_task_of(config.family, config.model), lambda one: one.stored(config.data))
    return task.run_for(config.data)


def _task_of(name: str, settings: Mapping[str, Any]) -> str:
    """The task of a model by its settings; a mixture is for what its parts are for."""
    for part in settings.get("parts", ()):
        return _task_of(part["family"], part)
    return family(name).task


def _claiming(default: str, claims: Callable[[type[Task]], bool]) -> type[Task]:
    """The default task if it claims the data; else the first that does; else the default."""
    first = TASKS[default]
    return first if claims(first) else next((TASKS[name] for name in CLAIMING if claims(TASKS[name])), first)


@overload
def load(path: str | Path, *, device: str = "auto", checkpoint: str = "best") -> Run: ...


@overload
def load(path: str | Path, kind: type[RunT], *, device: str = "auto", checkpoint: str = "best") -> RunT: ...


def load(path: str | Path, kind: type[Run] = Run, *, device: str = "auto", checkpoint: str = "best") -> Run:
    """Open a run, which must be of a `kind` if one is given."""
    folder = RunFolder(Path(path))
    config = folder.config()
    model = build(config.family, config.model)
    folder.read_weights(model, checkpoint)
    use_tokenizer(model, folder.input_tokenizer)
    return require(run_of(folder, config, model.to(choose_device(device))), kind)


def import_run(path: str | Path, form: str, out: str | Path) -> Run:
    """Make a run of a model that another tool has trained.

    `hf` is a GPT-2 or BERT folder, `arpa` an n-gram file, `word2vec` a file of word vectors.
    """
    from chainrule.interop.exchange import exported_file, import_arpa, import_huggingface, import_word2vec

    readers = {"hf": import_huggingface, "arpa": import_arpa, "word2vec": import_word2vec}
    if form not in readers:
        raise ConfigError(f"unknown form {form!r}; {nearest(form, readers)}")
    name, model, tokenizer = readers[form](exported_file(Path(path), form))
    folder = RunFolder(Path(out))
    folder.require_free()
    settings = model.config.model_dump(mode="json", exclude_none=True)
    data = DataConfig(train=f"imported from {path}", unit="stream")
    config = RunConfig(family=name, tokenizer=tokenizer.kind, data=data, model=settings)
    with folder.kept_if_trained():
        folder.create(config, tokenizer)
        folder.write_weights(model)
    run = run_of(folder, config, model)
    folder.write_card(run.card())
    run.describe()
    return run
