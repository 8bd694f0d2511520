"""Drafters: cheap proposals of the next tokens, which `speculative` verifies with the model.

The generated text is the same with any drafter; only the time depends on it. So a drafter may be wrong, and should be
fast.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from chainrule.compose.reverse import reversed_corpus
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.corpus import Corpus
from chainrule.decoding.compiled import CompiledGeneration
from chainrule.decoding.incremental import IncrementalReader, RewindableReader
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import BlockPredictor, GreedyDrafts
from chainrule.interface.conditional import Conditional
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.training import counting
from chainrule.training.progress import Reporter
from chainrule.types import Sequences

if TYPE_CHECKING:
    from chainrule.decoding.block_size import BlockSize
    from chainrule.decoding.sampling import Sampling

MAX_CHARACTER_VOCABULARY = 512
"""A vocabulary of at most this size is taken to be one of characters or bytes."""
COUNTED_PER_SECOND = 1.5e6
"""Tokens of the training data, roughly; how long it takes to count an n-gram draft is estimated by it."""


class TokenChooser(Protocol):
    """Chooses tokens as the decoder will, with the same noise.

    A drafter whose predictions are similar to the model's then proposes what the model will choose.
    """

    greedy: bool  # always the most probable token, without a repetition penalty

    def __call__(self, logits: Tensor) -> Tensor:
        """The tokens (B,) that the decoder would choose if these were the model's logits (B, V).

        The first call is for the next position, each later call for the position after that.
        """

    def compiled(self, model: AutoregressiveModel) -> CompiledGeneration | None:
        """Chooses the same tokens by compiled steps of a draft model, where that is possible."""

    def noise(self, rows: int, count: int) -> npt.NDArray[np.float64]:
        """The noise (B, count, V or 0) of the next positions of B rows, for compiled steps."""


class Prefix(NamedTuple):
    """The tokens of one row of the batch so far."""

    owner: int  # index of the prompt, and of the source if there is one
    ids: list[int]  # prompt and output


class Drafter(ABC):
    """Proposes continuations for the rows of a batch."""

    record: BlockSize | None = None  # what was measured so far; set by the decoder
    record_of: tuple[ref[AutoregressiveModel], Sampling] | None = None  # of which model, decoded how

    @abstractmethod
    def check(self, model: AutoregressiveModel) -> None:
        """Raise DecodingError if this drafter cannot be used for the model."""

    @abstractmethod
    def begin(self, source: Sequences | None) -> None:
        """Start a new batch with these sources."""

    @abstractmethod
    def propose(self, prefixes: Sequence[Prefix], count: int, choose: TokenChooser) -> list[list[int]]:
        """At most `count` draft tokens for each prefix, possibly none.

        The prefixes are those of the last call, or some of them, in the same order and extended.
        """

    @property
    def ready(self) -> bool:
        """Whether drafting can begin; otherwise `prepare` is called first."""
        return True

    def prepare(self, saving: float) -> bool:
        """Get ready if that takes less than `saving` seconds, which is what drafting is expected to save.

        A drafter may be ready afterwards without this, if it can draft less well.
        """
        return True


class LookupDrafter(Drafter):
    """Prompt lookup decoding (Saxena 2023): propose what followed the last occurrence of the current suffix.

    The longest suffix that occurs earlier in the text is searched for. If its continuation reaches the end of the
    text, the text is periodic, and the proposal repeats the period.
    """

    def __init__(self, *, shortest: int = 3, longest: int = 32) -> None:
        self.shortest = shortest  # minimum length of the suffix in tokens
        self.longest = longest
        self._texts: dict[int, str] = {}  # owner -> one character per token, since string search is fast

    def check(self, model: AutoregressiveModel) -> None:
        """Any model is accepted."""

    def begin(self, source: Sequences | None) -> None:
        self._texts = {}

    def propose(self, prefixes: Sequence[Prefix], count: int, choose: TokenChooser) -> list[list[int]]:
        found = []
        for owner, ids in prefixes:
            known = self._texts.get(owner, "")
            self._texts[owner] = text = known + "".join(map(chr, ids[len(known) :]))
            after = text[self._continuation(text) :]
            found.append([ord(one) for one in (after * (count // max(1, len(after)) + 1))[:count]])
        return found

    def _continuation(self, text: str) -> int:
        """Position after the last earlier occurrence of the longest repeated suffix; the end of the text if none.

        If a suffix is repeated, so are all shorter ones; hence binary search.
        """
        position, low, high = len(text), self.shortest, min(self.longest, len(text) - 1)
        while low <= high:
            size = (low + high) // 2
            begin = text.rfind(text[-size:], 0, len(text) - 1)
            if begin < 0:
                high = size - 1
            else:
                position, low = begin + size, size + 1
        return position


class ModelDrafter(Drafter):
    """A draft model over the same vocabulary: an n-gram model or a small network.

    It also reads its last draft token, so that all rows have the same number of tokens to read next, however
    many of their draft tokens are accepted.
    """

    def __init__(self, model: AutoregressiveModel) -> None:
        self.model = model
        self.reader = IncrementalReader(model)
        self._receptive_field = model.receptive_field if model.context is None else None
        self._rows: RewindableReader | None = None
        self._lengths: dict[int, int] = {}  # owner -> number of tokens before the drafts, in the order of rows
        self._drafts: list[list[int]] = []
        self._compiled: CompiledGeneration | None = None

    def check(self, model: AutoregressiveModel) -> None:
        check_vocabulary(self.model, model)
        if isinstance(self.model, Conditional) and not isinstance(model, Conditional):
            raise DecodingError("the draft model needs a source and the model has none; use a language model as draft")

    def begin(self, source: Sequences | None) -> None:
        self.reader = IncrementalReader(self.model, source if isinstance(self.model, Conditional) else None)
        self._rows = self._compiled = None

    def propose(self, prefixes: Sequence[Prefix], count: int, choose: TokenChooser) -> list[list[int]]:
        if choose.greedy and isinstance(self.model, GreedyDrafts):
            return [self.model.greedy_draft(ids, count) for _, ids in prefixes]
        rows, logits = self._follow(prefixes)
        count = int(min(count, *(self.reader.room(len(prefix.ids)) for prefix in prefixes)))
        self._lengths = {owner: len(ids) for owner, ids in prefixes}
        self._drafts = [[] for _ in prefixes]
        rows.mark()
        while len(self._drafts[0]) < count:
            chosen = choose(logits)[:, None]
            further = self._generate(rows, chosen, count - len(self._drafts[0]) - 1, choose)
            if further is not None:
                chosen = torch.cat([chosen, further], dim=1)
            for draft, tokens in zip(self._drafts, chosen.tolist(), strict=True):
                draft += tokens
            logits = rows.read(chosen[:, -1:])[:, -1]
        return [list(draft) for draft in self._drafts]

    def _generate(self, rows: RewindableReader, last: Tensor, count: int, choose: TokenChooser) -> Tensor | None:
        """Tokens (B, count) after the last ones (B, 1), which are read, by compiled steps; None if that cannot be."""
        if count < 1:
            return None
        self._compiled = self._compiled or choose.compiled(self.model)
        if self._compiled is None or not self._compiled.is_applicable(len(last)):
            return None
        return rows.generate(last, self._compiled, choose.noise(len(last), count))

    def _follow(self, prefixes: Sequence[Prefix]) -> tuple[RewindableReader, Tensor]:
        """Read the tokens since the last drafts; return the reader and its logits (B, V)."""
        if (continued := self._continued(prefixes)) is not None:
            return continued
        views = [ids if self._receptive_field is None else ids[-self._receptive_field :] for _, ids in prefixes]
        step = self.reader.read(views, [prefix.owner for prefix in prefixes])
        self._rows = RewindableReader(self.model, step.state)
        return self._rows, step.logits[:, -1]

    def _continued(self, prefixes: Sequence[Prefix]) -> tuple[RewindableReader, Tensor] | None:
        """The same from the current state; None if the prefixes must be read anew, as when a window moves.

        A model with a short receptive field, such as an n-gram model, also starts anew if it has more tokens to read.
        """
        if self._rows is None:
            return None
        rows = {owner: row for row, owner in enumerate(self._lengths)}
        rejected, missing = [0] * len(rows), []
        for owner, ids in prefixes:
            before, draft = self._lengths[owner], self._drafts[rows[owner]]
            accepted = count_accepted(draft, ids[before:-1])
            rejected[rows[owner]] = len(draft) - accepted
            missing.append(ids[before + accepted :])
            if len(missing[-1]) > min(self.reader.room(before + accepted), self._receptive_field or math.inf):
                return None
        if len({len(tokens) for tokens in missing}) != 1:
            return None
        self._rows.rewind(rejected)
        if len(prefixes) < len(rows):
            self._rows.keep([rows[prefix.owner] for prefix in prefixes])
        return self._rows, self._rows.read(torch.tensor(missing, device=self.model.device))[:, -1]


class FallbackDrafter(Drafter):
    """The proposals of a first drafter, and of a second one where the first has none."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self._without_second = False  # it does not pay off to prepare it

    def check(self, model: AutoregressiveModel) -> None:
        self.first.check(model)
        self.second.check(model)

    def begin(self, source: Sequences | None) -> None:
        self.first.begin(source)
        self.second.begin(source)
        self._without_second = False

    def propose(self, prefixes: Sequence[Prefix], count: int, choose: TokenChooser) -> list[list[int]]:
        preferred = self.first.propose(prefixes, count, choose)
        if all(preferred) or self._without_second:
            return preferred
        others = self.second.propose(prefixes, count, choose)
        return [one or other for one, other in zip(preferred, others, strict=True)]

    @property
    def ready(self) -> bool:
        return self.first.ready and (self._without_second or self.second.ready)

    def prepare(self, saving: float) -> bool:
        self._without_second = not self.second.prepare(saving)
        return self.first.prepare(saving) and not self._without_second


