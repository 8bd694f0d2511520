"""The properties that every autoregressive model must have, as checks.

Each check takes a `CheckSubject` and raises `CheckFailed` with one sentence, or `NotApplicable` with a reason. They run
in float64, so that a tolerance of 1e-9 separates a bug from rounding. `chainrule verify RUN` runs them on a user's
checkpoint; `testing.check_model` runs them on every family, with a few more that train a model of their own.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from chainrule.decoding import Sampling, beam_search, generate_tokens
from chainrule.errors import ChainruleError
from chainrule.interface.base import AutoregressiveModel, Model, Recomputed
from chainrule.interface.conditional import Conditional
from chainrule.training.checkpoint import RunFolder
from chainrule.types import Batch, Sequences, State, Step, merge, select

ModelT = TypeVar("ModelT", bound=Model)

TOLERANCE = 1e-9
ENUMERATED = 4096  # maximum number of sequences in a sum over all of them


class CheckFailed(AssertionError):
    """The property does not hold."""


class NotApplicable(Exception):
    """The property is not defined for the model."""


@dataclass
class CheckSubject:
    """A model under test, and random sequences, with sources if the model needs them."""

    model: AutoregressiveModel
    seed: int = 0
    rows: int = 4
    longest: int = 12
    batch: Batch = field(init=False)

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model).double().eval()
        limit = min(self.longest, self.model.context or self.longest)
        random = torch.Generator().manual_seed(self.seed)
        ids = torch.randint(self.model.vocabulary, (self.rows, limit), generator=random)
        lengths = torch.linspace(limit, max(1, limit // 2), self.rows).long()
        source = self._sources(limit, random) if isinstance(self.model, Conditional) else None
        self.batch = Batch(Sequences(ids, lengths), source).to(self.model.device)

    def _sources(self, length: int, random: torch.Generator) -> Sequences:
        """Sources from the maximum length down to one token; their width differs from the size of every other axis."""
        assert isinstance(self.model, Conditional)
        longest = self.model.source_context or self.longest
        width = next(width for width in (7, 6, 5, 3, 2, 1) if width <= longest and width not in (length, self.rows))
        ids = torch.randint(self.model.source_vocabulary, (self.rows, width), generator=random)
        return Sequences(ids, torch.linspace(width, 1, self.rows).long())

    @property
    def full(self) -> Batch:
        """The same rows without padding, with the same sources."""
        return Batch(Sequences.full(self.batch.target.ids), self.batch.source)

    @property
    def length(self) -> int:
        return int(self.batch.target.ids.shape[1])

    def source(self, rows: Iterable[int]) -> Sequences | None:
        """The sources of these rows, with repetition; None if the model has no source."""
        source = self.batch.source
        if source is None:
            return None
        chosen = torch.tensor(list(rows), device=self.model.device)
        return Sequences(source.ids[chosen], source.lengths[chosen])

    def start(self, rows: Iterable[int]) -> Step:
        """The first prediction of these rows."""
        chosen = list(rows)
        return self.model.start(self.source(chosen), batch_size=len(chosen))

    def ids(self, *shape: int, seed: int = 1) -> Tensor:
        random = torch.Generator().manual_seed(self.seed + seed)
        return torch.randint(self.model.vocabulary, shape, generator=random).to(self.model.device)


Check = Callable[[CheckSubject], None]
SubjectT = TypeVar("SubjectT")


def require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def require_close(found: Tensor, expected: Tensor, message: str, tolerance: float = TOLERANCE) -> None:
    require(found.shape == expected.shape, f"{message}: shapes {tuple(found.shape)} and {tuple(expected.shape)}")
    apart = (found - expected).masked_fill(found == expected, 0.0).abs()  # −∞ (an impossible token) equals itself
    worst = float(apart.max()) if found.numel() else 0.0
    require(worst <= tolerance, f"{message}: the largest difference is {worst:.3g}")


@torch.no_grad()
def logits_have_the_right_shape(subject: CheckSubject) -> None:
    """(B, T, V) without NaN or +∞, and (B, 1, V) at the start."""
    logits = subject.model.logits(subject.batch)
    require(
        tuple(logits.shape) == (subject.rows, subject.length, subject.model.vocabulary),
        f"logits have the shape {tuple(logits.shape)}",
    )
    real = logits[subject.batch.target.mask]
    require(bool((real < torch.inf).all()) and not bool(real.isnan().any()), "logits are NaN or +∞")
    first = subject.start(range(3)).logits
    require(tuple(first.shape) == (3, 1, subject.model.vocabulary), f"start returns the shape {tuple(first.shape)}")


@torch.no_grad()
def probabilities_sum_to_one(subject: CheckSubject) -> None:
    """Sum over all sequences of the greatest length that can be enumerated."""
    model = subject.model
    length = 1
    while model.vocabulary ** (length + 1) <= ENUMERATED and length < subject.length:
        length += 1
    every = torch.cartesian_prod(*[torch.arange(model.vocabulary)] * length).reshape(-1, length)
    total = sum(
        float(model.log_prob(Batch(Sequences.full(rows.to(model.device)), subject.source([1] * len(rows)))).exp().sum())
        for rows in torch.split(every, ENUMERATED)
    )
    worst = abs(total - 1.0)
    require(worst <= TOLERANCE, f"the probabilities of all sequences of {length} tokens sum to 1 ± {worst:.3g}")


@torch.no_grad()
def predictions_ignore_the_future(subject: CheckSubject) -> None:
    """Changing the tokens from t on does not change the predictions up to t."""
    logits = subject.model.logits(subject.full)
    other = (subject.full.target.ids + 1 + subject.ids(subject.rows, subject.length) // 2) % subject.model.vocabulary
    for edge in {0, 1, subject.length // 2, subject.length - 1}:
        changed = subject.full.target.ids.clone()
        changed[:, edge:] = other[:, edge:]
        found = subject.model.logits(Batch(Sequences.full(changed), subject.batch.source))
        require_close(found[:, : edge + 1], logits[:, : edge + 1], f"tokens from {edge} on change earlier predictions")


def no_gradient_reaches_the_future(subject: CheckSubject) -> None:
    """The prediction at t has a zero derivative with respect to inputs after t, and not to all earlier ones."""
    model = subject.model
    with torch.enable_grad(), _Embedded() as inputs:
        logits = model.logits(subject.full)
    if not inputs.found:
        raise NotApplicable("the model has no embedding to differentiate with respect to")
    middle = subject.length // 2
    gradients = torch.autograd.grad(logits[:, middle].square().sum(), inputs.found, allow_unused=True)
    used = [gradient for gradient in gradients if gradient is not None]
    require(any(bool(gradient.any()) for gradient in used), "no gradient reaches the inputs at all")
    if subject.batch.source is not None:  # every source token may be read
        used = [gradient for gradient in used if subject.length in gradient.shape[:-1]]
    for gradient in used:
        if subject.length not in gradient.shape:
            raise NotApplicable("the model reads in windows shorter than the text, so no axis is the time of the text")
        time = list(gradient.shape).index(subject.length)  # the number of rows differs from it, and widths come last
        later = gradient.narrow(time, middle + 1, subject.length - middle - 1)
        require(not bool(later.any()), f"a gradient at {middle} reaches later inputs")


class _Embedded(TorchFunctionMode):
    """Records the outputs of all embedding lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (F.embedding, torch.embedding) and result.requires_grad:  # frozen tables have no derivative
            self.found.append(result)
        return result


