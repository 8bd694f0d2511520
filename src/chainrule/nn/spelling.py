"""Words from their characters: where they are, which of them are known, and what their spelling tells.

A sentence is a row of character ids in which every word is closed by a separator. So a model that reads it needs no
vocabulary of words beside it, and a word that it has never met still has a spelling.

Shape letters: B rows, L characters, W words of the longest sentence, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.types import Sequences, length_mask

MULTIPLIER = 6364136223846793005  # of Knuth's MMIX; powers of it spread over all 64 bits


class Words(NamedTuple):
    """Where the words of sentences are."""

    owners: Tensor  # (B, L) the word that a character belongs to, its separator too; W past the end of a row
    places: Tensor  # (B, L) how many characters of its word stand before it
    counts: Tensor  # (B,) words in each row; a last one need not be closed

    @classmethod
    def find(cls, sentences: Sequences, separator: int) -> Words:
        ends = (sentences.ids == separator) & sentences.mask
        owners = ends.long().cumsum(1) - ends.long()
        counts = owners.gather(1, sentences.lengths[:, None] - 1)[:, 0] + 1
        owners = owners.masked_fill(~sentences.mask, int(counts.max()))
        where = torch.arange(owners.shape[1], device=owners.device).expand_as(owners)
        begins = F.pad(ends[:, :-1], (1, 0), value=True)
        return cls(owners, where - torch.where(begins, where, 0).cummax(1).values, counts)

    @property
    def most(self) -> int:
        return int(self.counts.max())

    def fingerprints(self, sentences: Sequences, separator: int) -> Tensor:
        """(B, W): a 64-bit number for each word that follows from its characters, Σ_k (c_k + 1) Mᵏ, with overflow."""
        powers = torch.full((sentences.ids.shape[1],), MULTIPLIER, device=sentences.ids.device).cumprod(0)
        ids = (sentences.ids + 1).masked_fill(sentences.ids == separator, 0)
        found = torch.zeros(len(ids), self.most + 1, dtype=torch.int64, device=ids.device)
        return found.scatter_add_(1, self.owners, ids * powers[self.places])[:, :-1].contiguous()


class SpelledWords(nn.Module):
    """A vector for each word of a sentence: of what it is, if it is known, and of how it is written.

        w_n = [E[word n]; max_l ReLU(K ∗ e(c))_l]        l over the characters of word n and its separator

    The convolution and the maximum over a word's characters find beginnings and ends such as "-ing" (Ma & Hovy, 2016).
    Words that were met less than twice share one vector with those never met; so do, in training, some of the others.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        separator: int,
        words: int,
        embedding: int,
        characters: int,
        spelling: int,
        kernel: int,
        word_dropout: float,
    ) -> None:
        super().__init__()
        self.separator, self.word_dropout = separator, word_dropout
        self.characters = nn.Parameter(torch.randn(vocabulary, characters) * 0.3)
        self.convolution = nn.Conv1d(characters, spelling, kernel, padding=kernel // 2)
        self.table = nn.Parameter(torch.randn(words + 1, embedding) * 0.1)  # the first for all that are not known
        self.known: Tensor
        self.register_buffer("known", torch.zeros(words, dtype=torch.int64))  # fingerprints, ascending
        self.width = embedding + spelling

    def know(self, words: Sequences) -> None:
        """Learn which words are known: a row of characters for each, with or without its separator."""
        found = Words.find(words, self.separator).fingerprints(words, self.separator)[:, 0]
        self.known.copy_(found.sort().values)

    def forward(self, sentences: Sequences) -> tuple[Tensor, Tensor]:
        """The vectors of all words (B, W, D), zeros past the last of a row; and how many there are, (B,)."""
        words = Words.find(sentences, self.separator)
        vectors = torch.cat([self._meanings(sentences, words), self._spellings(sentences, words)], -1)
        real = length_mask(words.counts, words.most)
        return vectors * real[..., None], words.counts

    def _meanings(self, sentences: Sequences, words: Words) -> Tensor:
        fingerprints = words.fingerprints(sentences, self.separator)
        if not len(self.known):
            return F.embedding(torch.zeros_like(fingerprints), self.table)
        places = torch.searchsorted(self.known, fingerprints).clamp(max=len(self.known) - 1)
        ids = torch.where(self.known[places] == fingerprints, places + 1, 0)
        if self.training and self.word_dropout:
            ids = ids * (torch.rand(ids.shape, device=ids.device) >= self.word_dropout)
        return F.embedding(ids, self.table)

    def _spellings(self, sentences: Sequences, words: Words) -> Tensor:
        ids = sentences.ids.masked_fill(~sentences.mask, 0)
        embedded = F.embedding(ids, self.characters) * sentences.mask[..., None]  # (B, L, ·)
        found = F.relu(self.convolution(embedded.transpose(1, 2)).transpose(1, 2))[:, : ids.shape[1]]
        owners = words.owners[..., None].expand_as(found)
        empty = found.new_zeros(len(ids), words.most + 1, found.shape[-1])
        return empty.scatter_reduce(1, owners, found, "amax")[:, :-1]
