"""A run that can be used: how likely is this, what comes next, can it be trusted?

`load` opens one as what it is: `TextRun` writes, `TranslationRun` translates, `ImageRun` draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import overload

import torch

from chainrule.config import DataConfig, RunConfig
from chainrule.errors import ConfigError, nearest
from chainrule.families import build
from chainrule.interface.base import Model
from chainrule.runs.base import Run, RunT, SequenceRun, Splits, TokenRun, parameters, require
from chainrule.runs.embeddings import EmbeddingRun
from chainrule.runs.filling import Filled, FillingRun
from chainrule.runs.images import ImageRun
from chainrule.runs.labels import LabelRun, Prediction
from chainrule.runs.predicting import PredictingRun, Said
from chainrule.runs.reading import Answered, ReadingRun
from chainrule.runs.tags import TagRun, Tags
from chainrule.runs.text import Text, TextRun
from chainrule.runs.translation import TranslationRun
from chainrule.runs.words import WordRun
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome

__all__ = [
    "Answered",
    "EmbeddingRun",
    "Filled",
    "FillingRun",
    "ImageRun",
    "LabelRun",
    "PredictingRun",
    "Prediction",
    "ReadingRun",
    "Run",
    "SequenceRun",
    "Splits",
    "Said",
    "TagRun",
    "Tags",
    "Text",
    "TextRun",
    "TokenRun",
    "TranslationRun",
    "WordRun",
    "adopt",
    "choose_device",
    "load",
    "parameters",
    "require",
    "run_of",
]


@overload
def load(path: str | Path, *, device: str = "auto", checkpoint: str = "best") -> Run: ...


@overload
def load(path: str | Path, kind: type[RunT], *, device: str = "auto", checkpoint: str = "best") -> RunT: ...


def load(path: str | Path, kind: type[Run] = Run, *, device: str = "auto", checkpoint: str = "best") -> Run:
    """Open a run, which must be of a `kind` where one is given."""
    folder = RunFolder(Path(path))
    config = folder.config()
    model = build(config.family, config.model)
    folder.read_weights(model, checkpoint)
    return require(run_of(folder, config, model.to(choose_device(device))), kind)


KINDS: dict[str, type[Run]] = {
    "language": TextRun,
    "translation": TranslationRun,
    "embedding": EmbeddingRun,
    "words": WordRun,
    "filling": FillingRun,
    "classification": LabelRun,
    "tagging": TagRun,
    "reading": ReadingRun,
}
"""By the task of the model."""


def run_of(folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None = None) -> Run:
    """A model with its folder as a run of its kind."""
    kind = KINDS[model.task] if config.data.image is None else ImageRun  # a gpt of pixels writes no text
    return kind.of(folder, config, model.eval(), outcome)


def adopt(path: str | Path, form: str, out: str | Path) -> Run:
    """Make a run of a model that another tool has trained.

    `hf` is a GPT-2 or BERT folder, `arpa` an n-gram file, `word2vec` a file of word vectors.
    """
    from chainrule.interop.exchange import import_arpa, import_huggingface, import_word2vec

    readers = {"hf": import_huggingface, "arpa": import_arpa, "word2vec": import_word2vec}
    if form not in readers:
        raise ConfigError(f"unknown form {form!r}; {nearest(form, readers)}")
    name, model, tokenizer = readers[form](Path(path))
    folder = RunFolder(Path(out))
    folder.require_free()
    settings = model.config.model_dump(mode="json", exclude_none=True)
    data = DataConfig(train=f"imported from {path}", unit="stream")
    config = RunConfig(family=name, tokenizer=tokenizer.kind, data=data, model=settings)
    folder.create(config, tokenizer)
    folder.write_weights(model)
    run = run_of(folder, config, model)
    folder.write_card(run.card())
    return run


def choose_device(name: str) -> torch.device:
    """`auto` is the fastest that is there: cuda, then mps, then cpu."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device {name!r} cannot be used here; choose auto, cpu, cuda or mps") from None
    return device