@torch.no_grad()
def chunked_decoding_equals_the_full_pass(subject: CheckSubject) -> None:
    """`extend` in chunks of any size equals `logits`, and so does the reference without a cache."""
    whole = subject.model.logits(subject.full)
    ids = subject.full.target.ids[:, :-1]
    for model, name in ((subject.model, "extend"), (Recomputed(subject.model), "the reference")):
        for rows in (subject.rows, 1):  # a family may have a separate path for a single row
            for size in {1, 2, 3, 5, max(1, ids.shape[1])}:
                step = model.start(subject.source(range(rows)), batch_size=rows)
                parts = [step.logits]
                for chunk in torch.split(ids[:rows], size, dim=1):
                    step = model.extend(chunk, step.state)
                    parts.append(step.logits)
                found = torch.cat(parts, dim=1)
                require_close(
                    found, whole[:rows], f"{name} of {rows} rows in chunks of {size} differs from the full pass"
                )


@torch.no_grad()
def padding_does_not_matter(subject: CheckSubject) -> None:
    """Neither the ids past a row's length nor their number change a score."""
    model, (target, source) = subject.model, subject.batch
    expected = model.token_log_probs(subject.batch)
    noise = torch.where(target.mask, target.ids, subject.ids(*target.ids.shape))
    found = model.token_log_probs(Batch(Sequences(noise, target.lengths), source))
    require_close(found, expected, "the ids in the padding change the score")
    short = int(target.lengths[-1])
    narrow = Batch(Sequences(target.ids[-1:, :short], target.lengths[-1:]), subject.source([subject.rows - 1]))
    require_close(model.token_log_probs(narrow), expected[-1:, :short], "a row scores differently without its padding")


