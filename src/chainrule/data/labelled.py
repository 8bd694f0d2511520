"""Texts with one label each, from tables and JSON lines.

- tables: `data.source_field` and `data.target_field` choose the columns of text and label. Without them, they are
  recognised by the names in a header, else by their content: `recognise` in `data.tables`.
- JSON lines with a field for the text and one for the label.

Every error names the file and the line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chainrule.config import DataConfig
from chainrule.data.cleaning import sentence
from chainrule.data.examples import PreparedExamples, in_order, label_ids, paired, split_examples, unknown_label
from chainrule.data.parallel import PairedCorpus
from chainrule.data.records import JSON_LINES, as_text, field_names, missing_field, read_records, value_at
from chainrule.data.source import normalisation_of
from chainrule.data.splits import TRAINING
from chainrule.data.tables import (
    LABEL_NAMES,
    TEXT_NAMES,
    Columns,
    first_known,
    is_header,
    names_of,
    recognise,
    repeated_columns,
)
from chainrule.data.text import find_files, form_of, table_rows
from chainrule.errors import DataError
from chainrule.tokenizers import Tokenizer, train_tokenizer

EXPECTED = 5  # validation examples of a label on average from which on it is not missing by accident
FEW_EXAMPLES = 20  # of which nothing is said about the number of labels


class Labelled(NamedTuple):
    """A text and its label."""

    text: str
    label: str
    where: str  # line and file


class ChosenColumns(NamedTuple):
    """The data settings with the columns that were recognised by their content, and a note that says so."""

    config: DataConfig
    notes: tuple[str, ...]


def choose_columns(config: DataConfig) -> ChosenColumns:
    """Recognise the columns of a training table without a known header, so that all splits are read alike."""
    path = find_files(config.train)[0][0]
    if form_of(path) in JSON_LINES or (config.source_field and config.target_field):
        return ChosenColumns(config, ())
    rows = [row.cells for row in table_rows(path)]
    found = None if not rows or is_header(rows[0]) else recognise(rows)
    if found is None or (config.source_field or config.target_field):
        return ChosenColumns(config, ())
    if (found.text, found.label, found.header) == (0, 1, False):
        return ChosenColumns(config, ())
    names = rows[0] if found.header else [str(index + 1) for index in range(len(rows[0]))]
    source, target = names[found.text].strip(), names[found.label].strip()
    what = "a header with unusual names" if found.header else "no header"
    note = (
        f"{str(path)!r} has {what}: column {source!r} is read as the text and column {target!r} as the label; "
        "data.source_field and data.target_field choose others"
    )
    return ChosenColumns(config.model_copy(update={"source_field": source, "target_field": target}), (note,))


def read_labelled(spec: str, config: DataConfig) -> list[Labelled]:
    """Read every example of a file, a folder or a glob."""
    found: list[Labelled] = []
    for path in find_files(spec)[0]:
        read = _read_records if form_of(path) in JSON_LINES else _read_table
        found += read(path, config)
    if not found:
        raise DataError(f"{spec!r} contains no examples; give a file with a text and its label on every line")
    return found


def _read_table(path: Path, config: DataConfig) -> Iterator[Labelled]:
    columns: Columns | None = None
    normalise = normalisation_of(config)
    for number, cells in table_rows(path):
        where = f"line {number:,} of {str(path)!r}"
        if columns is None:
            columns = _columns(cells, where, config)
            if columns.header:
                continue
        text, label, _ = columns
        if label >= len(cells) or not cells[label].strip():
            raise DataError(f"{where} has no label in column {label + 1}; label it, or remove the line")
        if text >= len(cells):
            raise DataError(f"{where} has {len(cells)} columns and no text in column {text + 1}; fix the line")
        yield Labelled(sentence(cells[text], normalise), cells[label].strip(), where)


def _columns(first: Sequence[str], where: str, config: DataConfig) -> Columns:
    """Find text and label in the first row: by the settings, by names in common use, else the first and the second."""
    names = [cell.strip() for cell in first]
    wanted = {"source": config.source_field, "target": config.target_field}
    named = {side: name for side, name in wanted.items() if name is not None and not name.isdecimal()}
    header = bool(named) or is_header(first)
    for side, name in named.items():
        if name not in names:
            raise missing_field(where, name, names, setting=f"data.{side}_field")
    found = []
    for side, usual, otherwise in (("source", TEXT_NAMES, 0), ("target", LABEL_NAMES, 1)):
        given = wanted[side]
        if given is None:
            known = first_known(names_of(first), usual) if header else None
            found.append(otherwise if known is None else known)
        else:
            found.append(names.index(given) if side in named else int(given) - 1)
    if max(found) >= len(first) or min(found) < 0:
        raise DataError(
            f"{where} has {len(first)} columns and no column {max(found) + 1}; a text and its label are separated by a "
            "tab (by a comma in a .csv), or name columns with data.source_field and data.target_field"
        )
    if found[0] == found[1]:
        raise DataError(f"{where}: column {found[0] + 1} is both text and label; set data.source_field")
    return Columns(found[0], found[1], header)


def _read_records(path: Path, config: DataConfig) -> Iterator[Labelled]:
    normalise = normalisation_of(config)
    for where, record in read_records(path):
        names = list(field_names(record))
        field = config.source_field or next((name for name in TEXT_NAMES if name in names), TEXT_NAMES[0])
        label_field = config.target_field or next((name for name in LABEL_NAMES if name in names), LABEL_NAMES[0])
        text = as_text(
            value_at(record, field, where, setting="data.source_field"), where, field, setting="data.source_field"
        )
        label = value_at(record, label_field, where, setting="data.target_field")
        yield Labelled(sentence(text, normalise), _label(label, where, label_field), where)


def _label(value: Any, where: str, field: str) -> str:
    """Return a label, which may be a string, an integer or a boolean."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str) and str(value).strip():
        return str(value).strip()
    raise DataError(f"{where} has {value!r:.40} in field {field!r}, which is not a label; label it, or remove the line")


