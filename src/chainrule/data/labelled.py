"""Texts with one label each, from tables and JSON lines.

- tables: columns separated by tabs, or by commas in a .csv, where quoted cells may contain commas and line ends. The
  first line is a header if it contains the name of a label column, or if the settings give column names.
- JSON lines with a field for the text and one for the label.

Every error names the file and the line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chainrule.config import DataConfig
from chainrule.data.cleaning import sentence
from chainrule.data.examples import PreparedExamples, in_order, label_ids, paired, split_examples, unknown_label
from chainrule.data.parallel import PairedCorpus
from chainrule.data.records import JSON_LINES, as_text, missing_field, read_records
from chainrule.data.source import normalisation_of
from chainrule.data.text import find_files, form_of, read_every_line
from chainrule.errors import DataError
from chainrule.tokenizers import Tokenizer, train_tokenizer

TEXT_NAMES = ("text", "sentence")
LABEL_NAMES = ("label", "class", "category")


class Labelled(NamedTuple):
    """A text and its label."""

    text: str
    label: str
    where: str  # line and file


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
    rows = _comma_rows(path) if form_of(path) == ".csv" else _tab_rows(path)
    columns: tuple[int, int] | None = None
    normalise = normalisation_of(config)
    for number, cells in rows:
        where = f"line {number:,} of {str(path)!r}"
        if not any(cell.strip() for cell in cells):
            continue
        if columns is None:
            columns, is_header = _columns(cells, where, config)
            if is_header:
                continue
        text, label = columns
        if label >= len(cells) or not cells[label].strip():
            raise DataError(f"{where} has no label in column {label + 1}; label it, or remove the line")
        if text >= len(cells):
            raise DataError(f"{where} has {len(cells)} columns and no text in column {text + 1}; fix the line")
        yield Labelled(sentence(cells[text], normalise), cells[label].strip(), where)


def _tab_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(read_every_line(path), start=1):
        yield number, line.removesuffix("\r").split("\t")


def _comma_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the number of their last line; a quoted cell may span several lines."""
    reader = csv.reader((line + "\n" for line in read_every_line(path)), strict=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"line {reader.line_num:,} of {str(path)!r} is not CSV: {error}; fix its quotes") from None
        if cells is None:
            return
        yield reader.line_num, cells


def _columns(first: Sequence[str], where: str, config: DataConfig) -> tuple[tuple[int, int], bool]:
    """Return the columns of text and label, and whether this first row is a header."""
    names = [cell.strip() for cell in first]
    lowered = [name.lower() for name in names]
    wanted = {"source": config.source_field, "target": config.target_field}
    named = {side: name for side, name in wanted.items() if name is not None and not name.isdecimal()}
    is_header = bool(named) or any(name in LABEL_NAMES for name in lowered)
    for side, name in named.items():
        if name not in names:
            raise missing_field(where, name, names, setting=f"data.{side}_field")
    found = []
    for side, defaults, otherwise in (("source", TEXT_NAMES, 0), ("target", LABEL_NAMES, 1)):
        given = wanted[side]
        if given is None:
            known = [lowered.index(one) for one in defaults if one in lowered] if is_header else []
            found.append(known[0] if known else otherwise)
        else:
            found.append(names.index(given) if side in named else int(given) - 1)
    if max(found) >= len(first) or min(found) < 0:
        raise DataError(
            f"{where} has {len(first)} columns and no column {max(found) + 1}; a text and its label are separated by a "
            "tab (by a comma in a .csv), or name columns with data.source_field and data.target_field"
        )
    if found[0] == found[1]:
        raise DataError(f"{where}: column {found[0] + 1} is both text and label; set data.source_field")
    return (found[0], found[1]), is_header


def _read_records(path: Path, config: DataConfig) -> Iterator[Labelled]:
    normalise = normalisation_of(config)
    for where, record in read_records(path):
        field = config.source_field or next((name for name in TEXT_NAMES if name in record), TEXT_NAMES[0])
        label_field = config.target_field or next((name for name in LABEL_NAMES if name in record), LABEL_NAMES[0])
        if field not in record:
            raise missing_field(where, field, record, setting="data.source_field")
        if label_field not in record:
            raise missing_field(where, label_field, record, setting="data.target_field")
        text = as_text(record[field], where, field, setting="data.source_field")
        yield Labelled(sentence(text, normalise), _label(record[label_field], where, label_field), where)


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
    labels = tuple(labels) or in_order({one.label for one in train})
    if len(labels) < 2:
        raise DataError(f"all {len(train):,} training examples have the label {labels[0]!r}; give at least two")
    if tokenizer is None:
        tokenizer = train_tokenizer(tokenizer_spec, lambda: (one.text for one in train))
    encoded = {split: encode_labelled(found, tokenizer, labels) for split, found in examples.items()}
    return PreparedExamples(tokenizer, labels, encoded.pop("training"), encoded, names, warnings)


def encode_labelled(examples: Sequence[Labelled], tokenizer: Tokenizer, labels: Sequence[str]) -> PairedCorpus:
    """Encode texts as sources and labels as targets of one token."""
    ids = label_ids(labels)
    for one in examples:
        if one.label not in ids:
            raise unknown_label(one.where, one.label, labels)
    sources = [encode_text(one.text, tokenizer) for one in examples]
    return paired(sources, [[ids[one.label]] for one in examples], tokenizer.vocabulary, len(labels))


def encode_text(text: str, tokenizer: Tokenizer) -> list[int]:
    """Encode a text with EOS at its end, so that even an empty text has a token."""
    return [*tokenizer.encode(text).tolist(), tokenizer.eos]
