"""Pairs from two files, a table, JSON lines or the hub; and `open_pairs`, which opens any spec of parallel data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from chainrule.config import DataConfig
from chainrule.data.builtin import BUILTIN, DatePairs
from chainrule.data.hub import HubSource, is_saved_dataset, open_hub, open_saved
from chainrule.data.records import JSON_LINES, as_text, missing_field, read_records, value_at
from chainrule.data.source import Normalisation, Pair, PairSource, Split
from chainrule.data.tables import is_comma_separated
from chainrule.data.text import file_identity, find_files, form_of, read_every_line, table_rows
from chainrule.errors import DataError, nearest

REMEDY = "give pairs: --source and --target, a .tsv, .csv or .jsonl file, hub:NAME:CONFIG or builtin:dates"
PAIRED = ("dates",)  # builtin pairs
LANGUAGE = re.compile(r"[a-z]{2}")
LANGUAGES = re.compile(r"(?:^|[-_.])([a-z]{2,3})[-_]([a-z]{2,3})$")  # at the end of a config name: de-en


def open_pairs(spec: str, source: str | None, config: DataConfig) -> PairSource:
    """Open a spec of parallel data; with a `source` file, `spec` is the file of its translations, line by line."""
    if source is not None:
        return TwoTexts(spec=f"{source} and {spec}", files=Pair(source, spec))
    names = Pair(config.source_field or "", config.target_field or "")
    if spec.startswith("builtin:"):
        return _open_builtin(spec)
    if spec.startswith("hub:"):
        return HubPairs.of(open_hub(spec, "", "documents", Normalisation()), names)
    if is_saved_dataset(folder := Path(spec).expanduser()):
        return HubPairs.of(open_saved(folder, "", "documents", Normalisation()), names)
    files = _files(spec)
    if any(form_of(path) == ".parquet" for path in files):
        raise DataError(f"{spec!r} is Parquet, which is not supported for pairs; load its folder with hub:FOLDER")
    if all(form_of(path) in JSON_LINES for path in files):
        return PairRecords(spec=spec, files=files, names=Pair(names.source or "source", names.target or "target"))
    return PairColumns(spec=spec, files=files, names=Pair(names.source or "1", names.target or "2"))


def _open_builtin(spec: str) -> PairSource:
    name = spec.removeprefix("builtin:")
    if name == "dates":
        return DatePairs(spec=spec, split="train")
    if name in BUILTIN:
        raise DataError(f"{spec} is a text, not pairs of texts; {REMEDY}")
    raise DataError(f"there are no builtin pairs {name!r}; {nearest(name, PAIRED)}")


def _files(spec: str) -> tuple[Path, ...]:
    try:
        return find_files(spec)[0]
    except OSError as error:
        raise DataError(f"{spec[:80]!r} cannot be read: {error.strerror}; give the path of a text file") from None


@dataclass(frozen=True, kw_only=True)
class TwoTexts(PairSource):
    """One file per side; each line of the target is the translation of the same line of the source."""

    files: Pair  # specs; a pattern such as '*.de' names several files, which are concatenated

    def identity(self) -> tuple[object, ...]:
        return ("two texts", *([file_identity(path) for path in _files(side)] for side in self.files))

    def origins(self) -> frozenset[str]:
        return frozenset(str(path.resolve()) for side in self.files for path in _files(side))

    @property
    def languages(self) -> Pair:
        """Language codes from the suffixes: train.en, train.de.gz."""
        suffixes = (form_of(_files(side)[0]).removeprefix(".") for side in self.files)
        return Pair(*(suffix if LANGUAGE.fullmatch(suffix) else "" for suffix in suffixes))

    def pairs(self) -> Iterator[Pair]:
        for source, target in zip_longest(*map(_lines, self.files)):
            if source is None or target is None:
                raise self._uneven()
            yield Pair(source, target)

    def _uneven(self) -> DataError:
        found = [f"{side!r} has {sum(1 for _ in _lines(side)):,} lines" for side in self.files]
        return DataError(f"{' and '.join(found)}; each line needs its translation; look for missing or joined lines")


def _lines(spec: str) -> Iterator[str]:
    return chain.from_iterable(map(read_every_line, _files(spec)))


@dataclass(frozen=True, kw_only=True)
class PairsInFiles(PairSource):
    """Files with both sides, each under a name."""

    files: tuple[Path, ...]
    names: Pair

    def identity(self) -> tuple[object, ...]:
        return (type(self).__name__, *self.names, *map(file_identity, self.files))

    def origins(self) -> frozenset[str]:
        return frozenset(str(path.resolve()) for path in self.files)

    @property
    def languages(self) -> Pair:
        return _codes(self.names)


@dataclass(frozen=True, kw_only=True)
class PairColumns(PairsInFiles):
    """Two columns of tables, by number, or by name if the first line is a header."""

    def pairs(self) -> Iterator[Pair]:
        """A row with too few columns has an empty side, except the first, which raises DataError."""
        for path in self.files:
            rows = self._rows(path)
            first = next(rows, None)
            if first is None:
                continue
            columns = self._columns(first, path)
            if self._numbered:
                rows = chain([first], rows)
            for row in rows:
                cells = dict(enumerate(row))
                yield Pair(*(cells.get(column, "") for column in columns))

    def _rows(self, path: Path) -> Iterator[list[str]]:
        """Every line of a table by tabs, blank ones too, since they count as pairs dropped; the rows of a .csv."""
        if is_comma_separated(form_of(path)):
            return (row.cells for row in table_rows(path))
        return (line.split("\t") for line in read_every_line(path))

    @property
    def _numbered(self) -> bool:
        return all(name.isdecimal() and int(name) for name in self.names)

    def _columns(self, cells: Sequence[str], path: Path) -> tuple[int, int]:
        where = f"line 1 of {str(path)!r}"
        if self._numbered:
            columns = [int(name) - 1 for name in self.names]
            if any(cells) and max(columns) >= len(cells):
                by = "comma" if is_comma_separated(form_of(path)) else "tab"
                raise DataError(f"{where} has {len(cells)} columns (by {by}), no column {max(columns) + 1}; {REMEDY}")
            return columns[0], columns[1]
        for side, name in self.names._asdict().items():
            if name not in cells:
                raise missing_field(where, name, cells, setting=f"data.{side}_field")
        return cells.index(self.names.source), cells.index(self.names.target)


@dataclass(frozen=True, kw_only=True)
class PairRecords(PairsInFiles):
    """JSON lines with a field for each side, possibly inside `translation`."""

    def pairs(self) -> Iterator[Pair]:
        for path in self.files:
            for where, record in read_records(path):
                yield pair_of(record, where, self.names)


@dataclass(frozen=True, kw_only=True)
class HubPairs(PairSource):
    """One split of a Hugging Face dataset with a column for each side, possibly inside `translation`."""

    dataset: HubSource
    names: Pair

    @classmethod
    def of(cls, dataset: HubSource, names: Pair) -> HubPairs:
        """Sides without a given name are the languages in the config name, the source first."""
        found = LANGUAGES.search(dataset.config or "")
        known = Pair(*found.groups()) if found else Pair("source", "target")
        return cls(
            spec=dataset.spec, dataset=dataset, names=Pair(names.source or known.source, names.target or known.target)
        )

    def identity(self) -> tuple[object, ...]:
        return (*self.dataset.identity(), *self.names)

    def origins(self) -> frozenset[str]:
        return self.dataset.origins()

    @property
    def languages(self) -> Pair:
        return _codes(self.names)

    def pairs(self) -> Iterator[Pair]:
        where = f"{self.dataset.spec!r}, split {self.dataset.split!r},"
        for record in self.dataset.records():
            yield pair_of(record, where, self.names)

    def held_out(self, split: Split) -> PairSource | None:
        other = self.dataset.held_out(split)
        return None if other is None else replace(self, spec=other.spec, dataset=other)


def pair_of(record: Mapping[str, Any], where: str, names: Pair) -> Pair:
    """Return the two texts of a record, or of its `translation`: {"translation": {"de": "Hund", "en": "dog"}}."""
    inner = record.get("translation")
    if isinstance(inner, Mapping) and not any(name in record for name in names):
        record = inner
    texts = []
    for side, name in names._asdict().items():
        setting = f"data.{side}_field"
        texts.append(as_text(value_at(record, name, where, setting=setting), where, name, setting=setting))
    return Pair(*texts)


def _codes(names: Iterable[str]) -> Pair:
    """Return the field names that are language codes, else empty strings."""
    return Pair(*(name if LANGUAGE.fullmatch(name) else "" for name in names))
