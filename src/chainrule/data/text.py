"""Text files, folders, globs and standard input; and `open_source`, which opens any data spec."""

from __future__ import annotations

import atexit
import codecs
import functools
import glob
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Literal

from chainrule.config import DataConfig
from chainrule.data.builtin import open_builtin
from chainrule.data.compression import COMPRESSED, open_bytes
from chainrule.data.encoding import not_text
from chainrule.data.fasta import has_few_records, is_fasta, sequences
from chainrule.data.hub import is_saved_dataset, open_hub, open_saved
from chainrule.data.records import JSON_LINES, as_text, missing_field, read_json_lines, read_parquet
from chainrule.data.remote import fetched, is_remote
from chainrule.data.source import LONGEST_LINE, TextSource, Unit, cut, normalisation_of
from chainrule.data.splits import Span
from chainrule.data.tables import TEXT_NAMES, Row, first_known, is_comma_separated, is_header, names_of, rows_of
from chainrule.data.units import guess_unit
from chainrule.errors import DataError, close_names
from chainrule.files import writing

CHUNK = 1 << 20  # bytes read at a time
SHARD = 64 << 20  # bytes of text that are encoded by one worker; see `data.shards`
SPOOLED = "standard input"  # name of the temporary file with the content of a pipe
SAMPLE = 1 << 13  # bytes read to tell text files from binary ones
TABLES = (".csv", ".tsv")

Form = Literal["text", "JSON lines", "Parquet", "table", "FASTA"]


def open_source(spec: str, config: DataConfig) -> TextSource:
    """Open a data spec: a path, folder, glob, '-', builtin:NAME or hub:NAME[:CONFIG[:SPLIT]]."""
    unit: Unit | None = None if config.unit == "auto" else config.unit
    normalisation = normalisation_of(config)
    if spec.startswith("builtin:"):
        return open_builtin(spec, unit, normalisation)
    if spec.startswith("hub:"):
        return open_hub(spec, config.field, unit, normalisation)
    try:
        if is_saved_dataset(folder := Path(spec).expanduser()):
            return open_saved(folder, config.field, unit, normalisation)
        files, skipped = find_files(spec, stream=config.remote == "stream")
    except OSError as error:  # folder not accessible, name too long, no space for the content of a pipe
        raise DataError(f"{spec[:80]!r} cannot be read: {error.strerror}; give the path of a text file") from None
    records = [content_form(path, config.field) != "text" for path in files]
    if any(records) and not all(records):
        text, record = files[records.index(False)], files[records.index(True)]
        raise DataError(
            f"{spec!r} mixes text and records ({text.name!r}, {record.name!r}); "
            f"choose one kind with a glob such as '*{form_of(record)}'"
        )
    found = FileSource(
        spec=spec,
        unit=unit or _default_unit(files[0], config.field),
        normalisation=normalisation,
        files=files,
        skipped=skipped,
        field=config.field,
    )
    if unit is not None or records[0]:
        return found
    guess = guess_unit(next(cut(found.stream()), ""))
    return replace(found, unit=guess.unit, note=guess.note)


def _default_unit(path: Path, field: str) -> Unit:
    """Records are documents, except a few long sequences."""
    form = content_form(path, field)
    if form == "FASTA":
        return "stream" if has_few_records(path) else "documents"
    return "stream" if form == "text" else "documents"


