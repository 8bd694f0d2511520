"""Labelled examples, a text with a label, tags or an answer span: how they are split and encoded.

They are read into memory as a whole, since hand-labelled data is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from chainrule.config import DataConfig
from chainrule.data.corpus import Corpus, shared_origins
from chainrule.data.parallel import PairedCorpus
from chainrule.data.splits import TRAINING, fractions_of, hold_out
from chainrule.data.text import find_files
from chainrule.errors import DataError, nearest
from chainrule.tokenizers import Tokenizer

Example = TypeVar("Example")
Row = Sequence[int] | npt.NDArray[np.int32]


class PreparedExamples(NamedTuple):
    """The encoded splits: sources are texts, targets are labels, tags or spans."""

    tokenizer: Tokenizer  # of the sources
    labels: tuple[str, ...]  # names of the target ids
    train: PairedCorpus
    held_out: dict[str, PairedCorpus]  # "validation", and "test" if there is one
    names: dict[str, str]  # of the held-out data in reports
    warnings: tuple[str, ...]


class ExampleSplits(NamedTuple, Generic[Example]):
    """Examples by split."""

    examples: dict[str, list[Example]]  # "training", "validation", and "test" if there is one
    names: dict[str, str]  # of the held-out data in reports
    warnings: tuple[str, ...]  # one line each


def split_examples(config: DataConfig, read: Callable[[str], list[Example]]) -> ExampleSplits[Example]:
    """Read the examples of each split.

    Validation and test data are read from the specs of the settings, else taken from the training data as for a text.
    """
    examples = {TRAINING: read(config.train)}
    warnings: list[str] = []
    for split, spec in (("validation", config.valid), ("test", config.test)):
        if spec is not None:
            examples[split] = read(spec)
            warnings += shared_origins(origins(config.train), origins(spec), split)
    if fractions := fractions_of(config, examples):
        everything = examples[TRAINING]
        parts = hold_out(len(everything), fractions, config.valid_from, what="examples", spec=config.train)
        examples |= {split: list(part.choose(everything)) for split, part in parts.items()}
    held_out = [split for split in examples if split != TRAINING]
    return ExampleSplits(examples, {split: config.named(split) for split in held_out}, tuple(warnings))


def origins(spec: str) -> frozenset[str]:
    """Return the files of a spec, to detect overlap of two specs."""
    return frozenset(str(path.resolve()) for path in find_files(spec)[0])


def label_ids(labels: Sequence[str]) -> dict[str, int]:
    return {label: number for number, label in enumerate(labels)}


def unknown_label(where: str, label: str, known: Sequence[str], what: str = "label") -> DataError:
    """Return the error for a label that the training data does not contain."""
    return DataError(f"{where} has the {what} {label!r}, not found in the training data; {nearest(label, known)}")


def in_order(labels: set[str]) -> tuple[str, ...]:
    """Sort labels, by value if all are numbers."""
    if all(label.isdecimal() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def paired(sources: Sequence[Row], targets: Sequence[Row], source_vocabulary: int, vocabulary: int) -> PairedCorpus:
    """Combine encoded texts and encoded targets."""
    return PairedCorpus(Corpus.of_rows(sources, source_vocabulary), Corpus.of_rows(targets, vocabulary, closed=False))


def shortened(pairs: PairedCorpus, limit: int) -> tuple[PairedCorpus, int]:
    """Truncate sources to at most `limit` tokens; also return how many were truncated."""
    rows = [np.asarray(row) for row in pairs.source.documents()]
    long = sum(len(row) > limit for row in rows)
    if not long:
        return pairs, 0
    vocabulary = int(max(int(row.max()) for row in rows)) + 1
    return PairedCorpus(Corpus.of_rows([row[:limit] for row in rows], vocabulary), pairs.target), long
