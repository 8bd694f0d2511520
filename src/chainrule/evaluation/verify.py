"""Can the numbers of a model be trusted? The properties that every autoregressive model must have, as checks.

Each check takes a `Subject` and raises `CheckFailed` with one sentence, or `NotApplicable` with a reason. They run
in float64, so that a tolerance of 1e-9 separates a bug from rounding. `chainrule verify RUN` runs them on a user's
checkpoint; `testing.check_model` runs them, and a few that need a model of their own, on every family.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Callable, Iterable, Mapping
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
ENUMERATED = 4096  # sequences in a sum over all of them


class CheckFailed(AssertionError):
    """A property that does not hold."""


class NotApplicable(Exception):
    """A property that the model cannot have or lack."""


@dataclass
class Subject:
    """A model under test and random sequences to test it on, with sources where it needs some."""

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
        """Sources from the longest down to a single token; their width is not that of any other axis."""
        assert isinstance(self.model, Conditional)
        longest = self.model.source_context or self.longest
        width = next(width for width in (7, 6, 5, 3, 2, 1) if width <= longest and width not in (length, self.rows))
        ids = torch.randint(self.model.source_vocabulary, (self.rows, width), generator=random)
        return Sequences(ids, torch.linspace(width, 1, self.rows).long())

    @property
    def full(self) -> Batch:
        """The same rows without padding; sources stay as they are."""
        return Batch(Sequences.full(self.batch.target.ids), self.batch.source)

    @property
    def length(self) -> int:
        return int(self.batch.target.ids.shape[1])

    def source(self, rows: Iterable[int]) -> Sequences | None:
        """The sources of these rows, one of which may be named more than once; None where the model has none."""
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


Check = Callable[[Subject], None]
SubjectT = TypeVar("SubjectT")


def require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def require_close(found: Tensor, expected: Tensor, message: str, tolerance: float = TOLERANCE) -> None:
    require(found.shape == expected.shape, f"{message}: shapes {tuple(found.shape)} and {tuple(expected.shape)}")
    apart = (found - expected).masked_fill(found == expected, 0.0).abs()  # −∞, what cannot be said, equals itself
    worst = float(apart.max()) if found.numel() else 0.0
    require(worst <= tolerance, f"{message}: they differ by {worst:.3g}")


@torch.no_grad()
def logits_have_the_right_form(subject: Subject) -> None:
    """(B, T, V), finite, and (B, 1, V) at the start."""
    logits = subject.model.logits(subject.batch)
    require(
        tuple(logits.shape) == (subject.rows, subject.length, subject.model.vocabulary),
        f"logits have the shape {tuple(logits.shape)}",
    )
    real = logits[subject.batch.target.mask]
    require(bool((real < torch.inf).all()) and not bool(real.isnan().any()), "logits are not numbers")
    first = subject.start(range(3)).logits
    require(tuple(first.shape) == (3, 1, subject.model.vocabulary), f"start gives the shape {tuple(first.shape)}")


@torch.no_grad()
def probabilities_sum_to_one(subject: Subject) -> None:
    """Over every sequence of the greatest length that can be enumerated."""
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
def the_future_does_not_matter(subject: Subject) -> None:
    """Other tokens from t on leave the predictions up to t as they were."""
    logits = subject.model.logits(subject.full)
    other = (subject.full.target.ids + 1 + subject.ids(subject.rows, subject.length) // 2) % subject.model.vocabulary
    for edge in {0, 1, subject.length // 2, subject.length - 1}:
        changed = subject.full.target.ids.clone()
        changed[:, edge:] = other[:, edge:]
        found = subject.model.logits(Batch(Sequences.full(changed), subject.batch.source))
        require_close(found[:, : edge + 1], logits[:, : edge + 1], f"tokens from {edge} on change earlier predictions")


def no_gradient_reaches_the_future(subject: Subject) -> None:
    """The prediction at t has no derivative with respect to inputs after t, and some with respect to earlier ones."""
    model = subject.model
    with torch.enable_grad(), _Embedded() as inputs:
        logits = model.logits(subject.full)
    if not inputs.found:
        raise NotApplicable("the model has no embedding to take derivatives by")
    middle = subject.length // 2
    gradients = torch.autograd.grad(logits[:, middle].square().sum(), inputs.found, allow_unused=True)
    used = [gradient for gradient in gradients if gradient is not None]
    require(any(bool(gradient.any()) for gradient in used), "no gradient reaches the inputs at all")
    if subject.batch.source is not None:  # of which every token may be seen
        used = [gradient for gradient in used if subject.length in gradient.shape[:-1]]
    for gradient in used:
        if subject.length not in gradient.shape:
            raise NotApplicable("the model reads in windows that are shorter than the text, so no axis is its time")
        time = list(gradient.shape).index(subject.length)  # rows differ from it in number, and widths come last
        later = gradient.narrow(time, middle + 1, subject.length - middle - 1)
        require(not bool(later.any()), f"a gradient at {middle} reaches later inputs")


class _Embedded(TorchFunctionMode):
    """Collects what is looked up in an embedding, however the model does it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (F.embedding, torch.embedding) and result.requires_grad:  # frozen tables have no derivative
            self.found.append(result)
        return result


