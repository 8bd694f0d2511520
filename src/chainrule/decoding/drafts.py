"""Who guesses what a model will write, for `speculative` to check: the text itself, or a smaller model.

Whatever a drafter says, the text stays the same; only how soon it is there depends on it. So a drafter may be as
careless as it likes, and should be quick.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from chainrule.compose.reverse import reversed_corpus
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.corpus import Corpus
from chainrule.decoding.reading import Reader, Track
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import GreedyDrafts
from chainrule.interface.conditional import Conditional
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.training import counting
from chainrule.training.progress import Reporter
from chainrule.types import Sequences

CHARACTERS = 512
"""A vocabulary of no more tokens than this is one of characters or bytes."""


class Pick(Protocol):
    """How the decoder will choose.

    It draws by the noise that the model's own choice will be drawn by, so that a drafter whose predictions are like the
    model's says what the model will say.
    """

    greedy: bool  # the likeliest token, whatever was written before

    def __call__(self, logits: Tensor) -> Tensor:
        """The tokens (B,) that it would choose if these were the model's logits (B, V).

        The first call is about the next position, and each one after it about the one that follows.
        """


class Text(NamedTuple):
    """A row of the batch."""

    owner: int  # the prompt that it goes on from; the row of the source, where there is one
    ids: list[int]  # prompt and output


class Drafter(ABC):
    """GreedyDrafts how the texts of a batch go on."""

    @abstractmethod
    def check(self, model: AutoregressiveModel) -> None:
        """Refuse a model that this drafter cannot guess for."""

    @abstractmethod
    def begin(self, source: Sequences | None) -> None:
        """What comes next is a new batch, with these sources."""

    @abstractmethod
    def propose(self, texts: Sequence[Text], count: int, pick: Pick) -> list[list[int]]:
        """For each text at most `count` tokens to go on with, or none.

        The texts are those of the last call, or some of them, in the same order and further on.
        """


class LookupDrafter(Drafter):
    """The text repeats itself: what followed the last time that it went like this will follow again.

    The longest end of the text that it holds a second time is looked for, and what stands after it is proposed (Saxena
    2023, "Prompt lookup decoding"). Where that reaches the end, the text goes in circles, and so does the proposal.
    """

    def __init__(self, *, shortest: int = 3, longest: int = 32) -> None:
        self.shortest = shortest  # ends that are looked for have at least so many tokens
        self.longest = longest
        self._texts: dict[int, str] = {}  # owner -> a character for each token: Python finds strings fast

    def check(self, model: AutoregressiveModel) -> None:
        """None is refused: a token is a token."""

    def begin(self, source: Sequences | None) -> None:
        self._texts = {}

    def propose(self, texts: Sequence[Text], count: int, pick: Pick) -> list[list[int]]:
        found = []
        for owner, ids in texts:
            known = self._texts.get(owner, "")
            self._texts[owner] = text = known + "".join(map(chr, ids[len(known) :]))
            after = text[self._place(text) :]
            found.append([ord(one) for one in (after * (count // max(1, len(after)) + 1))[:count]])
        return found

    def _place(self, text: str) -> int:
        """Where that stands which followed the longest known end; the end of the text where no end is known.

        An end that is known makes all shorter ones known, so the longest is found by halving.
        """
        place, low, high = len(text), self.shortest, min(self.longest, len(text) - 1)
        while low <= high:
            size = (low + high) // 2
            begin = text.rfind(text[-size:], 0, len(text) - 1)
            if begin < 0:
                high = size - 1
            else:
                place, low = begin + size, size + 1
        return place


class ModelDrafter(Drafter):
    """Another model over the same vocabulary, an n-gram or a small network, that writes ahead.

    It reads its own guesses too, down to the last, so that whatever becomes of them every row has the same number of
    tokens to read afterwards.
    """

    def __init__(self, model: AutoregressiveModel) -> None:
        self.model = model
        self.reader = Reader(model)
        self._reach = model.receptive_field if model.context is None else None
        self._track: Track | None = None
        self._lengths: dict[int, int] = {}  # owner -> tokens of its text before the guesses, row after row
        self._guesses: list[list[int]] = []

    def check(self, model: AutoregressiveModel) -> None:
        if model.vocabulary != self.model.vocabulary:
            raise DecodingError(
                f"the draft has a vocabulary of {self.model.vocabulary} tokens and the model one of "
                f"{model.vocabulary}; draft with a model that was trained with the same tokenizer"
            )
        if isinstance(self.model, Conditional) and not isinstance(model, Conditional):
            raise DecodingError("the draft translates and the model does not; draft with a model of one text")

    def begin(self, source: Sequences | None) -> None:
        self.reader = Reader(self.model, source if isinstance(self.model, Conditional) else None)
        self._track = None

    def propose(self, texts: Sequence[Text], count: int, pick: Pick) -> list[list[int]]:
        if pick.greedy and isinstance(self.model, GreedyDrafts):
            return [self.model.greedy_draft(ids, count) for _, ids in texts]
        track, logits = self._follow(texts)
        count = int(min(count, *(self.reader.room(len(text.ids)) for text in texts)))
        self._lengths = {owner: len(ids) for owner, ids in texts}
        self._guesses = [[] for _ in texts]
        track.mark()
        for _ in range(count):
            chosen = pick(logits)
            for guesses, token in zip(self._guesses, chosen.tolist(), strict=True):
                guesses.append(token)
            logits = track.read(chosen[:, None])[:, -1]
        return [list(guesses) for guesses in self._guesses]

    def _follow(self, texts: Sequence[Text]) -> tuple[Track, Tensor]:
        """Read what was written since the last guesses: a model that has read the texts, and its predictions (B, V)."""
        if (follows := self._continued(texts)) is not None:
            return follows
        views = [ids if self._reach is None else ids[-self._reach :] for _, ids in texts]
        step = self.reader.read(views, [text.owner for text in texts])
        self._track = Track(self.model, step.state)
        return self._track, step.logits[:, -1]

    def _continued(self, texts: Sequence[Text]) -> tuple[Track, Tensor] | None:
        """The same from where the model stands; None where it has to read anew, as when a window moves.

        A model that does not look far back, an n-gram say, begins anew too, where it has much to read.
        """
        if self._track is None:
            return None
        rows = {owner: row for row, owner in enumerate(self._lengths)}
        surplus, missing = [0] * len(rows), []
        for owner, ids in texts:
            before, guesses = self._lengths[owner], self._guesses[rows[owner]]
            right = count_right(guesses, ids[before:-1])
            surplus[rows[owner]] = len(guesses) - right
            missing.append(ids[before + right :])
            if len(missing[-1]) > min(self.reader.room(before + right), self._reach or math.inf):
                return None
        if len({len(tokens) for tokens in missing}) != 1:
            return None
        self._track.take_back(surplus)
        if len(texts) < len(rows):
            self._track.keep([rows[text.owner] for text in texts])
        return self._track, self._track.read(torch.tensor(missing, device=self.model.device))[:, -1]


class EitherDrafter(Drafter):
    """What the first of two drafters says where it says something, else what the second says."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second

    def check(self, model: AutoregressiveModel) -> None:
        self.first.check(model)
        self.second.check(model)

    def begin(self, source: Sequences | None) -> None:
        self.first.begin(source)
        self.second.begin(source)

    def propose(self, texts: Sequence[Text], count: int, pick: Pick) -> list[list[int]]:
        preferred = self.first.propose(texts, count, pick)
        if all(preferred):
            return preferred
        others = self.second.propose(texts, count, pick)
        return [one or other for one, other in zip(preferred, others, strict=True)]


def counted_draft(corpus: Corpus, vocabulary: int, *, backwards: bool = False, cache: Path | None = None) -> NGram:
    """An n-gram model of a text, counted in seconds and kept beside the text in the cache.

    Its order is the one that guessed best for networks of English and of code: a word or so of characters, or a few
    words. Longer n-grams are surer of what they have seen and more often wrong.
    """
    model = NGram(NGramConfig(vocabulary=vocabulary, order=6 if vocabulary <= CHARACTERS else 4)).eval()
    entry = (cache or cache_root()) / fingerprint("draft", corpus.fingerprint, vocabulary, model.order, backwards)

    def read(folder: Path) -> NGram:
        try:
            model.load_state_dict(load_file(folder / "model.safetensors"))
        except (SafetensorError, RuntimeError) as error:
            raise ValueError("damaged") from error
        return model

    if find(entry, read) is None:
        counting.count(model, reversed_corpus(corpus) if backwards else corpus, Reporter())
        with building(entry) as folder:
            save_file(model.state_dict(), folder / "model.safetensors")
    return model


def count_right(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of the guesses, from the first on, came true."""
    for count, (guess, token) in enumerate(zip(guesses, tokens, strict=False)):
        if guess != token:
            return count
    return min(len(guesses), len(tokens))
