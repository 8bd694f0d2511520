"""Encoded text: token ids in memory-mapped files, cached by fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.config import DataConfig
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.drift import drift_warnings
from chainrule.data.shards import TOKENS, counted_tokenizer, description, encode
from chainrule.data.source import TextSource, Unit, count, split, with_progress
from chainrule.data.splits import TRAINING, Part, fractions_of
from chainrule.data.text import file_identity, open_source
from chainrule.data.token_files import Offsets, TextCounts, Tokens, encode_piece, read_tokens, token_type
from chainrule.data.workers import local_workers
from chainrule.errors import DataError
from chainrule.tokenizers import is_counted, load_tokenizer, train_tokenizer
from chainrule.tokenizers.base import Tokenizer, well_formed

if TYPE_CHECKING:  # types.py imports torch, which reading data does not need
    from chainrule.types import Progress

Report = Callable[[str, int, int], None]
"""A progress callback with the name of the stage, the amount done and the total (see `types.Progress`)."""

COUNTED = 1 << 22  # tokens counted at once


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A text as tokens, with the counts that convert nats per token to units comparable across tokenizers."""

    tokens: Tokens  # (N,) in the smallest unsigned type for the vocabulary
    offsets: Offsets | None  # (documents + 1,) starts of the documents, each ending with EOS; None for a stream
    bytes: int  # of the text in UTF-8; of documents with one line end each, which EOS stands for
    characters: int
    words: int  # separated by white space, plus one per line end of a stream or per document
    unknown: int  # out-of-vocabulary tokens
    fingerprint: str
    closed: bool = True  # whether documents end with EOS

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def unit(self) -> Unit:
        return "stream" if self.offsets is None else "documents"

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / len(self.tokens)

    def counts(self, vocabulary: int) -> npt.NDArray[np.int64]:
        """Return the frequency of each token; the corpus need not fit into memory."""
        counts = np.zeros(vocabulary, dtype=np.int64)
        for begin in range(0, len(self), COUNTED):
            counts += np.bincount(self.tokens[begin : begin + COUNTED], minlength=vocabulary)
        return counts

    def first(self, count: int, tokenizer: Tokenizer | None = None) -> Corpus:
        """Return the first `count` tokens, or the documents that are complete within them.

        Its counts of bytes, characters, words and unknown tokens are proportional to its share of the decoded text if
        a tokenizer is given, which is exact for the bytes of a stream, and else to its share of the tokens.
        """
        if count >= len(self):
            return self
        offsets = self.offsets
        if offsets is not None:
            offsets = offsets[: max(2, int(np.searchsorted(offsets, count, side="right")))]
            count = int(offsets[-1])
        tokens = self.tokens[:count]
        share = count / len(self)
        if tokenizer is not None:
            decoded = (len(tokenizer.decode(ids.tolist()).encode()) for ids in (tokens, self.tokens))
            share = next(decoded) / next(decoded)
        counts = {name: round(share * getattr(self, name)) for name in ("bytes", "characters", "words", "unknown")}
        name = fingerprint("first", self.fingerprint, count)
        return replace(self, tokens=tokens, offsets=offsets, fingerprint=name, **counts)

    def documents(self) -> Iterator[Tokens]:
        """Yield the tokens of each document; a stream is one document."""
        edges = [0, len(self)] if self.offsets is None else self.offsets.tolist()
        return (self.tokens[begin:end] for begin, end in pairwise(edges))

    @classmethod
    def build(
        cls,
        source: TextSource,
        tokenizer: Tokenizer,
        part: Part | None = None,
        *,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> Corpus:
        """Encode a source or a part of it, unless it is cached. Memory is bounded whatever the length of the text.

        A large text is encoded in shards, by several workers; see `shards.encode`.
        """
        root = cache or cache_root()
        name = fingerprint(TOKENS, source.description(), part, description(tokenizer))
        entry = root / name
        if (files := find(entry, read_tokens)) is None:
            files = encode(source, tokenizer, part, entry, progress=progress)
        if not len(files.tokens):
            raise DataError(f"tokenizer {tokenizer.kind!r} finds no tokens in {source.spec!r}; check the data")
        return cls(tokens=files.tokens, offsets=files.offsets, fingerprint=name, **asdict(files.counts))

    @classmethod
    def of_text(cls, text: str, tokenizer: Tokenizer, unit: Unit = "stream") -> Corpus:
        """Encode a short text in memory, as a stream or as one document."""
        text = well_formed(text)
        if not text:
            raise DataError("the text is empty; give at least one character")
        counts = TextCounts()
        ids = encode_piece(text, tokenizer, unit, counts)
        return cls(
            tokens=ids.astype(token_type(tokenizer.vocabulary)),
            offsets=None if unit == "stream" else np.array([0, len(ids)]),
            fingerprint=fingerprint("text", text, unit, description(tokenizer)),
            **asdict(counts),
        )

    @classmethod
    def of_tokens(cls, tokens: npt.ArrayLike, vocabulary: int) -> Corpus:
        """Return tokens that do not come from a text as a stream; a token counts as a byte and as a word."""
        ids = np.asarray(tokens, dtype=token_type(vocabulary))
        return cls._plain(ids, None, fingerprint("ids", ids.tolist()))

    @classmethod
    def of_rows(cls, rows: Sequence[npt.ArrayLike], vocabulary: int, *, closed: bool = True) -> Corpus:
        """Return rows of such tokens as documents; `closed` if they end with EOS."""
        kind = np.dtype(token_type(vocabulary))
        arrays = [np.asarray(row, dtype=kind) for row in rows]
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        tokens = np.concatenate([*arrays, np.zeros(0, kind)])
        seen = hashlib.blake2b(tokens.astype("<u4").tobytes() + offsets.tobytes(), digest_size=16)
        return cls._plain(tokens, offsets, fingerprint("rows", seen.hexdigest()), closed=closed)

    @classmethod
    def _plain(cls, tokens: Tokens, offsets: Offsets | None, name: str, *, closed: bool = True) -> Corpus:
        counts = dict.fromkeys(("bytes", "characters", "words"), len(tokens))
        return cls(tokens=tokens, offsets=offsets, **counts, unknown=0, fingerprint=name, closed=closed)


class Prepared(NamedTuple):
    """The encoded splits for training and evaluation."""

    tokenizer: Tokenizer
    train: Corpus
    valid: Corpus
    test: Corpus | None
    config: DataConfig  # completed by what was found in the data: the unit, and the splits of a data set
    warnings: tuple[str, ...]  # one line each


def prepare(
    config: DataConfig,
    tokenizer_spec: str,
    *,
    tokenizer: Tokenizer | None = None,
    cache: Path | None = None,
    progress: Report | None = None,
) -> Prepared:
    """Train the tokenizer on the training part unless one is given, and encode all splits. Results are cached.

    Validation data is `config.valid`, or the validation split of the data set, or a fraction of the training data; test
    data is `config.test`, or a fraction of the training data if `config.test_fraction` is set, or the test split of the
    data set if it has one. All splits have the unit of the training data, stream or documents.
    """
    with local_workers(config.workers):
        return _prepare(config, tokenizer_spec, tokenizer, cache, progress)


def _prepare(
    config: DataConfig, tokenizer_spec: str, tokenizer: Tokenizer | None, cache: Path | None, progress: Report | None
) -> Prepared:
    def stage(name: str) -> Progress | None:
        return None if progress is None else partial(progress, name)

    train = open_source(config.train, config)
    config = with_own_splits(train, config.model_copy(update={"unit": train.unit}))
    warnings = list(train.warnings)
    splits: dict[str, TextSource] = {}
    for name, spec in (("validation", config.valid), ("test", config.test)):
        if spec is not None:
            splits[name] = open_source(spec, config)
            warnings += [*splits[name].warnings, *shared_origins(train.origins(), splits[name].origins(), name)]
    parts = cut_off(train, config, list(splits), cache=cache, progress=stage("counting"))
    warnings += drift_warnings(train, parts, config, cache=cache)
    if tokenizer is None:
        part = parts.get(TRAINING)
        tokenizer = tokenizer_of(tokenizer_spec, [train], part, cache=cache, progress=stage("tokenizer"))

    def encoded(name: str) -> Corpus:
        source = splits.get(name, train)
        return Corpus.build(source, tokenizer, parts.get(name), cache=cache, progress=stage(f"{name} data"))

    return Prepared(
        tokenizer,
        encoded(TRAINING),
        encoded("validation"),
        encoded("test") if "test" in splits or "test" in parts else None,
        config,
        tuple(dict.fromkeys(warnings)),
    )


def with_own_splits(train: TextSource, config: DataConfig) -> DataConfig:
    """Name the validation and test splits of the data set, if it has them, where the settings name none."""
    found: dict[str, str] = {}
    if config.valid is None and (valid := train.held_out("validation")) is not None:
        found["valid"] = valid.spec
    if config.test is None and config.test_fraction is None and (test := train.held_out("test")) is not None:
        found["test"] = test.spec
    return config.model_copy(update=found)


def cut_off(
    train: TextSource, config: DataConfig, given: Sequence[str], *, cache: Path | None, progress: Progress | None
) -> dict[str, Part]:
    """Return the parts of the training data by split, if validation or test data is taken from it; else empty.

    `given` names the splits that have data of their own.
    """
    fractions = fractions_of(config, given)
    return split(train, fractions, config.valid_from, cache=cache, progress=progress) if fractions else {}


def encode_file(
    config: DataConfig, tokenizer: Tokenizer, spec: str, *, cache: Path | None = None, progress: Progress | None = None
) -> Corpus:
    """Encode other data with an existing tokenizer and the field, unit and normalisation of `config`."""
    with local_workers(config.workers):
        return Corpus.build(open_source(spec, config), tokenizer, cache=cache, progress=progress)


def tokenizer_of(
    spec: str,
    sources: Sequence[TextSource],
    part: Part | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Tokenizer:
    """Train one tokenizer on all sources, or on the same part of each, unless it is cached."""
    file = Path(spec.partition(":")[2])
    stamp = file_identity(file) if file.is_file() else None  # of a tokenizer that is loaded, not trained
    texts = [source.description() for source in sources]
    entry = (cache or cache_root()) / fingerprint("tokenizer 2", spec, stamp, texts, part)
    known = find(entry, lambda folder: load_tokenizer(folder / "tokenizer.json"))
    if known is not None:
        return known

    def pieces() -> Iterator[str]:
        found = chain.from_iterable(source.pieces(part) for source in sources)
        if progress is None:
            return found
        totals = (count(source, cache=cache) if part is None else part.size for source in sources)
        return with_progress(found, sources[0].unit, sum(totals), progress)

    if is_counted(spec) and any(len(source.shards()) > 1 for source in sources):
        tokenizer = counted_tokenizer(spec, sources, part, cache=cache or cache_root(), progress=progress)
    else:
        tokenizer = train_tokenizer(spec, pieces)
    with building(entry) as folder:
        tokenizer.save(folder / "tokenizer.json")
    return tokenizer


def shared_origins(train: frozenset[str], other: frozenset[str], role: str) -> list[str]:
    """Return a warning if validation or test data is also training data."""
    shared = sorted(train & other)
    if not shared:
        return []
    return [f"{role} data and training data share {shared[0]!r}: {role} metrics do not measure generalisation"]