@torch.no_grad()
def chunks_equal_the_whole(subject: Subject) -> None:
    """`extend` in chunks of any size gives what `logits` gives, and what the reference without a cache gives."""
    whole = subject.model.logits(subject.full)
    ids = subject.full.target.ids[:, :-1]
    for model, name in ((subject.model, "extend"), (Recomputed(subject.model), "the reference")):
        for rows in (subject.rows, 1):  # a family may go another way for a single row
            for size in {1, 2, 3, 5, max(1, ids.shape[1])}:
                step = model.start(subject.source(range(rows)), batch_size=rows)
                parts = [step.logits]
                for chunk in torch.split(ids[:rows], size, dim=1):
                    step = model.extend(chunk, step.state)
                    parts.append(step.logits)
                found = torch.cat(parts, dim=1)
                require_close(found, whole[:rows], f"{name} of {rows} rows in chunks of {size} is not the whole")


@torch.no_grad()
def padding_does_not_matter(subject: Subject) -> None:
    """Whatever stands past a row's length, and however much of it, changes nothing."""
    model, (target, source) = subject.model, subject.batch
    expected = model.token_log_probs(subject.batch)
    noise = torch.where(target.mask, target.ids, subject.ids(*target.ids.shape))
    found = model.token_log_probs(Batch(Sequences(noise, target.lengths), source))
    require_close(found, expected, "what stands in the padding changes the score")
    short = int(target.lengths[-1])
    narrow = Batch(Sequences(target.ids[-1:, :short], target.lengths[-1:]), subject.source([subject.rows - 1]))
    require_close(model.token_log_probs(narrow), expected[-1:, :short], "a row scores differently without its padding")


@torch.no_grad()
def rows_do_not_see_each_other(subject: Subject) -> None:
    """A row alone scores as in a batch; rows in another order score the same."""
    model, target = subject.model, subject.batch.target
    expected = model.token_log_probs(subject.batch)
    for row in range(subject.rows):
        alone = Batch(Sequences(target.ids[row : row + 1], target.lengths[row : row + 1]), subject.source([row]))
        require_close(model.token_log_probs(alone), expected[row : row + 1], "a row alone scores differently")
    order = torch.arange(subject.rows - 1, -1, -1, device=model.device)
    shuffled = Batch(Sequences(target.ids[order], target.lengths[order]), subject.source(order.tolist()))
    require_close(model.token_log_probs(shuffled), expected[order], "the order of rows changes their scores")


@torch.no_grad()
def states_can_be_taken_apart(subject: Subject) -> None:
    """Rows that stand at different positions, merged and reordered, go on as each would alone."""
    model = subject.model
    if subject.length < 4:
        raise NotApplicable("the context is too short to hold rows at different positions")
    prompts = [subject.ids(1, count, seed=count) for count in (0, 1, 2)]
    following = subject.ids(3, 1, seed=9)
    alone: list[Tensor] = []
    states: list[State] = []
    for row, prompt in enumerate(prompts):
        step = subject.start([row])
        step = model.extend(prompt, step.state) if prompt.numel() else step
        states.append(select(step.state, torch.zeros(1, dtype=torch.int64, device=model.device)))
        alone.append(model.extend(following[row : row + 1], step.state).logits)
    order = torch.tensor([2, 0, 1, 0], device=model.device)
    together = model.extend(following[order], select(merge(states), order)).logits
    require_close(together, torch.cat(alone)[order], "rows of a merged state do not go on as each alone")


@torch.no_grad()
def saving_keeps_every_bit(subject: Subject) -> None:
    """Weights written and read again give the same predictions to the last bit."""
    model = subject.model
    expected = model.logits(subject.batch)
    found = saved_and_read(model, subject.seed).logits(subject.batch)
    require(torch.equal(found, expected), "a model that was saved and loaded predicts differently")


