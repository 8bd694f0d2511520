"""Word vectors by CBOW and skip-gram with negative sampling: the model and its loss.

How it is trained fast is in `training.word_vectors`. Shape letters beside those of `types`: S blocks of words, L words
in a block, R vectors that a block reads, O vectors that it scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.models.base import OwnObjective, readable
from chainrule.models.capabilities import Embedder
from chainrule.nn.alias import AliasTable
from chainrule.types import Batch, Sequences

NOISE_POWER = 0.75  # of the frequencies: rare words come up as noise more often than in the text
END = -1  # stands for what is no token: windows end there

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


class Word2VecConfig(ModelConfig):
    algorithm: Literal["skip_gram", "cbow"] = Field(
        "skip_gram", description="predict the words around a word from it, or a word from those around it"
    )
    width: int = Field(100, ge=1, description="size of a vector")
    window: int = Field(5, ge=1, description="words on either side; each word draws its own window of 1 to so many")
    negatives: int = Field(5, ge=1, description="how much the noise weighs against the text: k")
    block: int = Field(8, ge=1, description="neighbouring words that share their words of noise")
    subsample: float = Field(
        1e-3, ge=0, lt=1, description="frequency above which occurrences are passed over at random; 0: none are"
    )
    unknown: int | None = Field(None, description="id that is no word and is passed over; filled in by training")
    ends: tuple[int, ...] = Field((), description="ids that no window reaches across; filled in by training")


class Lesson(NamedTuple):
    """A stretch of text with all that is random about its loss decided: N words are left of it."""

    words: Integers  # (N,)
    left: Integers  # (N,) how many words before each are in its window
    right: Integers  # (N,) and after it
    noise: Integers  # (N,) words of noise; those of a block are shared by its words

    def part(self, begin: int, end: int) -> Lesson:
        """Some of its words; windows end where they do."""
        room = np.arange(end - begin)
        return Lesson(
            self.words[begin:end],
            np.minimum(self.left[begin:end], room),
            np.minimum(self.right[begin:end], room[::-1]),
            self.noise[begin:end],
        )


class Blocks(NamedTuple):
    """A lesson as matrices: which vectors are read and scored, and how much each score counts."""

    read: Tensor  # (S, R) rows of the input vectors
    mix: Tensor | None  # (S, L, R) how they are mixed into the hidden vectors; none: they are these
    scored: Tensor  # (S, O) rows of the output vectors
    positive: Tensor  # (S, L, O) 1 where a word of the text should score high
    weight: Tensor  # (S, L, O) how often a score is asked for, as text or as noise


class Word2Vec(OwnObjective, Embedder):
    """A vector for every word, such that words in like company have like vectors: CBOW or skip-gram.

    For a word x of the text, a word c of its window and words of noise n ~ q, q(w) ∝ frequency(w)^¾, with input vectors
    v and output vectors u, the loss is

        −log σ(u_c · v_x) − k E_n log σ(−u_n · v_x)                          skip_gram, for each c in the window
        −log σ(u_x · h) − k E_n log σ(−u_n · h),  h = mean of v_c            cbow

    (Mikolov et al. 2013, "Distributed representations of words and phrases and their compositionality"). Every word
    draws the reach of its window, so that near words count more, and occurrences of words with a frequency f above a
    threshold t are kept with probability √(t/f) + t/f. E_n is a mean over words of noise that a block of neighbouring
    words share: each word brings one. So a block is a few products of small matrices (Ji et al. 2016), and the estimate
    stays unbiased. The gradient of cbow is that of the mean, without the factor that the original left out (İrsoy et
    al. 2021).
    """

    Config: ClassVar[type[ModelConfig]] = Word2VecConfig
    task: ClassVar[str] = "words"
    tokenizer: ClassVar[str] = "words:min=5"
    recipe: ClassVar[dict[str, Any]] = {
        "learning_rate": 0.025,
        "warmup": 0.0,
        "floor": 0.004,
        "epochs": 5,
        "batch_tokens": 16384,
        "segment": 256,
    }

    def __init__(self, config: Word2VecConfig) -> None:
        super().__init__(config)
        self.config = config
        self.inputs = nn.Parameter((torch.rand(config.vocabulary, config.width) - 0.5) / config.width)
        self.outputs = nn.Parameter(torch.zeros(config.vocabulary, config.width))
        with torch.no_grad():
            self.inputs[list(self.silent)] = 0.0  # what is never learnt should say nothing
        self.register_buffer("frequencies", torch.zeros(config.vocabulary))
        self._chances: Chances | None = None

    @property
    def silent(self) -> tuple[int, ...]:
        """Ids that are no words."""
        unknown = () if self.config.unknown is None else (self.config.unknown,)
        return (*unknown, *self.config.ends)

    @property
    def embedding_width(self) -> int:
        return self.config.width

    def embed(self, texts: Sequences) -> Tensor:
        return F.embedding(readable(texts), self.inputs)

    def tables(self) -> Iterator[nn.Parameter]:
        yield self.inputs
        yield self.outputs

    @torch.no_grad()
    def expect(self, log_frequencies: Tensor) -> None:
        """Which words are frequent decides how often each is passed over, and how often it is noise."""
        frequencies = log_frequencies.double().softmax(0)
        frequencies[list(self.silent)] = 0.0
        self.get_buffer("frequencies").copy_(frequencies / frequencies.sum())
        self._chances = None

    # The objective

    def chance(self, batch: Batch) -> Tensor:
        """(B, T, 3): of each token whether it is kept, how far its window reaches, and its word of noise."""
        return torch.rand(*batch.target.ids.shape, 3, dtype=torch.float64, device=batch.target.ids.device)

    def loss(self, batch: Batch, chance: Tensor, *, smoothing: float = 0.0) -> Tensor:
        rows = batch.target.ids.masked_fill(~batch.target.mask, END)
        ids = F.pad(rows, (0, 1), value=END).flatten().cpu().numpy()  # rows are one text, with ends between them
        drawn = F.pad(chance, (0, 0, 0, 1)).flatten(0, 1).cpu().numpy()
        blocks = self.blocks(self.lesson(ids, drawn))
        scores = self.hidden(blocks) @ F.embedding(blocks.scored, self.outputs).mT  # (S, L, O)
        return loss_of(scores, blocks)

    def lesson(self, ids: Integers, chance: Numbers) -> Lesson:
        """What training makes of tokens (N,), END among them perhaps, by chance (N, 3)."""
        chances = self._drawn_by()
        kept = chance[:, 0] < chances.kept[ids]
        words = ids[kept]
        sentence = np.cumsum(chances.is_end[ids])[kept]
        place = np.arange(len(words))
        begins = np.append(True, sentence[1:] != sentence[:-1])[: len(words)]
        ends = np.append(begins[1:], True)[: len(words)]
        first = np.maximum.accumulate(np.where(begins, place, 0))
        last = np.minimum.accumulate(np.where(ends, place, len(words))[::-1])[::-1]
        reach = 1 + (chance[kept, 1] * self.config.window).astype(np.int64)
        noise = chances.noise.at(torch.from_numpy(chance[kept, 2])).numpy()
        return Lesson(words, np.minimum(reach, place - first), np.minimum(reach, last - place), noise)

    def blocks(self, lesson: Lesson) -> Blocks:
        """A lesson as matrices, on the device of the model."""
        config, device = self.config, self.device
        count, length, window = len(lesson.words), config.block, config.window
        words, left, right, noise = (
            F.pad(torch.from_numpy(part), (0, -count % length)).to(device).view(-1, length)  # (S, L)
            for part in lesson
        )
        start = length * torch.arange(len(words), device=device)[:, None]
        place = start - window + torch.arange(length + 2 * window, device=device)  # (S, L + 2W) of the words around
        around = F.embedding(place.clamp(0, max(0, words.numel() - 1)), words.reshape(-1, 1))[..., 0]
        distance = (
            torch.arange(length + 2 * window, device=device) - window - torch.arange(length, device=device)[:, None]
        )
        near = (distance >= -left[..., None]) & (distance <= right[..., None]) & (distance != 0)  # (S, L, L + 2W)
        text = near.to(self.inputs.dtype)
        pairs = text.sum(-1, keepdim=True)  # (S, L, 1)
        real = (start + torch.arange(length, device=device) < count).to(text)  # (S, L)
        share = (config.negatives / real.sum(-1, keepdim=True) * real)[:, None]  # (S, 1, L) of each word of noise
        if config.algorithm == "skip_gram":
            positive = F.pad(text, (0, length))
            return Blocks(
                words,
                None,
                torch.cat([around, noise], 1),
                positive,
                positive + F.pad(pairs * share, (text.shape[-1], 0)),
            )
        asked = (pairs > 0).to(text)
        own = torch.eye(length, device=device, dtype=text.dtype) * asked
        positive = F.pad(own, (0, length))
        return Blocks(
            around,
            text / pairs.clamp(min=1),
            torch.cat([words, noise], 1),
            positive,
            positive + F.pad(asked * share, (length, 0)),
        )

    def hidden(self, blocks: Blocks) -> Tensor:
        """(S, L, D): what the scores are products with."""
        vectors = F.embedding(blocks.read, self.inputs)
        return vectors if blocks.mix is None else blocks.mix @ vectors

    def _drawn_by(self) -> Chances:
        if self._chances is None:
            self._chances = Chances.of(self.get_buffer("frequencies").double().cpu().numpy(), self.config)
        return self._chances

    def _load_from_state_dict(self, *rest: Any) -> None:
        self._chances = None
        super()._load_from_state_dict(*rest)


class Chances(NamedTuple):
    """What frequencies decide. The tables have a row more than the vocabulary, which END finds as their last."""

    kept: Numbers  # (V + 1,) probability that an occurrence is learnt from
    is_end: npt.NDArray[np.bool_]  # (V + 1,)
    noise: AliasTable

    @classmethod
    def of(cls, frequencies: Numbers, config: Word2VecConfig) -> Chances:
        relative = (
            config.subsample / np.maximum(frequencies, 1e-30) if config.subsample else np.full(len(frequencies), 1.0)
        )
        kept = np.append(np.sqrt(relative) + relative, 0.0)
        is_end = np.zeros(len(kept), dtype=np.bool_)
        is_end[[*config.ends, END]] = True
        kept[is_end] = 0.0
        if config.unknown is not None:
            kept[config.unknown] = 0.0
        # A model without frequencies, read from a file say, takes all words for equally frequent.
        raised = frequencies**NOISE_POWER if frequencies.any() else (kept[:-1] > 0).astype(np.float64)
        return cls(kept, is_end, AliasTable(raised))


def loss_of(scores: Tensor, blocks: Blocks) -> Tensor:
    """The sum over all scores: −log σ(s) = softplus(s) − s for text, −log σ(−s) = softplus(s) for noise."""
    return (blocks.weight * F.softplus(scores)).sum() - (blocks.positive * scores).sum()