class DeferredDrafter(Drafter):
    """A drafter that takes time to make. It is made once decoding has shown that it can pay off."""

    def __init__(self, make: Callable[[float], Drafter | None]) -> None:
        self._make = make  # given the expected saving in seconds; None if making takes longer
        self._made: Drafter | None = None
        self._source: Sequences | None = None

    def check(self, model: AutoregressiveModel) -> None:
        """What is made fits the model."""

    def begin(self, source: Sequences | None) -> None:
        self._source = source
        if self._made is not None:
            self._made.begin(source)

    def propose(self, prefixes: Sequence[Prefix], count: int, choose: TokenChooser) -> list[list[int]]:
        assert self._made is not None, "the drafter is used before it is ready"
        return self._made.propose(prefixes, count, choose)

    @property
    def ready(self) -> bool:
        return self._made is not None

    def prepare(self, saving: float) -> bool:
        if self._made is None and (made := self._make(saving)) is not None:
            made.begin(self._source)
            self._made = made
        return self.ready


class LookaheadBlock(NamedTuple):
    """Lookahead vectors of one row."""

    vectors: Tensor  # (P, D)
    first: int  # position of the first of them
    end: int

    def covers(self, position: int) -> bool:
        return self.first <= position < self.end


class LookaheadDrafter(Drafter):
    """Self-speculation with a `BlockPredictor`, such as the parallel branch of a hybrid: all drafts in one product.

    The lookahead is computed once per source, and is that of the whole target; without a source, once per chunk of a
    text, and used until the text has passed its end.
    """

    def __init__(self, model: AutoregressiveModel) -> None:
        if not isinstance(model, BlockPredictor):
            raise DecodingError(
                f"{type(model).__name__} has no lookahead branch to draft with; use a hybrid run, or another draft"
            )
        self.model = model
        self.predictor: BlockPredictor = model
        self._source: Sequences | None = None
        self._blocks: dict[int, LookaheadBlock] = {}  # by owner

    def check(self, model: AutoregressiveModel) -> None:
        check_vocabulary(self.model, model)

    def begin(self, source: Sequences | None) -> None:
        self._source, self._blocks = source, {}

    def propose(self, prefixes: Sequence[Prefix], count: int, choose: TokenChooser) -> list[list[int]]:
        self._look_ahead([prefix for prefix in prefixes if not self._covers(prefix)])
        blocks = [self._blocks[owner] for owner, _ in prefixes]
        rooms = [max(0, block.end - len(ids)) for block, (_, ids) in zip(blocks, prefixes, strict=True)]
        count = min(count, max(rooms))
        if not count:
            return [[] for _ in prefixes]
        vectors = blocks[0].vectors.new_zeros(len(prefixes), count, blocks[0].vectors.shape[-1])
        for row, (block, (_, ids), room) in enumerate(zip(blocks, prefixes, rooms, strict=True)):
            begin = len(ids) - block.first
            vectors[row, : min(room, count)] = block.vectors[begin : begin + min(room, count)]
        logits = self.predictor.lookahead_logits(vectors)  # (B, count, V)
        drafts = torch.stack([choose(logits[:, position]) for position in range(count)], dim=1).tolist()
        return [row[:room] for row, room in zip(drafts, rooms, strict=True)]

    def _covers(self, prefix: Prefix) -> bool:
        """Past the end of a target's lookahead there is no other; a finished row of a batch may be there, too."""
        known = prefix.owner in self._blocks
        return known and (self._source is not None or self._blocks[prefix.owner].covers(len(prefix.ids)))

    def _look_ahead(self, prefixes: Sequence[Prefix]) -> None:
        if not prefixes:
            return
        source = self._source
        if source is not None:
            rows = torch.tensor([prefix.owner for prefix in prefixes], device=source.ids.device)
            source = Sequences(source.ids[rows], source.lengths[rows])
        vectors, firsts, ends, _ = self.predictor.lookahead(source, [prefix.ids for prefix in prefixes])
        for prefix, block, first, end in zip(prefixes, vectors, firsts, ends, strict=True):
            self._blocks[prefix.owner] = LookaheadBlock(block, first, end)