@dataclass(frozen=True, kw_only=True)
class FileSource(TextSource):
    """One or more files, in order: all text, or all records."""

    files: tuple[Path, ...]
    skipped: tuple[Path, ...]  # files of a folder that are not text
    field: str
    note: str | None = None  # how lines were understood
    span: Span | None = None  # bytes of the only file; none: all of the files
    closed: bool = False  # whether a line end is added to a text that ends without one, since another file follows

    @property
    def form(self) -> Form:
        """The format of the files, as recognised."""
        return content_form(self.files[0], self.field)

    @property
    def warnings(self) -> tuple[str, ...]:
        found = [] if self.note is None else [f"{self.spec!r} is {self.note}"]
        if self.skipped:
            example = self.skipped[0].name
            found.append(f"{self.spec!r}: skipped {len(self.skipped)} files that are not UTF-8 text, e.g. {example!r}")
        if form_of(self.files[0]) in TABLES and self.form == "text":
            found.append(
                f"{self.spec!r} is read as plain text with its separators, since no header names a text column; "
                "data.field=2 reads the second column only"
            )
        return tuple(found)

    def identity(self) -> tuple[object, ...]:
        if self.files[0].name == SPOOLED:
            return ("pipe", self.form, _digest(self.files[0]))
        field = None if self.form in ("text", "FASTA") else self.field
        part = () if self.span is None and not self.closed else (self.span, self.closed)
        return ("files", self.form, field, *(file_identity(path) for path in self.files), *part)

    def origins(self) -> frozenset[str]:
        return frozenset(str(path.resolve()) for path in self.files)

    def stream(self) -> Iterator[str]:
        """Insert a newline between files and between records that do not end with one."""
        if self.form != "text":
            for text in self.documents():
                yield text if text.endswith("\n") else text + "\n"
            return
        last = "\n"
        for path in self.files:
            for index, chunk in enumerate(read_text(path, span=self.span)):
                yield "\n" + chunk if index == 0 and last != "\n" else chunk
                last = chunk[-1]
        if self.closed and last != "\n":
            yield "\n"

    def shards(self) -> Sequence[TextSource]:
        """Files, and parts of long text files that are not compressed; several small files are one shard."""
        if self.span is not None or self.files[0].name == SPOOLED:
            return (self,)
        filled = [path for path in self.files if path.stat().st_size]
        found: list[FileSource] = []
        group: list[Path] = []
        size = 0
        for path, following in zip_longest(filled, filled[1:]):
            group.append(path)
            size += path.stat().st_size
            if following is None or (size >= SHARD and self._starts_a_line(following)):
                found += self._divided(tuple(group), last=following is None)
                group, size = [], 0
        return found or (self,)

    def _starts_a_line(self, path: Path) -> bool:
        """Whether a file begins with something other than white space: where `cut` may cut, too."""
        return self.form != "text" or not next(read_text(path, SAMPLE), " ")[0].isspace()

    def _divided(self, files: tuple[Path, ...], *, last: bool) -> list[FileSource]:
        """One shard with these files; several if it is one that can be divided."""
        whole = replace(self, files=files, skipped=(), note=None, closed=not last)
        if len(files) > 1 or self.form != "text" or files[0].suffix in COMPRESSED:
            return [whole]
        edges = line_starts(files[0], SHARD)
        if len(edges) == 2:
            return [whole]
        *spans, final = (Span(*edges) for edges in pairwise(edges))
        return [*(replace(whole, span=span, closed=False) for span in spans), replace(whole, span=final)]

    def documents(self) -> Iterator[str]:
        for path in self.files:
            yield from self._documents(path)

    def _documents(self, path: Path) -> Iterator[str]:
        match content_form(path, self.field):
            case "Parquet":
                return read_parquet(path, self.field)
            case "JSON lines":
                return read_json_lines(path, self.field)
            case "table":
                return _read_column(path, self.field)
            case "FASTA":
                return sequences(read_every_line(path), path)
            case "text":
                return read_lines(path, self.span)


def content_form(path: Path, field: str) -> Form:
    """Recognise the format of a file: by its suffix, a table by its header too, FASTA by its first lines too."""
    form = form_of(path)
    if form in JSON_LINES:
        return "JSON lines"
    if form == ".parquet":
        return "Parquet"
    if form in TABLES:
        return "text" if _text_column(path, field) is None else "table"
    return "FASTA" if is_fasta(path, form) else "text"


def _text_column(path: Path, field: str) -> int | None:
    """Return the column of a table that is the text, from 0; None if nothing names one."""
    try:
        first = next(table_rows(path), None)
    except DataError:  # not CSV, or not even text: reported where the file is read
        return None
    cells = [] if first is None else [cell.strip() for cell in first.cells]
    if field.isdecimal():
        if not 1 <= int(field) <= len(cells):
            raise DataError(f"{str(path)!r} has {len(cells)} columns and no column {field}; set data.field")
        return int(field) - 1
    if field in cells:
        return cells.index(field)
    if field != DataConfig.model_fields["field"].default:
        raise missing_field(repr(str(path)), field, cells)
    # a single column is a table only if it is named as asked; prose with commas is no table either
    return first_known(names_of(cells), TEXT_NAMES) if len(cells) > 1 else None


def _read_column(path: Path, field: str) -> Iterator[str]:
    """Yield the text column of a table, without its header."""
    column = _text_column(path, field)
    assert column is not None
    for index, (number, cells) in enumerate(table_rows(path)):
        named = not field.isdecimal() or is_header(cells) or names_of(cells)[column] in TEXT_NAMES
        if index == 0 and named:
            continue
        if column >= len(cells):
            where = f"line {number:,} of {str(path)!r}"
            raise DataError(f"{where} has {len(cells)} columns and no text in column {column + 1}; fix the line")
        yield as_text(cells[column], f"line {number:,} of {str(path)!r}", field)


def table_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table that are not blank."""
    return rows_of(read_every_line(path), path, commas=is_comma_separated(form_of(path)))


def form_of(path: Path) -> str:
    """Return the suffix that determines the format of a file, ignoring compression."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def file_identity(path: Path) -> tuple[str, int, int]:
    """Return path, size and modification time, which change whenever the file does."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror}; check the path") from None
    return (str(path.resolve()), status.st_size, status.st_mtime_ns)


def read_text(path: Path, chunk: int = CHUNK, span: Span | None = None) -> Iterator[str]:
    """Yield the text of a file in chunks: strict UTF-8, without byte order mark, newlines unchanged.

    With a span, only these bytes of a file that is not compressed.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    position, start = 0 if span is None else span.start, b""  # bytes read so far, and the first of them
    at_start = position == 0
    with open_bytes(path) as file:
        if position:
            file.seek(position)
        while True:
            data = file.read(chunk if span is None else min(chunk, span.end - position))
            start = start or data
            nul = data.find(0)
            if nul >= 0:
                raise not_text(repr(str(path)), start, offset=position + nul)
            pending = len(decoder.getstate()[0])  # bytes of a character split by the previous chunk
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise not_text(repr(str(path)), start, error=error, offset=position - pending + error.start) from None
            position += len(data)
            if text and at_start:
                text, at_start = text.removeprefix("\ufeff"), False
            if text:
                yield text
            if not data:
                return


