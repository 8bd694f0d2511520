"""Which task data is made for, as far as the data itself shows it: text, pairs, labels, tags, answers or images."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from chainrule.config import DataConfig
from chainrule.data.compression import open_bytes
from chainrule.data.conllu import COLUMNS, WORD_ID
from chainrule.data.hub import is_saved_dataset
from chainrule.data.image_files import is_images
from chainrule.data.records import JSON_LINES, read_records
from chainrule.data.tables import LABEL_NAMES, is_header, names_of, recognise
from chainrule.data.text import find_files, form_of, read_every_line, table_rows
from chainrule.errors import DataError

DataTask = Literal["text", "translation", "labels", "tags", "answers", "images"]
DATA_TASKS: tuple[DataTask, ...] = get_args(DataTask)

HEAD = 1 << 16  # bytes at the start of a JSON file
ROWS, LINES = 2000, 200  # of a table and of a text that are looked at
TAG_SUFFIXES = (".conllu", ".conll", ".iob", ".iob2", ".bio")


def recognise_task(config: DataConfig) -> DataTask:
    """Recognise the task of the training data by its format; a family may read the same data in another way."""
    spec = config.train
    if is_images(spec):
        return "images"
    if config.source is not None or spec == "builtin:dates":
        return "translation"
    if spec.startswith(("builtin:", "hub:")) or is_saved_dataset(Path(spec).expanduser()):
        return "text"
    path = find_files(spec, stream=True)[0][0]
    form = form_of(path)
    try:
        if form in JSON_LINES:
            return _of_records(path)
        if form in TAG_SUFFIXES:
            return "tags"
        if form in (".tsv", ".csv"):
            return _of_table(path)
        return _of_lines(list(itertools.islice(read_every_line(path), LINES)))
    except DataError:  # reported where the data is read
        return "text"


def _of_records(path: Path) -> DataTask:
    with open_bytes(path) as file:
        if b'"paragraphs"' in file.read(HEAD):
            return "answers"
    _, record = next(read_records(path), ("", {}))
    if "translation" in record or {"source", "target"} <= record.keys():
        return "translation"
    return "labels" if any(name in LABEL_NAMES for name in names_of(list(record))) else "text"


def _of_table(path: Path) -> DataTask:
    rows = [row.cells for row in itertools.islice(table_rows(path), ROWS)]
    if rows and (is_header(rows[0]) or recognise(rows) is not None):
        return "labels"
    return "translation" if rows and len(rows[0]) == 2 and form_of(path) == ".tsv" else "text"


def _of_lines(lines: Sequence[str]) -> DataTask:
    """Columns of words and tags with blank lines between sentences are tags; all else is text."""
    cells = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    if not cells or not any(not line.strip() for line in lines):
        return "text"
    if all(len(row) == len(COLUMNS) for row in cells):
        return "tags" if WORD_ID.match(cells[0][0]) else "text"
    columns = {len(line.split()) for line in lines if line.strip()}
    tagged = [line.split()[-1] for line in lines if line.strip()]
    short = len(columns) == 1 and 2 <= min(columns) <= 5
    return "tags" if short and len(set(tagged)) <= len(tagged) / 4 else "text"
