"""Pairs of texts with labels, from tables, JSON lines and questions in the format of SQuAD.

- tables: two texts and their labels, in the first three columns, or in columns with names in common use. Several labels
  are separated by "|"; an empty cell is no label.
- JSON lines with fields for both texts, and `label`, or `labels` with a list.
- SQuAD: a question and each of its passages, with the label `answer` or `no answer`; see `data.squad`.

Every error names the file and the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainrule.config import DataConfig
from chainrule.data.cleaning import sentence
from chainrule.data.compression import open_bytes
from chainrule.data.examples import PreparedExamples, in_order, paired, split_examples, unknown_label
from chainrule.data.parallel import PairedCorpus
from chainrule.data.records import JSON_LINES, as_text, field_names, missing_field, read_records
from chainrule.data.source import normalisation_of
from chainrule.data.squad import PassageCutter, encode_questions, prepare_squad, read_squad
from chainrule.data.tables import LABEL_NAMES, first_known, names_of
from chainrule.data.text import find_files, form_of, table_rows
from chainrule.errors import DataError
from chainrule.tokenizers import Tokenizer, train_tokenizer

FIRST_NAMES = ("question", "query", "premise", "sentence1", "text1", "text_a", "first")
SECOND_NAMES = ("passage", "context", "answer", "hypothesis", "sentence2", "text2", "text_b", "second")
SET_NAMES = ("labels", *LABEL_NAMES)
LABEL_SEPARATOR = "|"
ANSWERED, UNANSWERED = "answer", "no answer"


class LabelledPair(NamedTuple):
    """Two texts and their labels."""

    first: str
    second: str
    labels: tuple[str, ...]
    where: str  # line and file


def is_squad(spec: str) -> bool:
    """Whether a spec is one JSON document with the questions of SQuAD."""
    path = find_files(spec)[0][0]
    if form_of(path) != ".json":
        return False
    with open_bytes(path) as file:
        try:
            return "data" in json.loads(file.read())
        except (ValueError, TypeError, RecursionError):
            return False


def read_labelled_pairs(spec: str, config: DataConfig) -> list[LabelledPair]:
    """Read every example of a file, a folder or a glob."""
    found: list[LabelledPair] = []
    for path in find_files(spec)[0]:
        found += (_read_records if form_of(path) in JSON_LINES else _read_table)(path, config)
    if not found:
        raise DataError(f"{spec!r} contains no examples; give a file with two texts and their label on every line")
    return found


def _read_table(path: Path, config: DataConfig) -> Iterator[LabelledPair]:
    columns: tuple[int, ...] | None = None
    normalise = normalisation_of(config)
    for number, cells in table_rows(path):
        where = f"line {number:,} of {str(path)!r}"
        if columns is None:
            known = [first_known(names_of(cells), names) for names in (FIRST_NAMES, SECOND_NAMES, SET_NAMES)]
            columns = (0, 1, 2)
            if None not in known:
                columns = tuple(column for column in known if column is not None)
                continue
        if max(columns[:2]) >= len(cells):
            raise DataError(f"{where} has {len(cells)} columns; give two texts and their label, separated by tabs")
        labels = cells[columns[2]] if columns[2] < len(cells) else ""
        yield LabelledPair(
            sentence(cells[columns[0]], normalise),
            sentence(cells[columns[1]], normalise),
            tuple(label.strip() for label in labels.split(LABEL_SEPARATOR) if label.strip()),
            where,
        )


def _read_records(path: Path, config: DataConfig) -> Iterator[LabelledPair]:
    normalise = normalisation_of(config)
    for where, record in read_records(path):
        texts = [_text_of(record, names, where) for names in (FIRST_NAMES, SECOND_NAMES)]
        name = next((name for name in SET_NAMES if name in record), None)
        if name is None:
            raise missing_field(where, "label", field_names(record), setting=None)
        first, second = (sentence(text, normalise) for text in texts)
        yield LabelledPair(first, second, _labels(record[name], where, name), where)


def _text_of(record: dict[str, Any], names: Sequence[str], where: str) -> str:
    name = next((name for name in names if name in record), None)
    if name is None:
        raise DataError(
            f"{where} has the fields {', '.join(sorted(record)) or 'none'} and none of {', '.join(names)}; rename one"
        )
    return as_text(record[name], where, name, setting=None)


def _labels(value: Any, where: str, field: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    for one in values:
        if not isinstance(one, bool | int | str) or not str(one).strip():
            raise DataError(f"{where} has {value!r:.40} in field {field!r}; give a label, or a list of labels")
    return tuple(str(one).lower() if isinstance(one, bool) else str(one).strip() for one in values)


# Encoding


def prepare_labelled_pairs(
    config: DataConfig, tokenizer_spec: str, *, tokenizer: Tokenizer | None, labels: Sequence[str], seed: int
) -> PreparedExamples:
    """Read and encode all splits; labels and tokenizer come from the training data unless they are given."""
    if is_squad(config.train):
        found = prepare_squad(config, tokenizer_spec, tokenizer=tokenizer, seed=seed)
        held_out = {split: _answerable(pairs) for split, pairs in found.held_out.items()}
        both = (ANSWERED, UNANSWERED)
        return PreparedExamples(found.tokenizer, both, _answerable(found.train), held_out, found.names, found.warnings)
    examples, names, warnings = split_examples(config, lambda spec: read_labelled_pairs(spec, config))
    train = examples["training"]
    if not labels:
        labels = in_order({label for one in train for label in one.labels})
        if not labels or (len(labels) == 1 and all(one.labels for one in train)):
            raise DataError(
                f"all {len(train):,} training examples have the same labels ({', '.join(labels) or 'none'}), so there "
                "is nothing to learn; give two texts and their label in three columns"
            )
    if tokenizer is None:
        tokenizer = train_tokenizer(tokenizer_spec, lambda: (text for one in train for text in one[:2]))
    encoded = {split: encode_pairs(found, tokenizer, labels) for split, found in examples.items()}
    return PreparedExamples(tokenizer, tuple(labels), encoded.pop("training"), encoded, names, warnings)


def encode_data(spec: str, config: DataConfig, tokenizer: Tokenizer, labels: Sequence[str]) -> PairedCorpus:
    """Other data, in the vocabularies of a run."""
    if is_squad(spec):
        cutter = PassageCutter(tokenizer, length=config.passage_length, stride=config.passage_stride)
        return _answerable(encode_questions(read_squad(spec), cutter, negatives=config.negatives, seed=0))
    return encode_pairs(read_labelled_pairs(spec, config), tokenizer, labels)


def encode_pairs(examples: Sequence[LabelledPair], tokenizer: Tokenizer, labels: Sequence[str]) -> PairedCorpus:
    """Pairs as sources, and a yes (1) or no (0) for each label as targets."""
    for one in examples:
        for label in one.labels:
            if label not in labels:
                raise unknown_label(one.where, label, labels)
    sources = [encode_pair(one.first, one.second, tokenizer) for one in examples]
    return paired(
        sources, [[int(label in one.labels) for label in labels] for one in examples], tokenizer.vocabulary, 2
    )


def encode_pair(first: str, second: str, tokenizer: Tokenizer) -> list[int]:
    """The first text, EOS as the separator, the second text."""
    return [*tokenizer.encode(first).tolist(), tokenizer.eos, *tokenizer.encode(second).tolist()]


def _answerable(pairs: PairedCorpus) -> PairedCorpus:
    """Passages with the position of their answer as passages with the labels `answer` and `no answer`."""
    starts = np.asarray(pairs.target.tokens).reshape(-1, 2)[:, 0]
    rows = [[int(start > 0), int(start == 0)] for start in starts.tolist()]
    vocabulary = int(np.asarray(pairs.source.tokens).max()) + 1
    return paired([row.tolist() for row in pairs.source.documents()], rows, vocabulary, 2)
