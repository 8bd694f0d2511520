"""Autoregressive generation: `stream_tokens` yields the tokens of each step, `generate_tokens` collects them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, NotRequired, TypeAlias, TypedDict, Unpack
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.block_size import BlockSize
from chainrule.decoding.compiled import CompiledGeneration
from chainrule.decoding.drafts import Drafter, ModelDrafter, Prefix, count_accepted
from chainrule.decoding.incremental import IncrementalReader
from chainrule.decoding.one_pass import decodes_in_one_pass, next_block
from chainrule.decoding.sampling import Gumbels, Sampling, choose
from chainrule.decoding.speculative import BlockReader, DraftBlock
from chainrule.errors import DecodingError, NotANumber
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import BlockPredictor
from chainrule.kernels.step import Choices
from chainrule.limits import LARGEST_SEED
from chainrule.types import Sequences

Finish: TypeAlias = Literal["eos", "stop", "length"]

Stop: TypeAlias = Callable[[Sequence[int]], bool]
"""Stopping criterion: whether a row is finished, given the ids it has generated so far."""


class GeneratedToken(NamedTuple):
    """A new token of one row."""

    row: int  # index of the prompt
    id: int
    log_prob: float  # under the model's distribution, before temperature, penalty and filters
    finished: Finish | None  # None: the row continues


class Generation(NamedTuple):
    """The output of one row."""

    ids: list[int]  # without the prompt and without EOS
    log_prob: float  # nats under the model's distribution, of all generated tokens including EOS
    finished: Finish


class GenerationOptions(TypedDict):
    """Options of `generate_tokens` and `stream_tokens`."""

    length: int | Sequence[int]  # maximum number of new tokens, for all prompts or for each
    sampling: Sampling
    seeds: Sequence[int]  # one per prompt
    eos: NotRequired[int | None]  # ends a row
    suppress: NotRequired[Sequence[int]]  # ids that are never chosen
    stop: NotRequired[Stop | None]
    source: NotRequired[Sequences | None]  # row i is conditioned on source i
    draft: NotRequired[AutoregressiveModel | Drafter | None]  # for speculative decoding
    block_size: NotRequired[BlockSize | None]  # number of tokens per speculative block; adaptive by default


def generate_tokens(
    model: AutoregressiveModel, prompts: Sequence[Sequence[int]], **options: Unpack[GenerationOptions]
) -> list[Generation]:
    """Continue each prompt. Row i equals the result for prompt i by itself with seed i.

    A `draft`, a cheaper model over the same vocabulary or another `Drafter`, gives the same text in less time if its
    draft tokens are accepted often enough (see `speculative`).
    """
    ids: list[list[int]] = [[] for _ in prompts]
    log_probs = [0.0] * len(prompts)
    finished: list[Finish] = ["length"] * len(prompts)
    for tokens in stream_tokens(model, prompts, **options):
        for token in tokens:
            log_probs[token.row] += token.log_prob
            finished[token.row] = token.finished or "length"
            if token.finished != "eos":
                ids[token.row].append(token.id)
    return [Generation(*parts) for parts in zip(ids, log_probs, finished, strict=True)]


def stream_tokens(
    model: AutoregressiveModel, prompts: Sequence[Sequence[int]], **options: Unpack[GenerationOptions]
) -> Iterator[list[GeneratedToken]]:
    """Like `generate_tokens`, but yield the new tokens of all unfinished rows as they are generated.

    Several tokens of a row may come together, in order: those of a draft, or of a few milliseconds.
    """
    seeds, eos, suppress = options["seeds"], options.get("eos"), options.get("suppress", ())
    source, draft = options.get("source"), options.get("draft")
    lengths = one_length_each(options["length"], prompts)
    check_request(model, prompts, length=min(lengths, default=1), eos=eos, suppress=suppress, source=source)
    if len(seeds) != len(prompts):
        raise DecodingError(f"got {len(seeds)} seeds for {len(prompts)} prompts; give one seed per prompt")
    for seed in seeds:
        if not 0 <= seed <= 2 * LARGEST_SEED:
            raise DecodingError(f"the seed is {seed}; it must be 0 to {LARGEST_SEED}")
    drafter = ModelDrafter(draft) if isinstance(draft, AutoregressiveModel) else draft
    if drafter is not None:
        drafter.check(model)
    rules = GenerationRules(lengths, options["sampling"], eos, tuple(suppress), options.get("stop"))
    if decodes_in_one_pass(model) and source is None:
        if drafter is not None:
            raise DecodingError(
                "this model generates each block of tokens in one pass, so it cannot use a draft; leave it out"
            )
        return _blocks(model, prompts, rules, seeds)
    block_size = options.get("block_size") or _block_size(drafter, model, rules.sampling)
    return _steps(IncrementalReader(model, source), prompts, rules, seeds, drafter, block_size)


def _block_size(drafter: Drafter | None, model: AutoregressiveModel, sampling: Sampling) -> BlockSize:
    """What was learned in the last batch with this drafter, if it is of the same model and decodes alike."""
    if drafter is None:
        return BlockSize()
    if drafter.record is None or drafter.record_of != (ref(model), sampling):
        drafter.record, drafter.record_of = BlockSize(), (ref(model), sampling)
    return drafter.record


class GenerationRules(NamedTuple):
    """How tokens are chosen and when a row ends."""

    lengths: list[int]  # maximum number of new tokens of each prompt
    sampling: Sampling
    eos: int | None
    suppress: tuple[int, ...]
    stop: Stop | None


@torch.inference_mode()
def _steps(
    reader: IncrementalReader,
    prompts: Sequence[Sequence[int]],
    rules: GenerationRules,
    seeds: Sequence[int],
    drafter: Drafter | None,
    block_size: BlockSize,
) -> Iterator[list[GeneratedToken]]:
    """The decoding loop.

    Finished rows stay in the batch, their output ignored, until they are half of it: removing them copies the state
    of all others, which pays off once it halves the work of the following steps.
    """
    if not prompts:
        return
    batch = GenerationBatch(prompts, rules, seeds, reader.model)
    compiled = CompiledGeneration.of(reader.model, rules.sampling, rules.suppress, rules.eos)
    step = reader.read([prefix.ids for prefix in batch.prefixes], [prefix.owner for prefix in batch.prefixes])
    first = DraftBlock(step.logits, [[] for _ in prompts])
    yield batch.append(batch.choose(first), first.logits)
    blocks = BlockReader(reader, step.state, drafter, block_size)
    block_size.begin(len(prompts), None if compiled is None else compiled.seconds_per_step(len(prompts)))
    while any(batch.running):
        if 2 * sum(batch.running) <= len(batch.running):
            rows = [row for row, is_running in enumerate(batch.running) if is_running]
            blocks.keep(rows)
            batch.keep(rows)
        drafts = blocks.draft(batch.prefixes, batch.max_remaining, batch.draft_chooser)
        noise = None
        if compiled is not None and not any(drafts):
            noise = batch.noise(compiled, blocks.undrafted(batch.prefixes))
        choices = None
        if compiled is not None and noise is not None:
            choices = blocks.generate(batch.prefixes, compiled, noise, ~np.array(batch.running))
        if choices is not None:
            generated = batch.append_choices(choices)
            blocks.record(drafts, [choices.ids.shape[1]])
        else:
            block = blocks.read(batch.prefixes, drafts)
            chosen = batch.choose(block)
            counts = [len(tokens) for tokens in chosen]
            blocks.accept(drafts, [count - 1 for count in counts])
            generated = batch.append(chosen, block.logits)
            blocks.record(drafts, counts)
        yield generated


@torch.inference_mode()
def _blocks(
    model: AutoregressiveModel, prompts: Sequence[Sequence[int]], rules: GenerationRules, seeds: Sequence[int]
) -> Iterator[list[GeneratedToken]]:
    """The loop over blocks of a model that decodes in one pass."""
    assert isinstance(model, BlockPredictor)
    if not prompts:
        return
    batch = GenerationBatch(prompts, rules, seeds, model)
    while any(batch.running):
        logits, counts = next_block(model, [prefix.ids for prefix in batch.prefixes], batch.max_remaining)
        yield batch.append(batch.choose_block(logits, counts), logits)
        if 2 * sum(batch.running) <= len(batch.running):
            batch.keep([row for row, is_running in enumerate(batch.running) if is_running])


class GenerationBatch:
    """The rows of a batch: their tokens, their noise and whether they are finished."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        rules: GenerationRules,
        seeds: Sequence[int],
        model: AutoregressiveModel,
    ) -> None:
        self.rules = rules
        self.prefixes = [Prefix(row, list(prompt)) for row, prompt in enumerate(prompts)]
        self.running = [True] * len(prompts)
        self._prompt_lengths = [len(prompt) for prompt in prompts]  # by prompt; all else is by row of the batch
        self._gumbels = None if rules.sampling.greedy else Gumbels(seeds, model.vocabulary, model.device)
        self._suppressed = torch.tensor(sorted(set(rules.suppress)), device=model.device) if rules.suppress else None
        self._seen: Tensor | None = None  # (B, V), true at the ids of each prefix
        if rules.sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros(len(prompts), model.vocabulary, dtype=torch.bool, device=model.device)
            for row, prompt in enumerate(prompts):
                self._seen[row, list(prompt)] = True

    @property
    def max_remaining(self) -> int:
        """Maximum number of tokens that any row may still generate."""
        running = (prefix for prefix, is_running in zip(self.prefixes, self.running, strict=True) if is_running)
        return max(self.rules.lengths[owner] + self._prompt_lengths[owner] - len(ids) for owner, ids in running)

    def choose(self, block: DraftBlock) -> list[list[int]]:
        """The next tokens of each row: its accepted draft tokens and one more."""
        logits, drafts = block
        rows, width, _ = logits.shape
        gumbels = None if self._gumbels is None else self._gumbels.peek(width).flatten(0, 1)
        seen = None if self._seen is None else _seen_along(self._seen, drafts, width).flatten(0, 1)
        flat = choose(logits.flatten(0, 1), self.rules.sampling, gumbels, seen=seen, suppressed=self._suppressed)
        chosen: list[list[int]] = flat.view(rows, width).tolist()
        return [tokens[: count_accepted(draft, tokens) + 1] for tokens, draft in zip(chosen, drafts, strict=True)]

    def choose_block(self, logits: Tensor, counts: Sequence[int]) -> list[list[int]]:
        """Choose the first `counts` tokens of each row from predictions (B, K, V), none depending on the others."""
        rows, width, _ = logits.shape
        gumbels = None if self._gumbels is None else self._gumbels.peek(width).flatten(0, 1)
        seen = None if self._seen is None else self._seen.repeat_interleave(width, 0)
        flat = choose(logits.flatten(0, 1), self.rules.sampling, gumbels, seen=seen, suppressed=self._suppressed)
        chosen: list[list[int]] = flat.view(rows, width).tolist()
        return [tokens[:count] for tokens, count in zip(chosen, counts, strict=True)]

    def append(self, chosen: Sequence[Sequence[int]], logits: Tensor) -> list[GeneratedToken]:
        """Append the chosen tokens and return those of unfinished rows."""
        positions = [(row, column) for row, tokens in enumerate(chosen) for column in range(len(tokens))]
        log_probs = iter(token_log_probs(_at(logits, positions), [token for tokens in chosen for token in tokens]))
        if self._gumbels is not None:
            self._gumbels.consume([len(tokens) for tokens in chosen])
        generated: list[GeneratedToken] = []
        for row, tokens in enumerate(chosen):
            owner, ids = self.prefixes[row]
            if self._seen is not None:
                self._seen[row, list(tokens)] = True
            for token, log_prob in zip(tokens, log_probs, strict=False):
                ids.append(token)
                if self.running[row]:
                    finished = self._finish(owner, ids)
                    self.running[row] = finished is None
                    generated.append(GeneratedToken(owner, token, log_prob, finished))
        return generated

    def noise(self, compiled: CompiledGeneration, room: float) -> npt.NDArray[np.float64] | None:
        """Noise (B, S, V) for the next S tokens, or their keys (B, S, 1), or (B, S, 0) if greedy.

        None if they cannot be generated by a program.
        """
        rows = len(self.prefixes)
        count = int(min(compiled.tokens_per_call(rows), self.max_remaining, room))
        if count < 1 or not compiled.is_applicable(rows):
            return None
        if self._gumbels is None:
            return np.empty((rows, count, 0))
        if compiled.takes_keys and (keys := self._gumbels.peek_keys(count)) is not None:
            return keys
        return np.ascontiguousarray(self._gumbels.peek(count).numpy(), dtype=np.float64)

    def append_choices(self, choices: Choices) -> list[GeneratedToken]:
        """Append tokens that were chosen outside of `choose`, and return those of unfinished rows, step by step."""
        rows, steps = choices.ids.shape
        if np.isnan(choices.log_probs).any():
            raise NotANumber()
        if self._gumbels is not None:
            self._gumbels.consume([steps] * rows)
        generated: list[GeneratedToken] = []
        for tokens, log_probs in zip(choices.ids.T.tolist(), choices.log_probs.T.tolist(), strict=True):
            if not any(self.running):
                break
            for row, (owner, ids) in enumerate(self.prefixes):
                ids.append(tokens[row])
                if self.running[row]:
                    finished = self._finish(owner, ids)
                    self.running[row] = finished is None
                    generated.append(GeneratedToken(owner, tokens[row], log_probs[row], finished))
        return generated

    def draft_chooser(self) -> DraftChooser:
        return DraftChooser(self.rules.sampling, self._gumbels, self._seen, self._suppressed)

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with a subset of the rows."""
        self.prefixes = [self.prefixes[row] for row in rows]
        self.running = [self.running[row] for row in rows]
        if self._gumbels is not None:
            self._gumbels.keep(rows)
        if self._seen is not None:
            self._seen = self._seen[list(rows)]

    def _finish(self, owner: int, ids: Sequence[int]) -> Finish | None:
        prompt = self._prompt_lengths[owner]
        if ids[-1] == self.rules.eos:
            return "eos"
        if self.rules.stop is not None and self.rules.stop(ids[prompt:]):
            return "stop"
        return "length" if len(ids) - prompt == self.rules.lengths[owner] else None


class DraftChooser:
    """Chooses draft tokens from a drafter's logits as the decoder will choose from the model's: with the same noise.

    The first call is for the next position of each row, each later call for the position after that.
    """

    def __init__(
        self, sampling: Sampling, gumbels: Gumbels | None, seen: Tensor | None, suppressed: Tensor | None
    ) -> None:
        self.greedy = sampling.greedy and seen is None
        self._sampling, self._gumbels, self._suppressed = sampling, gumbels, suppressed
        self._seen = None if seen is None else seen.clone()
        self._offset = 0

    def __call__(self, logits: Tensor) -> Tensor:
        gumbels = None if self._gumbels is None else self._gumbels.peek(self._offset + 1)[:, self._offset]
        chosen = choose(logits, self._sampling, gumbels, seen=self._seen, suppressed=self._suppressed)
        if self._seen is not None:
            self._seen.scatter_(1, chosen[:, None], True)
        self._offset += 1
        return chosen

    def compiled(self, model: AutoregressiveModel) -> CompiledGeneration | None:
        if self._seen is not None or model.device.type != "cpu":
            return None
        suppressed = [] if self._suppressed is None else self._suppressed.tolist()
        return CompiledGeneration.of(model, self._sampling, suppressed)

    def noise(self, rows: int, count: int) -> npt.NDArray[np.float64]:
        begin, self._offset = self._offset, self._offset + count
        if self._gumbels is None:
            return np.empty((rows, count, 0))
        return np.ascontiguousarray(self._gumbels.peek(self._offset)[:, begin:].numpy(), dtype=np.float64)


def token_log_probs(logits: Tensor, ids: Sequence[int]) -> list[float]:
    """Log-probabilities of N ids under logits (N, V), computed in float32 at least."""
    log_probs = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    values: list[float] = log_probs.gather(-1, torch.tensor(ids, device=logits.device)[:, None]).squeeze(1).tolist()
    if any(map(math.isnan, values)):
        raise NotANumber()
    return values


def one_length_each(length: int | Sequence[int], prompts: Sequence[Sequence[int]]) -> list[int]:
    """The maximum number of new tokens of each prompt, from one limit for all or one for each."""
    lengths = [length] * len(prompts) if isinstance(length, int) else list(length)
    if len(lengths) != len(prompts):
        raise DecodingError(f"got {len(lengths)} lengths for {len(prompts)} prompts; give one for all, or one for each")
    return lengths


def check_request(
    model: AutoregressiveModel,
    prompts: Sequence[Sequence[int]],
    *,
    length: int,
    eos: int | None,
    suppress: Sequence[int],
    source: Sequences | None,
) -> None:
    """Raise DecodingError for arguments that no decoder accepts, before anything is computed."""
    vocabulary = model.vocabulary
    if length < 1:
        raise DecodingError(f"the length to generate is {length}; it must be at least 1 token")
    for index, prompt in enumerate(prompts):
        for token in prompt:
            if not 0 <= token < vocabulary:
                raise DecodingError(
                    f"prompt {index} has the id {token}, outside the vocabulary of 0 to {vocabulary - 1}; "
                    "encode it with the tokenizer that the model was trained with"
                )
    for name, ids in (("eos", () if eos is None else (eos,)), ("suppress", suppress)):
        for token in ids:
            if not 0 <= token < vocabulary:
                raise DecodingError(
                    f"{name} has the id {token}, outside the vocabulary of 0 to {vocabulary - 1}; correct it"
                )
    if len(set(suppress)) == vocabulary:
        raise DecodingError(f"all {vocabulary} ids are suppressed; leave at least one to choose")
    if source is not None and source.ids.shape[0] != len(prompts):
        raise DecodingError(
            f"got {source.ids.shape[0]} sources for {len(prompts)} prompts; give each source a prompt, empty if need be"
        )


def _seen_along(seen: Tensor, drafts: Sequence[Sequence[int]], width: int) -> Tensor:
    """From (B, V) to (B, K, V): the ids seen before each position of a block, including draft tokens."""
    along = seen[:, None].repeat(1, width, 1)
    for row, draft in enumerate(drafts):
        for position, token in enumerate(draft, start=1):
            along[row, position:, token] = True
    return along


def _at(logits: Tensor, positions: Sequence[tuple[int, int]]) -> Tensor:
    """(N, V) from (B, K, V): the logits at N (row, column) positions."""
    if len(positions) == logits.shape[0] * logits.shape[1]:
        return logits.flatten(0, 1)
    rows, columns = zip(*positions, strict=True)
    return logits[list(rows), list(columns)]
