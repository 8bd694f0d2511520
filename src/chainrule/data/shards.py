"""Encoding and counting a text in shards: independently of each other, by several workers, each kept in the cache.

Where a text is divided depends on the text only (see `TextSource.shards`), so that the tokens are the same with any
number of workers. A shard that was encoded before an interruption, or for another text that has the same file, is not
encoded again. When all are there, they are joined and deleted.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from chainrule.data.cache import building, find, fingerprint
from chainrule.data.source import TextSource, count, sizes, with_progress
from chainrule.data.splits import Part
from chainrule.data.token_files import TokenFiles, join_tokens, read_tokens, write_tokens
from chainrule.data.workers import results
from chainrule.errors import DataError
from chainrule.tokenizers import count_for_tokenizer, tokenizer_from_counts
from chainrule.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from chainrule.types import Progress

TOKENS = "tokens 2"  # of entries of the cache; 2: as if a text was encoded as a whole


class Shard(NamedTuple):
    """The part of a text that one worker encodes."""

    source: TextSource
    part: Part | None
    size: int  # characters of a stream, or documents
    entry: Path  # in the cache


def encode(
    source: TextSource,
    tokenizer: Tokenizer,
    part: Part | None,
    entry: Path,
    *,
    progress: Progress | None = None,
) -> TokenFiles:
    """Encode a source or a part of it into an entry of the cache."""
    cache = entry.parent
    sources = source.shards()
    if len(sources) == 1:
        size = 0 if progress is None else count(source, cache=cache) if part is None else part.size
        return _encode_pieces(Shard(source, part, size, entry), tokenizer, progress)
    shards = _divided(sources, tokenizer, part, cache)
    total = sum(shard.size for shard in shards)
    missing = [shard for shard in shards if find(shard.entry, read_tokens) is None]
    done = total - sum(shard.size for shard in missing)
    for index, _ in results(_encode_shard, [(shard, tokenizer) for shard in missing]):
        done += missing[index].size
        if progress is not None:
            progress(done, total)
    with building(entry) as folder:
        parts = [_found(shard.entry) for shard in shards]
        join_tokens(folder, parts, tokenizer, source.unit)
    for shard in shards:
        shutil.rmtree(shard.entry, ignore_errors=True)
    return _found(entry)


def _divided(sources: Sequence[TextSource], tokenizer: Tokenizer, part: Part | None, cache: Path) -> list[Shard]:
    """The shards of a part that have text in it."""
    tokens = description(tokenizer)
    return [
        Shard(source, chosen, size, cache / fingerprint(TOKENS, source.description(), chosen, tokens))
        for source, chosen, size in divided(sources, part, cache=cache)
    ]


def divided(
    sources: Sequence[TextSource], part: Part | None, *, cache: Path
) -> list[tuple[TextSource, Part | None, int]]:
    """The shards that have text in a part, which part of each, none if it is all, and its size."""
    found: list[tuple[TextSource, Part | None, int]] = []
    counted = sizes(sources, cache=cache)
    for source, size, end in zip(sources, counted, accumulate(counted), strict=True):
        chosen = None if part is None else part.within(end - size, end)
        if chosen is not None and chosen.size == size:
            chosen = None
        if taken := size if chosen is None else chosen.size:
            found.append((source, chosen, taken))
    return found


def _encode_shard(shard: Shard, tokenizer: Tokenizer) -> None:
    _encode_pieces(shard, tokenizer, None)


def _encode_pieces(shard: Shard, tokenizer: Tokenizer, progress: Progress | None) -> TokenFiles:
    pieces = shard.source.pieces(shard.part)
    if progress is not None:
        pieces = with_progress(pieces, shard.source.unit, shard.size, progress)
    with building(shard.entry) as folder:
        write_tokens(folder, pieces, tokenizer, shard.source.unit)
    return _found(shard.entry)


def _found(entry: Path) -> TokenFiles:
    if (files := find(entry, read_tokens)) is None:
        raise DataError(
            f"the cache folder {str(entry.parent)!r} loses what is written to it; set CHAINRULE_CACHE to another"
        )
    return files


def description(tokenizer: Tokenizer) -> tuple[object, ...]:
    """Plain values that determine the ids of a text."""
    return (tokenizer.kind, tokenizer.to_json())


def counted_tokenizer(
    spec: str, sources: Sequence[TextSource], part: Part | None, *, cache: Path, progress: Progress | None = None
) -> Tokenizer:
    """Train a tokenizer on the same part of every source, by counting their shards; see `tokenizers.is_counted`."""
    shards = [shard for source in sources for shard in divided(source.shards(), part, cache=cache)]
    total, done = sum(size for *_, size in shards), 0
    counts: Counter[str] = Counter()
    for index, found in results(_count_shard, [(spec, source, chosen) for source, chosen, _ in shards]):
        counts.update(found)
        done += shards[index][2]
        if progress is not None:
            progress(done, total)
    return tokenizer_from_counts(spec, counts)


def _count_shard(spec: str, source: TextSource, part: Part | None) -> Counter[str]:
    return count_for_tokenizer(spec, source.pieces(part))