@torch.no_grad()
def rows_are_independent(subject: CheckSubject) -> None:
    """A single row scores as it does in a batch, and the order of rows does not matter."""
    model, target = subject.model, subject.batch.target
    expected = model.token_log_probs(subject.batch)
    for row in range(subject.rows):
        single = Batch(Sequences(target.ids[row : row + 1], target.lengths[row : row + 1]), subject.source([row]))
        require_close(
            model.token_log_probs(single), expected[row : row + 1], "a single row scores differently than in a batch"
        )
    order = torch.arange(subject.rows - 1, -1, -1, device=model.device)
    shuffled = Batch(Sequences(target.ids[order], target.lengths[order]), subject.source(order.tolist()))
    require_close(model.token_log_probs(shuffled), expected[order], "the order of rows changes their scores")


@torch.no_grad()
def states_can_be_merged_and_selected(subject: CheckSubject) -> None:
    """Rows at different positions, merged and reordered, continue as each does by itself."""
    model = subject.model
    if subject.length < 4:
        raise NotApplicable("the context is too short to hold rows at different positions")
    prompts = [subject.ids(1, count, seed=count) for count in (0, 1, 2)]
    following = subject.ids(3, 1, seed=9)
    single: list[Tensor] = []
    states: list[State] = []
    for row, prompt in enumerate(prompts):
        step = subject.start([row])
        step = model.extend(prompt, step.state) if prompt.numel() else step
        states.append(select(step.state, torch.zeros(1, dtype=torch.int64, device=model.device)))
        single.append(model.extend(following[row : row + 1], step.state).logits)
    order = torch.tensor([2, 0, 1, 0], device=model.device)
    together = model.extend(following[order], select(merge(states), order)).logits
    require_close(together, torch.cat(single)[order], "rows of a merged state do not continue as each does by itself")


@torch.no_grad()
def saving_and_loading_is_bit_exact(subject: CheckSubject) -> None:
    """Weights saved and loaded give the same predictions to the last bit."""
    model = subject.model
    expected = model.logits(subject.batch)
    found = saved_and_loaded(model, subject.seed).logits(subject.batch)
    require(torch.equal(found, expected), "a model that was saved and loaded predicts differently")


def saved_and_loaded(model: ModelT, seed: int) -> ModelT:
    """A model initialised with another seed, with the weights loaded from a file that `model` was saved to."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 17)
        restored = type(model)(model.config).double().eval()
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.write_weights(model)
        folder.read_weights(restored)
    return restored.to(model.device)


def beam_of_width_one_is_greedy(subject: CheckSubject) -> None:
    """Beam search with one hypothesis is greedy decoding."""
    length = min(6, subject.length)
    prompts = [subject.ids(count, seed=count).tolist() for count in (0, 1, 2)]
    settings = {"length": length, "eos": None, "source": subject.source(range(3))}
    greedy = generate_tokens(subject.model, prompts, sampling=Sampling(greedy=True), seeds=[0] * 3, **settings)  # type: ignore[arg-type]
    beams = beam_search(subject.model, prompts, width=1, num=1, **settings)  # type: ignore[arg-type]
    for one, (best, *_) in zip(greedy, beams, strict=True):
        require(list(one.ids) == list(best.ids), "a beam of width 1 and greedy decoding differ")
        require(
            abs(one.log_prob - best.log_prob) < 1e-6,
            "a beam of width 1 has another log-probability than greedy decoding",
        )


def batched_decoding_equals_single_row_decoding(subject: CheckSubject) -> None:
    """Prompts of different lengths decoded in one batch give the texts that each gives by itself."""
    length = min(6, subject.length)
    prompts = [subject.ids(count, seed=count).tolist() for count in (2, 0, 3, 1)]
    seeds = [5, 6, 7, 8]
    sampling = Sampling(temperature=0.9)
    source = subject.source(range(4))
    together = generate_tokens(subject.model, prompts, length=length, sampling=sampling, seeds=seeds, source=source)
    beams = beam_search(subject.model, prompts, width=2, length=length, source=source)
    for row, prompt in enumerate(prompts):
        own = subject.source([row])
        [single] = generate_tokens(
            subject.model, [prompt], length=length, sampling=sampling, seeds=[seeds[row]], source=own
        )
        require(
            list(single.ids) == list(together[row].ids), "a prompt sampled in a batch gives another text than by itself"
        )
        [[searched]] = beam_search(subject.model, [prompt], width=2, length=length, source=own)
        require(
            list(searched.ids) == list(beams[row][0].ids),
            "beam search gives a prompt in a batch another text than by itself",
        )


def beam_of_full_width_is_exhaustive(subject: CheckSubject) -> None:
    """A beam as wide as the number of sequences finds the most probable one."""
    model = subject.model
    length = min(3, subject.length)
    if model.vocabulary**length > ENUMERATED:
        raise NotApplicable(f"with a vocabulary of {model.vocabulary} there are too many sequences to enumerate")
    width = model.vocabulary**length
    [[best]] = beam_search(model, [[]], width=width, length=length, source=subject.source([1]))
    every = torch.tensor(list(itertools.product(range(model.vocabulary), repeat=length)), device=model.device)
    with torch.no_grad():
        scores = model.log_prob(Batch(Sequences.full(every), subject.source([1] * width)))
    require(abs(float(scores.max()) - best.log_prob) < 1e-6, "a beam of full width misses the most probable sequence")


def repadded(model: Conditional, source: Sequences) -> Iterator[tuple[Sequences, str]]:
    """The same sources with other ids in their padding and with more padding."""
    noise = torch.where(source.mask, source.ids, (source.ids + 1) % model.source_vocabulary)
    room = (model.source_context or torch.inf) - source.ids.shape[1]
    wider = F.pad(source.ids, (0, int(min(3, room))))
    for ids, what in ((noise, "the padding of a source"), (wider, "more padding of a source")):
        yield Sequences(ids, source.lengths), what


def other_source(model: Conditional, source: Sequences) -> Sequences:
    """Sources of the same lengths that differ in every token."""
    if model.source_vocabulary == 1:
        raise NotApplicable("with a source vocabulary of one token there is no other source")
    return Sequences((source.ids + 1) % model.source_vocabulary, source.lengths)


@torch.no_grad()
def padding_of_the_source_does_not_matter(subject: CheckSubject) -> None:
    """Neither the ids past a source's length nor their number change a prediction."""
    model, (target, source) = subject.model, subject.batch
    if not isinstance(model, Conditional) or source is None:
        raise NotApplicable("the model has no source")
    expected, first = model.token_log_probs(subject.batch), model.start(source).logits
    for padded, what in repadded(model, source):
        require_close(model.token_log_probs(Batch(target, padded)), expected, f"{what} changes the score")
        require_close(model.start(padded).logits, first, f"{what} changes the first prediction")
    for row, length in enumerate(source.lengths.tolist()):
        narrow = Sequences(source.ids[row : row + 1, :length], source.lengths[row : row + 1])
        single = Batch(Sequences(target.ids[row : row + 1], target.lengths[row : row + 1]), narrow)
        found = model.token_log_probs(single)
        require_close(found, expected[row : row + 1], "a row scores differently without the padding of its source")


