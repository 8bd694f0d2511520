"""Records: JSON lines and Parquet, of which one named field is the text."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chainrule.data.compression import open_bytes
from chainrule.errors import DataError, MissingExtra

JSON_LINES = (".jsonl", ".ndjson", ".json")
LONGEST_RECORD = 64 << 20  # bytes per JSON line


def missing_field(where: str, field: str, fields: Iterable[str], *, setting: str = "data.field") -> DataError:
    """Return the error for a record without a field; it lists the existing fields."""
    known = sorted(fields)
    close = difflib.get_close_matches(field, known, n=1)
    remedy = f"did you mean {setting}={close[0]}?" if close else f"set {setting} to the field with the text"
    return DataError(f"{where} has no field {field!r}, only {', '.join(known) or 'none'}; {remedy}")


def as_text(value: object, where: str, field: str, *, setting: str = "data.field") -> str:
    """Return the text of a field; null is empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: field {field!r} contains {value!r:.40}, not text; set {setting} to a text field")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{where}: field {field!r} is not valid Unicode: {error.reason}; fix the record") from None
    return value


def read_json_lines(path: Path, field: str) -> Iterator[str]:
    """Yield the field of every record."""
    for where, record in read_records(path):
        if field not in record:
            raise missing_field(where, field, record)
        yield as_text(record[field], where, field)


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every record of a file of JSON lines with its location; empty lines are skipped."""
    with open_bytes(path) as file:
        number = 0
        while line := file.readline(LONGEST_RECORD):
            number += 1
            where = f"line {number} of {str(path)!r}"
            if len(line) == LONGEST_RECORD:
                raise DataError(f"{where} is longer than 64 MiB; write one record per line, e.g. with jq -c '.[]'")
            if line.strip():
                yield where, _record(line, where)


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text: byte {error.start} of the line; convert the file") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where} is not valid JSON: {error}; write one record per line, e.g. with jq -c") from None
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise DataError(f"{where} is a {kind}, not a record; write one JSON object per line, e.g. with jq -c '.[]'")
    return record


def read_parquet(path: Path, field: str) -> Iterator[str]:
    """Yield a column, in row groups."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("reading .parquet files", "parquet") from None
    with open_bytes(path) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            if field not in table.schema_arrow.names:
                raise missing_field(repr(str(path)), field, table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=1024, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield as_text(value, repr(str(path)), field)
        except pyarrow.ArrowException as error:
            reason = str(error).split("\n")[0]
            raise DataError(f"{str(path)!r} is not a readable Parquet file: {reason}; write it again") from None
