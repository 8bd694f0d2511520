"""The files of an encoded text: tokens.bin, offsets.bin if it has documents, and meta.json with its counts."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.data.seams import CONTEXT, SeamedTokens, append
from chainrule.data.source import Unit
from chainrule.tokenizers.base import Tokenizer

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Offsets = npt.NDArray[np.int64]

BUFFER = 1 << 20  # tokens buffered before a write
ALLOCATION = mmap.ALLOCATIONGRANULARITY  # mappings of files begin at multiples of it
LONG = 1 << 17  # characters of a piece whose words are counted by compiled code


def token_type(vocabulary: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type for ids below `vocabulary`."""
    return np.uint8 if vocabulary <= 1 << 8 else np.uint16 if vocabulary <= 1 << 16 else np.uint32


@dataclass
class TextCounts:
    """What is counted of a text; see `corpus.Corpus`."""

    bytes: int = 0
    characters: int = 0
    words: int = 0
    unknown: int = 0


UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Letters of scripts that do not separate words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese."""

LONGEST_SEGMENTED = 4  # characters per word, white space included, of such a text if its words have been separated


def words_of(piece: str, data: bytes, unit: Unit) -> int:
    """Number of words, line ends or the end of the document included; 0 if white space does not separate words."""
    if len(piece) >= LONG:
        from chainrule.kernels.words import count_words  # Numba takes time to import

        counted = np.zeros(3, np.int64)
        count_words(np.frombuffer(data, np.uint8), counted)
        found, lines, unspaced = counted.tolist()
    else:
        found, lines = len(piece.split()), piece.count("\n")
        unspaced = 0 if len(piece) == len(data) else len(UNSPACED.findall(piece))
    if len(piece) > LONGEST_SEGMENTED * found and 2 * unspaced > len(piece):
        return 0
    return found + (lines if unit == "stream" else 1)


def encode_piece(piece: str, tokenizer: Tokenizer, unit: Unit, counts: TextCounts) -> npt.NDArray[np.int32]:
    """Encode a piece and add it to the counts."""
    ids = tokenizer.encode(piece)
    data = piece.encode()
    counts.bytes += len(data)
    counts.bytes += unit == "documents" and not piece.endswith("\n")  # as in a stream of the same documents
    counts.characters += len(piece)
    counts.words += words_of(piece, data, unit)
    if tokenizer.unknown is not None:
        counts.unknown += int(np.count_nonzero(ids == tokenizer.unknown))
    return ids if unit == "stream" else np.append(ids, np.int32(tokenizer.eos))


def write_tokens(folder: Path, pieces: Iterable[str], tokenizer: Tokenizer, unit: Unit) -> None:
    """Encode pieces of a text, which may be larger than memory."""
    if unit == "stream":
        _write_stream(folder, pieces, tokenizer)
    else:
        _write_documents(folder, pieces, tokenizer)


def _write_stream(folder: Path, pieces: Iterable[str], tokenizer: Tokenizer) -> None:
    counts = TextCounts()
    kind = np.dtype(token_type(tokenizer.vocabulary))
    start = end = ""
    with (folder / "tokens.bin").open("wb") as file:
        tokens = SeamedTokens(file, kind, tokenizer)
        for piece in pieces:
            tokens.add(encode_piece(piece, tokenizer, "stream", counts), piece[:CONTEXT], piece[-CONTEXT:])
            start = start if len(start) == CONTEXT else (start + piece[:CONTEXT])[:CONTEXT]
            end = (end + piece[-CONTEXT:])[-CONTEXT:]
        tokens.finish()
    counts.unknown += tokens.unknown
    _write_meta(folder, kind, tokens.length, "stream", counts, Edges(start, end))


def _write_documents(folder: Path, documents: Iterable[str], tokenizer: Tokenizer) -> None:
    counts = TextCounts()
    kind = np.dtype(token_type(tokenizer.vocabulary))
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "offsets.bin").open("wb") as offsets:
        buffered: list[npt.NDArray[np.int32]] = []
        end, written = 0, 0
        ends = [0]
        for document in documents:
            ids = encode_piece(document, tokenizer, "documents", counts)
            buffered.append(ids)
            end += len(ids)
            ends.append(end)
            if end - written >= BUFFER:
                append(tokens, np.concatenate(buffered), kind)
                append(offsets, np.array(ends), np.dtype(np.int64))
                buffered, ends, written = [], [], end
        append(tokens, np.concatenate([*buffered, np.zeros(0, np.int32)]), kind)
        append(offsets, np.array(ends, np.int64), np.dtype(np.int64))
    _write_meta(folder, kind, end, "documents", counts)


def join_tokens(folder: Path, parts: Sequence[TokenFiles], tokenizer: Tokenizer, unit: Unit) -> None:
    """Write the parts of a text one after the other."""
    counts = TextCounts()
    kind = np.dtype(token_type(tokenizer.vocabulary))
    for part in parts:
        for name, count in asdict(part.counts).items():
            setattr(counts, name, getattr(counts, name) + count)
    with (folder / "tokens.bin").open("wb") as file:
        if unit == "stream":
            tokens = SeamedTokens(file, kind, tokenizer)
            for part in parts:
                tokens.add(part.tokens, *part.edges)
            tokens.finish()
            length = tokens.length
            counts.unknown += tokens.unknown
        else:
            length = 0
            with (folder / "offsets.bin").open("wb") as offsets:
                append(offsets, np.zeros(1, np.int64), np.dtype(np.int64))
                for part in parts:
                    file.write(part.tokens.data)
                    assert part.offsets is not None
                    append(offsets, part.offsets[1:] + length, np.dtype(np.int64))
                    length += len(part.tokens)
    _write_meta(folder, kind, length, unit, counts)


class Edges(NamedTuple):
    """The first and the last characters of a stream, for the text that another part of it adjoins."""

    start: str = ""
    end: str = ""


def _write_meta(
    folder: Path, kind: np.dtype[Any], tokens: int, unit: Unit, counts: TextCounts, edges: Edges | None = None
) -> None:
    meta = {"type": kind.name, "tokens": tokens, "unit": unit, **asdict(counts), "edges": edges or Edges()}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


class TokenFiles(NamedTuple):
    """The files of an encoded text, mapped into memory."""

    tokens: Tokens
    offsets: Offsets | None
    counts: TextCounts
    edges: Edges


def read_tokens(folder: Path) -> TokenFiles:
    """Map what `write_tokens` has written; ValueError if it is truncated."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    unit, kind, count = meta.pop("unit"), np.dtype(meta.pop("type")), meta.pop("tokens")
    edges = Edges(*meta.pop("edges"))
    tokens: Tokens = np.memmap(folder / "tokens.bin", dtype=kind, mode="r") if count else np.zeros(0, kind)
    offsets = None if unit == "stream" else np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r")
    if len(tokens) != count or (offsets is not None and offsets[-1] != count):
        raise ValueError("truncated")
    return TokenFiles(tokens, offsets, TextCounts(**meta), edges)


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """Tokens in a file, for other processes, and where documents start in it, if there are any."""

    path: Path
    type: str
    offset: int  # in bytes
    length: int  # in tokens
    starts: Offsets  # of sequences before which there is BOS: 0, or those of documents

    @classmethod
    def of(cls, tokens: Tokens, offsets: Offsets | None) -> TokenFile | None:
        """The file of tokens that are mapped into memory; None if they are not, or not one after the other."""
        if not isinstance(tokens, np.memmap) or tokens.filename is None or tokens.strides != (tokens.itemsize,):
            return None
        whole = np.frombuffer(tokens._mmap, np.uint8)  # type: ignore[attr-defined]
        start = tokens.offset - tokens.offset % ALLOCATION  # of the mapping, in the file
        place = int(tokens.__array_interface__["data"][0] - whole.__array_interface__["data"][0])
        starts = np.zeros(1, np.int64) if offsets is None else np.asarray(offsets[:-1])
        return cls(
            path=Path(tokens.filename), type=tokens.dtype.name, offset=start + place, length=len(tokens), starts=starts
        )

    def between(self, begin: int, end: int) -> TokenFile:
        """The same file for someone who reads this part of it."""
        first, last = np.searchsorted(self.starts, [begin, end])
        return replace(self, starts=np.array(self.starts[first:last]))

    def read(self, begin: int, end: int) -> Tokens:
        kind = np.dtype(self.type)
        return np.fromfile(self.path, kind, count=end - begin, offset=self.offset + begin * kind.itemsize)

    def stream(self, begin: int, end: int, bos: int) -> npt.NDArray[np.int64]:
        """The tokens of a part, with −1 and BOS before each sequence that starts in it."""
        tokens = self.read(begin, end)
        first, last = np.searchsorted(self.starts, [begin, end])
        places = self.starts[first:last] - begin + 2 * np.arange(last - first)
        found = np.empty(len(tokens) + 2 * len(places), np.int64)
        inside = np.ones(len(found), np.bool_)
        inside[places] = inside[places + 1] = False
        found[places], found[places + 1], found[inside] = -1, bos, tokens
        return found
