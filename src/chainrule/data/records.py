"""Records: JSON lines and Parquet, of which one named field is the text; `a.b` is the field b inside the field a."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chainrule.data.compression import open_bytes
from chainrule.data.encoding import not_text
from chainrule.errors import DataError, MissingExtra, close_names

JSON_LINES = (".jsonl", ".ndjson", ".json")
LONGEST_RECORD = 64 << 20  # bytes per JSON line


def missing_field(where: str, field: str, fields: Iterable[str], *, setting: str | None = "data.field") -> DataError:
    """Return the error for a record without a field; it lists the existing fields.

    `setting` names the field; None: the format does, and the record must change.
    """
    known = sorted(fields)
    close = close_names(field, known)
    if setting is None:
        remedy = f"rename {close[0]!r}" if close else "add it, or rename the field that has it"
    else:
        remedy = f"did you mean {setting}={close[0]}?" if close else f"set {setting} to the field with the text"
    return DataError(f"{where} has no field {field!r}, only {', '.join(known) or 'none'}; {remedy}")


def value_at(record: Mapping[str, Any], field: str, where: str, *, setting: str = "data.field") -> Any:
    """Return the value of a field, which may be inside others: `data.title`."""
    if field in record:
        return record[field]
    value: Any = record
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise missing_field(where, field, field_names(record), setting=setting)
        value = value[name]
    return value


def field_names(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all fields that have a value, those inside others as `outer.inner`."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in field_names(value))
        else:
            yield name


def as_text(value: object, where: str, field: str, *, setting: str | None = "data.field") -> str:
    """Return the text of a field; null is empty. `setting` is that of `missing_field`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        remedy = "give a text" if setting is None else f"set {setting} to a text field"
        raise DataError(f"{where}: field {field!r} contains {value!r:.40}, not text; {remedy}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{where}: field {field!r} is not valid Unicode: {error.reason}; fix the record") from None
    return value


def outer_field(field: str, columns: Sequence[str], where: str) -> str:
    """Return the column that contains a field, possibly inside it."""
    found = [column for column in columns if field == column or field.startswith(f"{column}.")]
    if not found:
        raise missing_field(where, field, columns)
    return max(found, key=len)


def read_json_lines(path: Path, field: str) -> Iterator[str]:
    """Yield the field of every record."""
    for where, record in read_records(path):
        yield as_text(value_at(record, field, where), where, field)


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
    if 0 in line:
        raise not_text(where, line)
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_text(where, line, error=error) from None
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
            column = outer_field(field, table.schema_arrow.names, repr(str(path)))
            for batch in table.iter_batches(batch_size=1024, columns=[column]):
                for value in batch.column(0).to_pylist():
                    yield as_text(value_at({column: value}, field, repr(str(path))), repr(str(path)), field)
        except pyarrow.ArrowException as error:
            reason = str(error).split("\n")[0]
            raise DataError(f"{str(path)!r} is not a readable Parquet file: {reason}; write it again") from None
