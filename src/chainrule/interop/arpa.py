r"""n-gram models as ARPA files, the text format of KenLM, SRILM and others.

In the file, EOS (id 0) is `</s>`, the unknown token (id 1, if the vocabulary has one) is `<unk>`, and BOS, which has
no id here, is `<s>`. ARPA files separate words by white space, so all other tokens are escaped: a backslash as `\\`,
white space, control and format characters by code point as `\u0020` or `\U0001f468`, the empty token as `\e`, and an
ordinary token that is spelled `<s>`, `</s>` or `<unk>` with a leading `\u003c`. Reading reverses this; a backslash that
starts none of these escapes is literal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

import torch
from torch import Tensor

from chainrule.errors import DataError
from chainrule.files import whole_file
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.nn.backoff import BackoffTable, find_nodes

EOS, UNKNOWN = "<eos>", "<unk>"
RESERVED = ("<s>", "</s>", "<unk>")
IMPOSSIBLE = -99.0  # the conventional log10 probability of <s>
LN10 = math.log(10)

_EMPTY = "\\e"
_ESCAPED = re.compile(r"\\(?:\\|u([0-9a-f]{4})|U(00(?:0[0-9a-f]|10)[0-9a-f]{4}))")
_SIZE = re.compile(rb"ngram\s+(\d+)\s*=\s*(\d+)")


def write_arpa(model: NGram, tokens: Sequence[str], path: Path | str) -> None:
    """Write a model atomically; `tokens` are the names of the token ids."""
    if len(tokens) != model.vocabulary:
        raise DataError(
            f"the model has {model.vocabulary} tokens, but {len(tokens)} names were given; use the tokenizer of the run"
        )
    words = [_escaped(index, token) for index, token in enumerate(tokens)]
    if len(set(words)) < len(words):
        twice = next(word for index, word in enumerate(words) if word in words[:index])
        raise DataError(f"two tokens are called {twice!r}; the tokens of an ARPA file need unique names")
    words.append("<s>")
    with whole_file(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        _write_tables(model, words, file)


def _escaped(index: int, token: str) -> str:
    if index == 0:
        return "</s>"
    if index == 1 and token == UNKNOWN:
        return UNKNOWN
    if not token:
        return _EMPTY
    if token in RESERVED:
        return f"\\u003c{token[1:]}"
    return "".join("\\\\" if symbol == "\\" else _symbol(symbol) for symbol in token)


def _symbol(symbol: str) -> str:
    if symbol.isprintable() and not symbol.isspace():
        return symbol
    code = ord(symbol)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _write_tables(model: NGram, words: list[str], file: TextIO) -> None:
    tables = list(model.tables())
    file.write("\\data\\\n")
    file.writelines(f"ngram {order}={len(table.keys)}\n" for order, table in enumerate(tables, start=1))
    names = [""]  # of the n-grams one order below
    for order, table in enumerate(tables, start=1):
        parents, last = (table.keys // model.base).tolist(), (table.keys % model.base).tolist()
        names = [f"{names[parent]} {words[token]}" for parent, token in zip(parents, last, strict=True)]
        log_probs = (table.log_probs.double() / LN10).tolist()
        if order == 1:
            log_probs.append(IMPOSSIBLE)
        file.write(f"\n\\{order}-grams:\n")
        if order < len(tables):
            log_backoffs = (table.log_backoffs.double() / LN10).tolist()
            file.writelines(
                f"{log_prob:.7f}\t{name[1:]}\t{log_backoff:.7f}\n"
                for log_prob, name, log_backoff in zip(log_probs, names, log_backoffs, strict=True)
            )
        else:
            file.writelines(f"{log_prob:.7f}\t{name[1:]}\n" for log_prob, name in zip(log_probs, names, strict=True))
    file.write("\n\\end\\\n")


def read_arpa(path: Path | str) -> tuple[NGram, list[str]]:
    """The model and its token names: EOS, the unknown token if there is one, then the words in file order."""
    try:
        with Path(path).open("rb") as file:
            return _Reader(file, str(path)).read()
    except OSError as error:
        raise DataError(f"ARPA file {str(path)!r} cannot be read ({error.strerror}); check the path") from None


class _Section(NamedTuple):
    """The n-grams of one order, in file order, one per line from `line` on."""

    line: int
    words: list[bytes]  # of all n-grams, concatenated
    log_probs: Tensor  # (n,) nats
    log_backoffs: Tensor  # (n,) nats


class _Reader:
    """Parses a file line by line and reports errors with their line number."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file = file
        self.name = name
        self.line = 0

    def read(self) -> tuple[NGram, list[str]]:
        sizes = self._header()
        unigrams = self._section(1, sizes[0])
        tokens, ids = self._vocabulary(unigrams)
        tables = [self._unigram_table(unigrams, ids, len(tokens))]
        for order, size in enumerate(sizes[1:], start=2):
            self._expect(b"\\%d-grams:" % order)
            tables.append(self._table(self._section(order, size), ids, tables))
        self._expect(b"\\end\\")
        model = NGram(NGramConfig(vocabulary=len(tokens), order=len(sizes)))
        model.set_tables(tables)
        return model, tokens

    def _header(self) -> list[int]:
        """The number of n-grams of every order."""
        while self._next("a \\data\\ line") != b"\\data\\":
            pass  # the format allows any text before it
        sizes: list[int] = []
        while match := _SIZE.fullmatch(line := self._next("\\1-grams:")):
            if int(match[1]) != len(sizes) + 1:
                raise self._error(self.line, f"expected the number of {len(sizes) + 1}-grams, got {_shown(line)}")
            sizes.append(int(match[2]))
        if not sizes or line != b"\\1-grams:":
            raise self._error(self.line, f"expected 'ngram {len(sizes) + 1}=COUNT' or '\\1-grams:', got {_shown(line)}")
        return sizes

    def _section(self, order: int, size: int) -> _Section:
        first = self.line + 1
        words: list[bytes] = []
        log_probs, log_backoffs = [], []
        for line in islice(self.file, size):
            self.line += 1
            fields = line.split()
            try:
                log_probs.append(float(fields[0]))
                log_backoffs.append(float(fields[order + 1]) if len(fields) > order + 1 else 0.0)
            except (ValueError, IndexError):
                fields = []
            if not order < len(fields) <= order + 2 or not math.isfinite(log_backoffs[-1]) or not log_probs[-1] <= 0:
                wanted = f"the {order}-gram {self.line - first + 1} of {size}: log-probability, words, back-off weight"
                raise self._error(self.line, f"expected {wanted}; got {_shown(line.strip())}")
            words += fields[1 : order + 1]
        if len(log_probs) < size:
            raise self._error(self.line, f"the file ends after {len(log_probs)} of {size} {order}-grams")
        # A log-probability of -inf, which some tools write, would make every text with that n-gram impossible.
        nats = torch.tensor([log_probs, log_backoffs], dtype=torch.float64).clamp(min=IMPOSSIBLE) * LN10
        return _Section(first, words, nats[0], nats[1])

    def _vocabulary(self, unigrams: _Section) -> tuple[list[str], dict[bytes, int]]:
        """The token names, and the id of each word in the file."""
        lines = {word: unigrams.line + place for place, word in enumerate(unigrams.words)}
        if len(lines) < len(unigrams.words):
            line, word = next(
                (line, word) for line, word in enumerate(unigrams.words, start=unigrams.line) if lines[word] != line
            )
            raise self._error(line, f"the unigram {_shown(word)} is listed twice")
        if b"</s>" not in lines:
            raise self._error(unigrams.line, "there is no unigram </s>, which every model needs to end a text")
        special = [word for word in (b"</s>", b"<unk>") if word in lines]
        ordinary = [word for word in unigrams.words if word not in (b"<s>", *special)]
        tokens = [EOS, UNKNOWN][: len(special)]
        for word in ordinary:
            try:
                tokens.append(_original(word.decode("utf-8")))
            except UnicodeDecodeError:
                raise self._error(lines[word], f"{_shown(word)} is not UTF-8") from None
        return tokens, {word: index for index, word in enumerate((*special, *ordinary, b"<s>"))}

    def _unigram_table(self, section: _Section, ids: dict[bytes, int], bos: int) -> BackoffTable:
        places = torch.tensor([ids[word] for word in section.words])
        values = torch.zeros(2, bos + 1, dtype=torch.float64)
        values[:, places] = torch.stack([section.log_probs, section.log_backoffs])
        return BackoffTable(torch.arange(bos + 1), values[0, :bos], values[1])

    def _table(self, section: _Section, ids: dict[bytes, int], shorter: list[BackoffTable]) -> BackoffTable:
        order, bos = len(shorter) + 1, ids[b"<s>"]
        tokens = torch.tensor([ids.get(word, -1) for word in section.words], dtype=torch.int64).view(
            len(section.log_probs), order
        )
        self._refuse(section, (tokens < 0).any(1), "has a word that is not a unigram")
        self._refuse(section, (tokens[:, 1:] == bos).any(1), "has <s> after its first word")
        nodes = tokens[:, 0].contiguous()
        for table, column in zip(shorter[1:], tokens.unbind(1)[1:], strict=False):
            nodes = find_nodes(table.keys, nodes, column, bos + 1)
        self._refuse(section, nodes < 0, f"extends a context that is not a {order - 1}-gram")
        keys, places = torch.sort(nodes * (bos + 1) + tokens[:, -1], stable=True)
        repeated = torch.zeros(len(keys), dtype=torch.bool)
        repeated[places[1:]] = keys[1:] == keys[:-1]
        self._refuse(section, repeated, "is listed twice")
        return BackoffTable(keys, section.log_probs[places], section.log_backoffs[places])

    def _refuse(self, section: _Section, wrong: Tensor, why: str) -> None:
        """Raise DataError at the first n-gram that is wrong."""
        if wrong.any():
            place, order = int(wrong.to(torch.uint8).argmax()), len(section.words) // len(wrong)
            words = b" ".join(section.words[place * order : (place + 1) * order])
            raise self._error(section.line + place, f"the {order}-gram {_shown(words)} {why}")

    def _expect(self, marker: bytes) -> None:
        line = self._next(marker.decode())
        if line != marker:
            raise self._error(self.line, f"expected '{marker.decode()}', got {_shown(line)}")

    def _next(self, wanted: str) -> bytes:
        """The next line that is not blank."""
        for line in self.file:
            self.line += 1
            if stripped := line.strip():
                return stripped
        raise self._error(self.line, f"the file ends where {wanted} is expected")

    def _error(self, line: int, problem: str) -> DataError:
        return DataError(f"{self.name}, line {line}: {problem}; fix the ARPA file or export it again")


def _original(word: str) -> str:
    """The inverse of `_escaped`."""
    return "" if word == _EMPTY else _ESCAPED.sub(lambda form: chr(int(form[1] or form[2] or "5c", 16)), word)


def _shown(words: bytes) -> str:
    return repr(words[:60].decode("utf-8", "replace"))
