"""The prefix cache: states after the beginnings of prompts, so that equal beginnings are read once.

A prompt is read in chunks of a fixed length, and the state before the first and after each whole chunk is kept. Since
the chunks of a prompt do not depend on what is cached, a request computes the same numbers whether it finds a state or
not.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Step, map_state, tensors


class CachedPrefix(NamedTuple):
    """A number of tokens, and the step after them."""

    length: int
    step: Step


class PrefixCache:
    """States by model and tokens; the ones used least recently are dropped when the memory is full."""

    def __init__(self, chunk: int, max_bytes: int) -> None:
        self.chunk, self.max_bytes = chunk, max_bytes
        self.bytes = 0
        self._entries: OrderedDict[bytes, tuple[Step, int]] = OrderedDict()
        self._models: WeakKeyDictionary[AutoregressiveModel, int] = WeakKeyDictionary()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, model: AutoregressiveModel, tokens: Sequence[int]) -> CachedPrefix | None:
        """The state after the longest cached beginning, as a copy: `extend` may modify it in place."""
        found = None
        for length, key in self._keys(model, tokens):
            if key in self._entries:
                self._entries.move_to_end(key)
                found = CachedPrefix(length, self._entries[key][0])
        return None if found is None else found._replace(step=_copy(found.step))

    def keep(self, model: AutoregressiveModel, tokens: Sequence[int], step: Step) -> None:
        """Keep a copy of the step after these tokens, a whole number of chunks."""
        *_, (_, key) = self._keys(model, tokens)
        if key in self._entries:
            return
        kept = _copy(Step(step.logits[:, -1:], step.state))
        size = sum(tensor.numel() * tensor.element_size() for tensor in (kept.logits, *tensors(kept.state)))
        if size > self.max_bytes:
            return
        self._entries[key] = (kept, size)
        self.bytes += size
        while self.bytes > self.max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.bytes -= freed

    def _keys(self, model: AutoregressiveModel, tokens: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The key of each beginning of whole chunks, the empty one first: a digest of the model and all tokens."""
        if model not in self._models:
            self._models[model] = next(self._numbers)
        key = self._models[model].to_bytes(8, "little")
        yield 0, key
        for end in range(self.chunk, len(tokens) + 1, self.chunk):
            ids = np.asarray(tokens[end - self.chunk : end], dtype=np.int64).tobytes()
            key = hashlib.blake2b(key + ids, digest_size=16).digest()
            yield end, key


def _copy(step: Step) -> Step:
    return Step(step.logits.clone(), map_state(torch.clone, step.state))
