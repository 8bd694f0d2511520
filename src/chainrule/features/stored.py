"""Precomputed vectors of sources, cached on disk by fingerprint.

A frozen model gives the same vectors in every epoch, so they are computed once. A cache entry is identified by the
weights of the model and by all token ids. It is a memory-mapped float32 table of the concatenated sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.errors import DataError
from chainrule.types import Progress, Sequences

TOKENS_AT_ONCE = 4096  # tokens per forward pass, padding included

TokenRow: TypeAlias = Sequence[int] | npt.NDArray[Any]
Read: TypeAlias = Callable[[Sequences], Tensor]
"""(B, S) to (B, S, D)."""


@dataclass(frozen=True)
class StoredFeatures:
    """Precomputed vectors by source."""

    vectors: npt.NDArray[np.float32]  # (N, D), mapped
    spans: Mapping[bytes, slice]  # rows of each source, by its ids

    def find(self, source: Sequences) -> Tensor | None:
        """(B, S, D), zeros at padding; None unless all sources are stored."""
        ids, lengths = source.ids.cpu().numpy(), source.lengths.tolist()
        found = [self.spans.get(key(row[:length])) for row, length in zip(ids, lengths, strict=True)]
        vectors = np.zeros((*ids.shape, self.vectors.shape[1]), np.float32)
        for number, span in enumerate(found):
            if span is None:
                return None
            vectors[number, : lengths[number]] = self.vectors[span]
        return torch.from_numpy(vectors)

    def of(self, row: TokenRow) -> npt.NDArray[np.float32]:
        """(S, D) of a stored source."""
        return np.array(self.vectors[self.spans[key(row)]])

    def __deepcopy__(self, memo: object) -> Self:
        return self  # copies of a model share the memory map


def store_features(
    read: Read,
    model: str,
    width: int,
    rows: Iterable[TokenRow],
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> StoredFeatures:
    """Vectors of width `width` of all distinct rows by the model with fingerprint `model`: from the cache, or computed.

    `read` is called only if the cache has no entry.
    """
    different = sorted({key(row) for row in rows}, key=lambda one: (len(one), one))  # sorted by length for batching
    if not different or not different[0]:
        raise DataError("a source has no tokens to compute features of; end every source with EOS")
    text = hashlib.blake2b(b"".join(len(one).to_bytes(4, "little") + one for one in different), digest_size=16)
    entry = (cache or cache_root()) / fingerprint("features", model, text.hexdigest())
    edges = np.cumsum([0, *(len(one) // ID.itemsize for one in different)])
    spans = {one: slice(int(begin), int(end)) for one, begin, end in zip(different, edges, edges[1:], strict=False)}
    shape = (int(edges[-1]), width)

    def mapped(folder: Path) -> StoredFeatures:
        vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        if vectors.shape != shape:
            raise ValueError("the cached table has another shape")
        return StoredFeatures(vectors, spans)

    found = find(entry, mapped)
    if found is not None:
        return found
    with building(entry) as folder:
        table = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, shape)
        for group in _groups(different):
            source = Sequences.pack([np.frombuffer(one, ID).astype(np.int64) for one in group])
            with torch.inference_mode():
                vectors = read(source).float().cpu()
            for one, row in zip(group, vectors, strict=True):
                table[spans[one]] = row[: len(one) // ID.itemsize].numpy()
            if progress is not None:
                progress(spans[group[-1]].stop, shape[0])
        table.flush()
    return mapped(entry)


ID = np.dtype("<i4")


def key(row: TokenRow) -> bytes:
    """The key of a source: its ids as bytes."""
    return np.asarray(row, dtype=ID).tobytes()


def _groups(rows: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Batches of rows, sorted by length, of at most TOKENS_AT_ONCE tokens."""
    group: list[bytes] = []
    for row in rows:
        if group and (len(group) + 1) * (len(row) // ID.itemsize) > TOKENS_AT_ONCE:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
