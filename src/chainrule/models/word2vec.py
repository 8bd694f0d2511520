"""Word vectors by CBOW and skip-gram with negative sampling: the model, its loss, and its gradient steps.

A step touches a few rows of two large tables, and training processes a million words per second
(docs/adr/0015-word-vectors.md). So the model applies its own updates, by plain gradient descent as published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import SparseUpdates, readable
from chainrule.interface.capabilities import Embedder
from chainrule.nn.negative_sampling import (
    AliasTable,
    Blocks,
    Integers,
    SampledWindows,
    cbow_blocks,
    descend,
    hidden_vectors,
    sampling_loss,
    skip_gram_blocks,
)
from chainrule.types import Batch, Sequences

NOISE_POWER = 0.75  # of the frequencies: rare words are more frequent as noise than in the text
END = -1  # marks a boundary between texts, which no window crosses

Numbers = npt.NDArray[np.float64]


class Word2VecConfig(ModelConfig):
    algorithm: Literal["skip_gram", "cbow"] = Field(
        "skip_gram", description="predict the context from the word, or the word from its context"
    )
    width: int = Field(100, ge=1, description="width of the word vectors")
    window: int = Field(5, ge=1, description="maximum words on either side; each word draws its own window size")
    negatives: int = Field(5, ge=1, description="weight of the noise relative to the text: k")
    noise: int | None = Field(
        None, ge=1, description="noise words drawn for each word; none: 4 for skip_gram, 1 for cbow"
    )
    block: int = Field(8, ge=1, description="consecutive words that share their noise words")
    subsample: float = Field(
        1e-3, ge=0, lt=1, description="frequency above which occurrences are randomly skipped; 0: none"
    )
    unknown: int | None = Field(None, description="id of the unknown token, which is skipped; set by training")
    ends: tuple[int, ...] = Field((), description="ids that no window crosses; set by training")

    @property
    def drawn(self) -> int:
        """Noise words for each word; skip_gram scores them once for every word of a window."""
        return self.noise or (4 if self.algorithm == "skip_gram" else 1)


class Word2Vec(SparseUpdates, Embedder):
    """Word vectors by skip-gram or CBOW with negative sampling.

    For a word x of the text, a word c of its window and noise words n ~ q, q(w) ∝ frequency(w)^¾, with input vectors
    v and output vectors u, the loss is

        −log σ(u_c · v_x) − k E_n log σ(−u_n · v_x)                          skip_gram, for each c in the window
        −log σ(u_x · h) − k E_n log σ(−u_n · h),  h = mean of v_c            cbow

    (Mikolov et al. 2013, "Distributed representations of words and phrases and their compositionality"). Every word
    draws the size of its window, so that near words count more, and occurrences of words with a frequency f above a
    threshold t are kept with probability √(t/f) + t/f. E_n is a mean over noise words that a block of consecutive words
    shares. So a block is a few products of small matrices (Ji et al. 2016), and the estimate stays unbiased. The
    gradient of cbow is the exact one, with the factor 1/|window| that the original code omits (İrsoy et al. 2021).
    """

    Config: ClassVar[type[ModelConfig]] = Word2VecConfig
    task: ClassVar[str] = "word_vectors"
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
            self.inputs[list(self.non_words)] = 0.0  # never trained
        self.register_buffer("frequencies", torch.zeros(config.vocabulary))
        self._sampling: SamplingTables | None = None

    @property
    def non_words(self) -> tuple[int, ...]:
        """Ids that are not words."""
        unknown = () if self.config.unknown is None else (self.config.unknown,)
        return (*unknown, *self.config.ends)

    @property
    def noise_width(self) -> int:
        """One number for whether a token is kept, one for the size of its window, and C for its noise words."""
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
        """Store the frequencies, which determine how often each word is skipped and how often it is noise."""
        frequencies = log_frequencies.double().softmax(0)
        frequencies[list(self.non_words)] = 0.0
        self.get_buffer("frequencies").copy_(frequencies / frequencies.sum())
        self._sampling = None

    # The objective

    def draw_noise(self, batch: Batch) -> Tensor:
        """(B, T, 2 + C)."""
        return torch.rand(
            *batch.target.ids.shape, self.noise_width, dtype=torch.float64, device=batch.target.ids.device
        )

    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        rows = batch.target.ids.masked_fill(~batch.target.mask, END)
        ids = F.pad(rows, (0, 1), value=END).flatten().cpu().numpy()  # one text with boundaries between the rows
        drawn = F.pad(noise, (0, 0, 0, 1)).flatten(0, 1).cpu().numpy()
        blocks = self.blocks(self.sample_windows(ids, drawn))
        scores = hidden_vectors(self.inputs, blocks) @ F.embedding(blocks.scored, self.outputs).mT  # (S, L, O)
        return sampling_loss(scores, blocks)

    def sample_windows(self, ids: Integers, noise: Numbers) -> SampledWindows:
        """Subsample tokens (N,), which may contain END, and draw their windows and noise words by noise (N, 2 + C)."""
        sampling = self._sampling_tables()
        kept = noise[:, 0] < sampling.kept[ids]
        words = ids[kept]
        sentence = np.cumsum(sampling.is_end[ids])[kept]
        place = np.arange(len(words))
        begins = np.append(True, sentence[1:] != sentence[:-1])[: len(words)]
        ends = np.append(begins[1:], True)[: len(words)]
        first = np.maximum.accumulate(np.where(begins, place, 0))
        last = np.minimum.accumulate(np.where(ends, place, len(words))[::-1])[::-1]
        size = 1 + (noise[kept, 1] * self.config.window).astype(np.int64)
        drawn = sampling.noise.at(torch.from_numpy(noise[kept, 2:])).numpy()
        return SampledWindows(words, np.minimum(size, place - first), np.minimum(size, last - place), drawn)

    def blocks(self, windows: SampledWindows) -> Blocks:
        """Return sampled windows as matrices."""
        config = self.config
        cut = skip_gram_blocks if config.algorithm == "skip_gram" else cbow_blocks
        return cut(windows, config.block, config.window, config.negatives, like=self.inputs)

    # Gradient steps

    def update(self, ids: Integers, noise: Numbers, learning_rate: float) -> float:
        windows = self.sample_windows(ids, noise)
        usable = self.device.type == "cpu" and self.inputs.dtype == torch.float32
        if usable and find_spec("numba") is not None:
            return compiled_step(self, threads=torch.get_num_threads())(windows, learning_rate)
        return matrix_step(self)(windows, learning_rate)

    def _sampling_tables(self) -> SamplingTables:
        if self._sampling is None:
            self._sampling = SamplingTables.of(self.get_buffer("frequencies").double().cpu().numpy(), self.config)
        return self._sampling

    def _load_from_state_dict(self, *rest: Any) -> None:
        self._sampling = None
        super()._load_from_state_dict(*rest)


class SamplingTables(NamedTuple):
    """What follows from word frequencies. Tables have one more row than the vocabulary: END = −1 indexes the last."""

    kept: Numbers  # (V + 1,) probability that an occurrence is kept
    is_end: npt.NDArray[np.bool_]  # (V + 1,)
    noise: AliasTable

    @classmethod
    def of(cls, frequencies: Numbers, config: Word2VecConfig) -> SamplingTables:
        threshold = config.subsample or 1.0  # no word is that frequent
        relative = threshold / np.maximum(frequencies, 1e-30)
        kept = np.append(np.sqrt(relative) + relative, 0.0)
        is_end = np.zeros(len(kept), dtype=np.bool_)
        is_end[[*config.ends, END]] = True
        kept[is_end] = 0.0
        if config.unknown is not None:
            kept[config.unknown] = 0.0
        # Without frequencies, as in a model read from a file, all words count as equally frequent.
        raised = frequencies**NOISE_POWER if frequencies.any() else (kept[:-1] > 0).astype(np.float64)
        return cls(kept, is_end, AliasTable(raised))


UpdateStep = Callable[[SampledWindows, float], float]
"""Update the vectors by sampled windows at a learning rate, and return the loss."""


def matrix_step(model: Word2Vec) -> UpdateStep:
    """Return steps by matrix products, for every device."""
    return lambda windows, rate: descend(model.inputs, model.outputs, model.blocks(windows), rate)


def compiled_step(model: Word2Vec, *, threads: int = 1) -> UpdateStep:
    """Return steps compiled by Numba, for the CPU; each of several threads processes a part of the windows.

    With one thread a resumed run equals an uninterrupted one, bit for bit. Several threads do not wait for each other,
    so their results vary.
    """
    from chainrule.nn import negative_sampling_kernels as kernels

    kernel = kernels.skip_gram if model.config.algorithm == "skip_gram" else kernels.cbow
    inputs, outputs = model.inputs.detach().numpy(), model.outputs.detach().numpy()  # views, not copies

    def step(windows: SampledWindows, rate: float) -> float:
        return float(kernel(inputs, outputs, *windows, model.config.block, float(model.config.negatives), rate))

    if threads == 1:
        return step

    def parallel_step(windows: SampledWindows, rate: float) -> float:
        edges = np.linspace(0, len(windows.words), threads + 1).astype(int).tolist()
        parts = [windows.part(begin, end) for begin, end in pairwise(edges)]
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(lambda part: step(part, rate), parts))

    return parallel_step
