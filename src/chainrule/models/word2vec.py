"""Word vectors by CBOW and skip-gram with negative sampling: the model and its loss.

How they are trained fast is in `training.word_vectors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import OwnObjective, readable
from chainrule.interface.capabilities import Embedder
from chainrule.nn.negative_sampling import AliasTable, Blocks, Integers, Lesson, cbow_blocks, loss_of, skip_gram_blocks
from chainrule.types import Batch, Sequences

NOISE_POWER = 0.75  # of the frequencies: rare words come up as noise more often than in the text
END = -1  # stands for what is no token: windows end there

Numbers = npt.NDArray[np.float64]


class Word2VecConfig(ModelConfig):
    algorithm: Literal["skip_gram", "cbow"] = Field(
        "skip_gram", description="predict the words around a word from it, or a word from those around it"
    )
    width: int = Field(100, ge=1, description="size of a vector")
    window: int = Field(5, ge=1, description="words on either side; each word draws its own window of 1 to so many")
    negatives: int = Field(5, ge=1, description="how much the noise weighs against the text: k")
    noise: int | None = Field(
        None, ge=1, description="words of noise that are drawn for each word; none: 4 for skip_gram, 1 for cbow"
    )
    block: int = Field(8, ge=1, description="neighbouring words that share their words of noise")
    subsample: float = Field(
        1e-3, ge=0, lt=1, description="frequency above which occurrences are passed over at random; 0: none are"
    )
    unknown: int | None = Field(None, description="id that is no word and is passed over; filled in by training")
    ends: tuple[int, ...] = Field((), description="ids that no window reaches across; filled in by training")

    @property
    def drawn(self) -> int:
        """Words of noise for each word; skip_gram asks about them once for every word of a window."""
        return self.noise or (4 if self.algorithm == "skip_gram" else 1)


class Word2Vec(OwnObjective, Embedder):
    """A vector for every word, such that words in like company have like vectors: CBOW or skip-gram.

    For a word x of the text, a word c of its window and words of noise n ~ q, q(w) ∝ frequency(w)^¾, with input vectors
    v and output vectors u, the loss is

        −log σ(u_c · v_x) − k E_n log σ(−u_n · v_x)                          skip_gram, for each c in the window
        −log σ(u_x · h) − k E_n log σ(−u_n · h),  h = mean of v_c            cbow

    (Mikolov et al. 2013, "Distributed representations of words and phrases and their compositionality"). Every word
    draws the reach of its window, so that near words count more, and occurrences of words with a frequency f above a
    threshold t are kept with probability √(t/f) + t/f. E_n is a mean over words of noise that a block of neighbouring
    words share. So a block is a few products of small matrices (Ji et al. 2016), and the estimate
    stays unbiased. The gradient of cbow is that of the mean, without the factor that the original left out (İrsoy et
    al. 2021).
    """

    Config: ClassVar[type[ModelConfig]] = Word2VecConfig
    task: ClassVar[str] = "words"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "check_model": "it scores pairs of words and defines no distribution over sequences"
    }
    tokenizer: ClassVar[str] = "words:min=5"
    recipe: ClassVar[dict[str, Any]] = {
        "learning_rate": 0.025,
        "warmup": 0.0,
        "floor": 0.004,
        "epochs": 5,
        "batch_tokens": 16384,
        "segment": 256,
    }

    config: Word2VecConfig

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
    def chances(self) -> int:
        """Random numbers that a token needs: whether it is kept, how far its window reaches, its C words of noise."""
        return 2 + self.config.drawn

    @property
    def embedding_width(self) -> int:
        return self.config.width

    def embed(self, texts: Sequences) -> Tensor:
        return F.embedding(readable(texts), self.inputs)

    def tables(self) -> Iterator[nn.Parameter]:
        yield self.inputs
        yield self.outputs

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        """Which words are frequent decides how often each is passed over, and how often it is noise."""
        frequencies = log_frequencies.double().softmax(0)
        frequencies[list(self.silent)] = 0.0
        self.get_buffer("frequencies").copy_(frequencies / frequencies.sum())
        self._chances = None

    # The objective

    def draw_noise(self, batch: Batch) -> Tensor:
        """(B, T, 2 + C)."""
        return torch.rand(*batch.target.ids.shape, self.chances, dtype=torch.float64, device=batch.target.ids.device)

    def loss(self, batch: Batch, chance: Tensor, *, smoothing: float = 0.0) -> Tensor:
        rows = batch.target.ids.masked_fill(~batch.target.mask, END)
        ids = F.pad(rows, (0, 1), value=END).flatten().cpu().numpy()  # rows are one text, with ends between them
        drawn = F.pad(chance, (0, 0, 0, 1)).flatten(0, 1).cpu().numpy()
        blocks = self.blocks(self.lesson(ids, drawn))
        scores = self.hidden(blocks) @ F.embedding(blocks.scored, self.outputs).mT  # (S, L, O)
        return loss_of(scores, blocks)

    def lesson(self, ids: Integers, chance: Numbers) -> Lesson:
        """What training makes of tokens (N,), END among them perhaps, by chance (N, 2 + C)."""
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
        noise = chances.noise.at(torch.from_numpy(chance[kept, 2:])).numpy()
        return Lesson(words, np.minimum(reach, place - first), np.minimum(reach, last - place), noise)

    def blocks(self, lesson: Lesson) -> Blocks:
        """A lesson as matrices."""
        config = self.config
        cut = skip_gram_blocks if config.algorithm == "skip_gram" else cbow_blocks
        return cut(lesson, config.block, config.window, config.negatives, like=self.inputs)

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
        threshold = config.subsample or 1.0  # no word is that frequent
        relative = threshold / np.maximum(frequencies, 1e-30)
        kept = np.append(np.sqrt(relative) + relative, 0.0)
        is_end = np.zeros(len(kept), dtype=np.bool_)
        is_end[[*config.ends, END]] = True
        kept[is_end] = 0.0
        if config.unknown is not None:
            kept[config.unknown] = 0.0
        # A model without frequencies, read from a file say, takes all words for equally frequent.
        raised = frequencies**NOISE_POWER if frequencies.any() else (kept[:-1] > 0).astype(np.float64)
        return cls(kept, is_end, AliasTable(raised))