def line_starts(path: Path, size: int) -> list[int]:
    """Return positions in a file, its start and its end included, at least `size` bytes apart.

    They are where a line starts with something other than white space, as for `cut`, or else where a line starts.
    """
    found, end = [0], path.stat().st_size
    with open_bytes(path) as file:
        while found[-1] + size < end:
            file.seek(begin := found[-1] + size)
            window = file.read(CHUNK)
            if (place := _LINE_START.search(window)) is None:
                window += file.read(LONGEST_LINE - CHUNK)
                place = _LINE_START.search(window)
            after = place.end() if place is not None else window.find(b"\n") + 1
            if begin + after >= end or not after:
                break
            found.append(begin + after)
    return [*found, end]


_LINE_START = re.compile(rb"\n(?=[!-~\xc3-\xdf\xe4-\xf4])")  # bytes with which no white space begins


def read_lines(path: Path, span: Span | None = None) -> Iterator[str]:
    """Yield every non-empty line without its newline."""
    for piece in cut(read_text(path, span=span)):
        for line in piece.split("\n"):
            if len(line) >= LONGEST_LINE:
                raise DataError(
                    f"{str(path)!r} has a line of more than 8 MiB, too long for a document; set data.unit=stream"
                )
            if line:
                yield line


def read_every_line(path: Path) -> Iterator[str]:
    """Yield every line without its newline, including empty ones: strict UTF-8, without byte order mark."""
    number = 0
    with open_bytes(path) as file:
        while line := file.readline(LONGEST_LINE):
            number += 1
            where = f"line {number:,} of {str(path)!r}"
            if len(line) == LONGEST_LINE:
                raise DataError(f"{where} is longer than 8 MiB; give one sentence per line")
            if 0 in line:
                raise not_text(where, line)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise not_text(where, line, error=error) from None
            yield text.removesuffix("\n")


def find_files(spec: str, *, stream: bool = False) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the files of a path, folder, glob, URL or '-', and the skipped files of a folder that are not text.

    Files of a URL are copied, or with `stream` read where they are.
    """
    if is_remote(spec):
        return fetched(spec, stream=stream), ()
    path = Path(spec).expanduser()
    if spec == "-" or path.is_fifo() or path.is_char_device():
        return (_spool(spec),), ()
    if path.is_dir():
        return _folder_files(path)
    if path.exists():
        return (path,), ()
    if any(character in spec for character in "*?["):
        # Path.glob does not accept absolute patterns
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207
        found = sorted(match for match in map(Path, matches) if match.is_file())
        if not found:
            raise DataError(f"no file matches {spec!r}; check the pattern, and quote it in the shell")
        return tuple(found), ()
    raise DataError(f"there is no file or folder {spec!r}; {_neighbour(path)}")


def require_path(spec: str) -> None:
    """Raise DataError if a data spec is a path that does not exist; nothing is read."""
    path = Path(spec).expanduser()
    if (
        spec == "-"
        or spec.startswith(("builtin:", "hub:"))
        or is_remote(spec)
        or ".npz:" in spec
        or set(spec) & set("*?[")
    ):
        return
    try:
        missing = not path.exists()
    except OSError:  # explained when it is opened
        return
    if missing:
        raise DataError(f"there is no file or folder {spec!r}; {_neighbour(path)}")


def _neighbour(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r} either; check the path"
    close = close_names(path.name, [entry.name for entry in path.parent.iterdir()])
    return f"did you mean {str(path.with_name(close[0]))!r}?" if close else "check the path"


def _folder_files(folder: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    kept: list[Path] = []
    skipped: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file() and path.stat().st_size:
                (kept if form_of(path) in (*JSON_LINES, ".parquet") or _is_text(path) else skipped).append(path)
    if not kept:
        raise DataError(f"folder {str(folder)!r} contains no text files; give a folder of UTF-8 text or a file")
    return tuple(sorted(kept)), tuple(sorted(skipped))


def _is_text(path: Path) -> bool:
    try:
        return next(read_text(path, SAMPLE), "") != ""
    except DataError:
        return False


@functools.cache
def _spool(spec: str) -> Path:
    """Copy standard input or a pipe to a temporary file, since it is read several times."""
    folder = tempfile.mkdtemp(prefix="chainrule-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, SPOOLED)
    with (
        writing(path),
        path.open("wb") as copy,
        nullcontext(sys.stdin.buffer) if spec == "-" else Path(spec).open("rb") as pipe,
    ):
        shutil.copyfileobj(pipe, copy, CHUNK)
    return path


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_all_lines(path: Path) -> list[str]:
    """All lines of a text file, empty ones included."""
    (file,), _ = find_files(str(path))
    lines = "".join(read_text(file)).split("\n")
    return lines if lines[-1] else lines[:-1]