def saved_and_read(model: ModelT, seed: int) -> ModelT:
    """A blank of the same shape and of other numbers, so that only what is read from the file can make it equal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 17)
        blank = type(model)(model.config).double().eval()
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.write_weights(model)
        folder.read_weights(blank)
    return blank.to(model.device)


def beam_of_one_is_greedy(subject: Subject) -> None:
    """Beam search that keeps one hypothesis is greedy decoding."""
    length = min(6, subject.length)
    prompts = [subject.ids(count, seed=count).tolist() for count in (0, 1, 2)]
    settings = {"length": length, "eos": None, "source": subject.source(range(3))}
    greedy = generate_tokens(subject.model, prompts, sampling=Sampling(greedy=True), seeds=[0] * 3, **settings)  # type: ignore[arg-type]
    beams = beam_search(subject.model, prompts, width=1, num=1, **settings)  # type: ignore[arg-type]
    for one, (best, *_) in zip(greedy, beams, strict=True):
        require(list(one.ids) == list(best.ids), "a beam of width 1 and greedy decoding differ")
        require(abs(one.log_prob - best.log_prob) < 1e-6, "a beam of width 1 scores its text differently")


def prompts_in_a_batch_are_as_alone(subject: Subject) -> None:
    """Prompts of different lengths decoded together give what each gives alone, sampled or searched."""
    length = min(6, subject.length)
    prompts = [subject.ids(count, seed=count).tolist() for count in (2, 0, 3, 1)]
    seeds = [5, 6, 7, 8]
    sampling = Sampling(temperature=0.9)
    source = subject.source(range(4))
    together = generate_tokens(subject.model, prompts, length=length, sampling=sampling, seeds=seeds, source=source)
    beams = beam_search(subject.model, prompts, width=2, length=length, source=source)
    for row, prompt in enumerate(prompts):
        own = subject.source([row])
        [alone] = generate_tokens(
            subject.model, [prompt], length=length, sampling=sampling, seeds=[seeds[row]], source=own
        )
        require(list(alone.ids) == list(together[row].ids), "a prompt sampled in a batch gives another text than alone")
        [[searched]] = beam_search(subject.model, [prompt], width=2, length=length, source=own)
        require(list(searched.ids) == list(beams[row][0].ids), "a prompt searched in a batch gives another text")


def beam_of_full_width_is_exhaustive(subject: Subject) -> None:
    """A beam that can hold every sequence finds the most probable one."""
    model = subject.model
    length = min(3, subject.length)
    if model.vocabulary**length > ENUMERATED:
        raise NotApplicable(f"a vocabulary of {model.vocabulary} has too many sequences to search them all")
    width = model.vocabulary**length
    [[best]] = beam_search(model, [[]], width=width, length=length, source=subject.source([1]))
    every = torch.tensor(list(itertools.product(range(model.vocabulary), repeat=length)), device=model.device)
    with torch.no_grad():
        scores = model.log_prob(Batch(Sequences.full(every), subject.source([1] * width)))
    require(abs(float(scores.max()) - best.log_prob) < 1e-6, "a beam of full width misses the most probable sequence")


@torch.no_grad()
def padding_of_the_source_does_not_matter(subject: Subject) -> None:
    """Whatever stands past a source's length, and however much of it, changes no prediction."""
    model, (target, source) = subject.model, subject.batch
    if not isinstance(model, Conditional) or source is None:
        raise NotApplicable("the model has no source")
    expected, first = model.token_log_probs(subject.batch), model.start(source).logits
    noise = torch.where(source.mask, source.ids, (source.ids + 1) % model.source_vocabulary)
    room = (model.source_context or torch.inf) - source.ids.shape[1]
    wider = F.pad(source.ids, (0, int(min(3, room))))
    for ids, what in ((noise, "what stands in the padding of a source"), (wider, "more padding of a source")):
        padded = Sequences(ids, source.lengths)
        require_close(model.token_log_probs(Batch(target, padded)), expected, f"{what} changes the score")
        require_close(model.start(padded).logits, first, f"{what} changes the first prediction")
    for row, length in enumerate(source.lengths.tolist()):
        narrow = Sequences(source.ids[row : row + 1, :length], source.lengths[row : row + 1])
        alone = Batch(Sequences(target.ids[row : row + 1], target.lengths[row : row + 1]), narrow)
        found = model.token_log_probs(alone)
        require_close(found, expected[row : row + 1], "a row scores differently without the padding of its source")


@torch.no_grad()
def the_source_matters(subject: Subject) -> None:
    """Another source gives another score, in every row."""
    model, (target, source) = subject.model, subject.batch
    if not isinstance(model, Conditional) or source is None:
        raise NotApplicable("the model has no source")
    if model.source_vocabulary == 1:
        raise NotApplicable("with a source vocabulary of one token there is no other source")
    other = Sequences((source.ids + 1) % model.source_vocabulary, source.lengths)
    change = model.token_log_probs(Batch(target, other)) - model.token_log_probs(subject.batch)
    for row, most in enumerate(change.abs().amax(1).tolist()):
        require(most > TOLERANCE, f"another source leaves the score of row {row} as it was")


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        logits_have_the_right_form,
        probabilities_sum_to_one,
        the_future_does_not_matter,
        no_gradient_reaches_the_future,
        chunks_equal_the_whole,
        padding_does_not_matter,
        rows_do_not_see_each_other,
        states_can_be_taken_apart,
        saving_keeps_every_bit,
        beam_of_one_is_greedy,
        prompts_in_a_batch_are_as_alone,
        beam_of_full_width_is_exhaustive,
        padding_of_the_source_does_not_matter,
        the_source_matters,
    )
}


class Finding(NamedTuple):
    """What one check found."""

    check: str
    status: str  # "passed", "failed", "not applicable" or "exception"
    message: str  # why it failed or does not apply; the declared reason of an exception


def verify(model: AutoregressiveModel, *, checks: Mapping[str, Check] = CHECKS, seed: int = 0) -> list[Finding]:
    """Run every check and tell what each found; none stops the others."""
    return findings(checks, lambda: Subject(model, seed=seed), model.check_exceptions)


def findings(
    checks: Mapping[str, Callable[[SubjectT], None]], fresh: Callable[[], SubjectT], exceptions: Mapping[str, str]
) -> list[Finding]:
    """What checks find, each with a subject of its own."""
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