@torch.no_grad()
def the_source_matters(subject: CheckSubject) -> None:
    """In every row another source gives another score."""
    model, (target, source) = subject.model, subject.batch
    if not isinstance(model, Conditional) or source is None:
        raise NotApplicable("the model has no source")
    other = other_source(model, source)
    change = model.token_log_probs(Batch(target, other)) - model.token_log_probs(subject.batch)
    for row, largest in enumerate(change.abs().amax(1).tolist()):
        require(largest > TOLERANCE, f"another source does not change the score of row {row}")


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        logits_have_the_right_shape,
        probabilities_sum_to_one,
        predictions_ignore_the_future,
        no_gradient_reaches_the_future,
        chunked_decoding_equals_the_full_pass,
        padding_does_not_matter,
        rows_are_independent,
        states_can_be_merged_and_selected,
        saving_and_loading_is_bit_exact,
        beam_of_width_one_is_greedy,
        batched_decoding_equals_single_row_decoding,
        beam_of_full_width_is_exhaustive,
        padding_of_the_source_does_not_matter,
        the_source_matters,
    )
}


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    status: str  # "passed", "failed", "not applicable" or "exception"
    message: str  # why it failed or does not apply; the declared reason of an exception


def verify(model: AutoregressiveModel, *, checks: Mapping[str, Check] = CHECKS, seed: int = 0) -> list[Finding]:
    """Run every check and return all results."""
    return findings(checks, lambda: CheckSubject(model, seed=seed), model.check_exceptions)


def findings(
    checks: Mapping[str, Callable[[SubjectT], None]], fresh: Callable[[], SubjectT], exceptions: Mapping[str, str]
) -> list[Finding]:
    """Run each check on a subject of its own; a failure does not stop the others."""
    found = []
    for name, check in checks.items():
        try:
            found.append(examine(name, check, fresh(), exceptions))
        except CheckFailed as failure:
            found.append(Finding(name.replace("_", " "), "failed", str(failure)))
        except (ChainruleError, RuntimeError) as error:
            found.append(Finding(name.replace("_", " "), "failed", f"{type(error).__name__}: {error}"))
    return found


def examine(name: str, check: Callable[[SubjectT], None], subject: SubjectT, exceptions: Mapping[str, str]) -> Finding:
    """Run one check. A failure is raised, unless the family declares the check as an exception."""
    label = name.replace("_", " ")
    try:
        check(subject)
    except Exception as error:
        if name in exceptions:
            return Finding(label, "exception", exceptions[name])
        if isinstance(error, NotApplicable):
            return Finding(label, "not applicable", str(error))
        raise
    return Finding(label, "passed", "")
