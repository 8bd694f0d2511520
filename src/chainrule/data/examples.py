"""Examples: a text and what is to be said of it, a label, tags or a span; how they are split and encoded.

Unlike a stream of text they are read whole: what a person has labelled fits into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from chainrule.config import DataConfig
from chainrule.data.corpus import Corpus, shared_origins
from chainrule.data.parallel import PairedCorpus
from chainrule.data.text import find_files
from chainrule.errors import DataError, nearest
from chainrule.tokenizers import Tokenizer

Example = TypeVar("Example")
Row = Sequence[int] | npt.NDArray[np.int32]


class PreparedExamples(NamedTuple):
    """All that training reads, encoded: the sources are texts, the targets what is said of them."""

    tokenizer: Tokenizer  # of the texts
    labels: tuple[str, ...]  # what the ids of targets stand for
    train: PairedCorpus
    held_out: dict[str, PairedCorpus]  # "validation", and "test" where there is one
    names: dict[str, str]  # what a reader should know those by
    warnings: tuple[str, ...]


class ExampleSplits(NamedTuple, Generic[Example]):
    """Examples by what they are for."""

    examples: dict[str, list[Example]]  # "training", "validation", and "test" where there is one
    names: dict[str, str]  # what a reader should know the last two by
    warnings: tuple[str, ...]  # what the user should know, one line each


def split_examples(config: DataConfig, read: Callable[[str], list[Example]]) -> ExampleSplits[Example]:
    """The examples of each split.

    Validation and test data are those that the settings name, else they are cut from the training data as a text would
    be: test data from its end, validation data before it, or from the start.
    """
    examples = {"training": read(config.train)}
    warnings: list[str] = []
    for split, spec in (("validation", config.valid), ("test", config.test)):
        if spec is not None:
            examples[split] = read(spec)
            warnings += shared_origins(origins(config.train), origins(spec), split)
    for split, share in (("test", config.test_fraction), ("validation", config.valid_fraction)):
        if split not in examples and share is not None:
            cut = max(1, round(share * len(examples["training"])))
            left, taken = _cut(examples["training"], cut, at_start=split == "validation" and config.valid_at == "start")
            if not left:
                raise DataError(f"{config.train!r} has too few examples to keep some for validation; name --valid")
            examples["training"], examples[split] = left, taken
    held_out = [split for split in examples if split != "training"]
    return ExampleSplits(examples, {split: config.named(split) for split in held_out}, tuple(warnings))


def _cut(examples: list[Example], count: int, *, at_start: bool) -> tuple[list[Example], list[Example]]:
    """What stays, and what is cut off."""
    if at_start:
        return examples[count:], examples[:count]
    return examples[:-count], examples[-count:]


def origins(spec: str) -> frozenset[str]:
    """The files that a spec names, by which two can be seen to overlap."""
    return frozenset(str(path.resolve()) for path in find_files(spec)[0])


def label_ids(labels: Sequence[str]) -> dict[str, int]:
    return {label: number for number, label in enumerate(labels)}


def unknown_label(where: str, label: str, known: Sequence[str], what: str = "label") -> DataError:
    """For data that says something which the training data never says."""
    return DataError(f"{where} has the {what} {label!r}, which the training data lacks; {nearest(label, known)}")


def in_order(labels: set[str]) -> tuple[str, ...]:
    """Numbers by their value, everything else by its characters."""
    if all(label.isdecimal() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def paired(sources: Sequence[Row], targets: Sequence[Row], source_vocabulary: int, vocabulary: int) -> PairedCorpus:
    """Encoded texts with what is said of each."""
    return PairedCorpus(Corpus.of_rows(sources, source_vocabulary), Corpus.of_rows(targets, vocabulary, closed=False))


def shortened(pairs: PairedCorpus, limit: int) -> tuple[PairedCorpus, int]:
    """The same with no source longer than the limit: its end is cut off. And how many were cut."""
    rows = [np.asarray(row) for row in pairs.source.documents()]
    long = sum(len(row) > limit for row in rows)
    if not long:
        return pairs, 0
    vocabulary = int(max(int(row.max()) for row in rows)) + 1
    return PairedCorpus(Corpus.of_rows([row[:limit] for row in rows], vocabulary), pairs.target), long