def prepare_labelled(
    config: DataConfig, tokenizer_spec: str, *, tokenizer: Tokenizer | None = None, labels: Sequence[str] = ()
) -> PreparedExamples:
    """Read and encode all splits; labels and tokenizer come from the training data unless they are given."""
    examples, names, warnings = split_examples(config, lambda spec: read_labelled(spec, config))
    train = examples["training"]
    if not labels:
        labels = in_order({one.label for one in train})
        _require_labels(labels, train, config)
        warnings += _sorted_labels(examples, config)
    if tokenizer is None:
        tokenizer = train_tokenizer(tokenizer_spec, lambda: (one.text for one in train))
    encoded = {split: encode_labelled(found, tokenizer, labels) for split, found in examples.items()}
    return PreparedExamples(tokenizer, tuple(labels), encoded.pop("training"), encoded, names, warnings)


def _require_labels(labels: Sequence[str], train: Sequence[Labelled], config: DataConfig) -> None:
    """Refuse labels from which nothing can be learned: a single one, or one for nearly every example."""
    if len(labels) < 2:
        raise DataError(
            f"all {len(train):,} training examples have the label {labels[0]!r}, so there is nothing to learn; "
            f"{_other_columns(config)}"
        )
    if len(train) >= FEW_EXAMPLES and 2 * len(labels) > len(train):
        raise DataError(
            f"nearly every example has a label of its own ({len(labels):,} labels of {len(train):,} training examples, "
            f"such as {train[0].label!r:.40}), so this is not the column of the labels; {_other_columns(config)}"
        )


def _sorted_labels(examples: Mapping[str, Sequence[Labelled]], config: DataConfig) -> tuple[str, ...]:
    """Refuse validation examples of sorted training data if their labels are unknown; warn if labels are missing."""
    if config.valid is not None or config.valid_from == "spread":
        return ()
    train, valid = (Counter(one.label for one in examples[split]) for split in (TRAINING, "validation"))
    remedy = "if the examples are sorted, --set data.valid_from=spread takes validation data evenly from all of them"
    for one in examples["validation"]:
        if one.label not in train:
            raise DataError(f"{one.where} has the label {one.label!r}, not found in the training data; {remedy}")
    expected = valid.total() / train.total()
    missing = [label for label, count in train.items() if count * expected >= EXPECTED and label not in valid]
    if not missing:
        return ()
    return (f"the validation data, {config.named('validation')}, has no example of {missing[0]!r}; {remedy}",)


def _other_columns(config: DataConfig) -> str:
    """Return the remedy for a wrong column of labels: those that repeat a few values."""
    path = find_files(config.train)[0][0]
    remedy = "choose it with data.target_field"
    if form_of(path) in JSON_LINES:
        return remedy
    found = repeated_columns([row.cells for row in table_rows(path)])
    if not found:
        return remedy
    listed = ", ".join(f"column {index + 1} has {count:,} different values" for index, count in found)
    return f"{remedy}, for example data.target_field={found[0][0] + 1} ({listed})"


def encode_labelled(examples: Sequence[Labelled], tokenizer: Tokenizer, labels: Sequence[str]) -> PairedCorpus:
    """Encode texts as sources and labels as targets of one token."""
    ids = label_ids(labels)
    unknown = [one for one in examples if one.label not in ids]
    if len(unknown) >= FEW_EXAMPLES and 2 * len({one.label for one in unknown}) > len(examples):
        first = unknown[0]
        raise DataError(
            f"nearly every example has a label of its own, such as {first.label!r:.40} at {first.where}, and the model "
            f"has {len(labels):,} labels ({', '.join(labels):.60}); give data with the columns of the training data"
        )
    if unknown:
        raise unknown_label(unknown[0].where, unknown[0].label, labels)
    sources = [encode_text(one.text, tokenizer) for one in examples]
    return paired(sources, [[ids[one.label]] for one in examples], tokenizer.vocabulary, len(labels))


def encode_text(text: str, tokenizer: Tokenizer) -> list[int]:
    """Encode a text with EOS at its end, so that even an empty text has a token."""
    return [*tokenizer.encode(text).tolist(), tokenizer.eos]