def check_vocabulary(draft: AutoregressiveModel, model: AutoregressiveModel) -> None:
    if model.vocabulary != draft.vocabulary:
        raise DecodingError(
            f"the draft model has a vocabulary of {draft.vocabulary} tokens and the model one of {model.vocabulary}; "
            "use a draft model that was trained with the same tokenizer"
        )


def ngram_draft_model(
    corpus: Corpus,
    vocabulary: int,
    *,
    right_to_left: bool = False,
    cache: Path | None = None,
    seconds: float = math.inf,
) -> NGram | None:
    """An n-gram model of the corpus, stored in the cache; None if it must be counted and that takes longer.

    The order is the one with the highest acceptance rate for networks of English and of code: 6 for characters, 4 for
    larger vocabularies. Higher orders are more confident about what they have seen and more often rejected.
    """
    order = 6 if vocabulary <= MAX_CHARACTER_VOCABULARY else 4
    model = NGram(NGramConfig(vocabulary=vocabulary, order=order)).eval()
    entry = (cache or cache_root()) / fingerprint("draft", corpus.fingerprint, vocabulary, model.order, right_to_left)

    def read(folder: Path) -> NGram:
        try:
            model.load_state_dict(load_file(folder / "model.safetensors"))
        except (SafetensorError, RuntimeError) as error:
            raise ValueError("damaged") from error
        return model

    if find(entry, read) is None:
        if len(corpus) / COUNTED_PER_SECOND > seconds:
            return None
        counting.count(model, reversed_corpus(corpus) if right_to_left else corpus, Reporter())
        with building(entry) as folder:
            save_file(model.state_dict(), folder / "model.safetensors")
    return model


def count_accepted(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """Number of draft tokens that equal the chosen tokens before the first difference."""
    for count, (proposed, chosen) in enumerate(zip(draft, tokens, strict=False)):
        if proposed != chosen:
            return count
    return min(len(draft), len(tokens))
