"""Word vectors in the file formats of the original word2vec tool, which gensim and many others support.

Both formats start with a line that gives the number of words and the width. In the text format each line holds a word
and its numbers. In the binary format a word is followed by a space, its numbers as little-endian 32-bit floats, and
optionally a newline. Neither stores word frequencies; by convention words are sorted by descending frequency.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.errors import ConfigError, DataError
from chainrule.files import whole_file
from chainrule.models.word2vec import Word2Vec
from chainrule.tokenizers import Tokenizer

NUMBER = np.dtype("<f4")
REMEDY = "check that the file is in word2vec's text or binary format, or export it again"


class NamedVectors(NamedTuple):
    """Words and their vectors, by descending frequency."""

    words: list[str]
    vectors: npt.NDArray[np.float32]  # (N, D)


def named_vectors(model: Word2Vec, tokenizer: Tokenizer) -> NamedVectors:
    """The vectors of all words, without special tokens such as EOS."""
    frequencies = model.get_buffer("frequencies").cpu().numpy()
    order = np.argsort(-frequencies, kind="stable")
    spoken = order[~np.isin(order, model.non_words) & (order < tokenizer.vocabulary)]
    names = [tokenizer.pieces([index])[0] for index in spoken.tolist()]
    return NamedVectors([name.strip() or name for name in names], model.inputs.detach().cpu().numpy()[spoken])


def write_word2vec(named: NamedVectors, path: Path, *, binary: bool) -> None:
    """Write a file atomically."""
    invalid = next((word for word in named.words if not word or word.split() != [word]), None)
    if invalid is not None:
        raise ConfigError(
            f"word2vec files separate words by white space, which {invalid!r} contains; train with --tokenizer words"
        )
    with whole_file(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(named.words)} {named.vectors.shape[1]}\n".encode())
        for word, vector in zip(named.words, named.vectors.astype(NUMBER), strict=True):
            if binary:
                file.write(word.encode() + b" " + vector.tobytes() + b"\n")
            else:
                file.write(f"{word} {' '.join(map(str, vector.tolist()))}\n".encode())


def read_word2vec(path: Path) -> NamedVectors:
    """Read a file of either format, detected from its content. Of repeated words the first is kept."""
    try:
        with path.open("rb") as file:
            size, width = _header(file, path)
            entries = _text_entries if _is_text(file, width) else _binary_entries
            return _gathered(entries(file, path, size, width), size, width)
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error.strerror}); check the path") from None


def _header(file: BinaryIO, path: Path) -> tuple[int, int]:
    line = file.readline(100)
    try:
        size, width = map(int, line.split())
    except ValueError:
        size, width = 0, 0
    if size < 1 or width < 1:
        shown = line[:40].decode("utf-8", "replace")
        raise DataError(f"{str(path)!r} starts with {shown!r} instead of the number of words and the width; {REMEDY}")
    return size, width


def _is_text(file: BinaryIO, width: int) -> bool:
    """Whether the first word is followed by `width` decimal numbers. Restores the file position."""
    begin = file.tell()
    line = file.readline(1000 + 40 * width)
    file.seek(begin)
    try:
        return len([float(field) for field in line.split()[1:]]) == width
    except ValueError:
        return False


def _text_entries(file: BinaryIO, path: Path, size: int, width: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    for number in range(size):
        word, *fields = file.readline().rstrip().rsplit(b" ", width)
        try:
            vector = np.array(fields, dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if len(vector) != width:
            raise DataError(f"{str(path)!r}, line {number + 2}: expected a word and {width} numbers; {REMEDY}")
        yield word.decode("utf-8", "replace"), vector


def _binary_entries(file: BinaryIO, path: Path, size: int, width: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = file.tell()
        for number in range(size):
            space = content.find(b" ", place)
            end = space + 1 + NUMBER.itemsize * width
            if space < 0 or end > len(content):
                raise DataError(f"{str(path)!r} ends after {number:,} of {size:,} words; {REMEDY}")
            word = content[place:space].lstrip(b"\n").decode("utf-8", "replace")
            yield word, np.frombuffer(content[space + 1 : end], dtype=NUMBER)
            place = end


def _gathered(entries: Iterator[tuple[str, npt.NDArray[np.float32]]], size: int, width: int) -> NamedVectors:
    vectors = np.empty((size, width), dtype=np.float32)
    words: dict[str, None] = {}
    for word, vector in entries:
        if word not in words:
            vectors[len(words)] = vector
            words[word] = None
    return NamedVectors(list(words), vectors[: len(words)])
