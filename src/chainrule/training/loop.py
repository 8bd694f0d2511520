"""The training loop: gradient steps within a budget, validations, checkpoints, and resuming bit for bit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chainrule.config import TrainConfig
from chainrule.data.batching import Chunk, Feed, Position
from chainrule.data.permutation import draw
from chainrule.errors import ConfigError, RunError, TrainingError
from chainrule.interface.base import SparseUpdates, Trainable
from chainrule.metrics import VALIDATION, metric
from chainrule.training.checkpoint import RunFolder, Snapshot, distinct_tensors, load_distinct
from chainrule.training.learner import Learner, Loss
from chainrule.training.loss_scale import LossScale
from chainrule.training.optim import CheckpointAverage, MovingAverage, WeightAverage, build_optimizers, set_rate
from chainrule.training.placement import Sharded, full, shard_like
from chainrule.training.process import stop_requests
from chainrule.training.progress import Record, Recorder, Reporter
from chainrule.training.schedule import Budget, Spent, rate
from chainrule.training.state_writers import state_writer

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.monotonic, "cpu": time.process_time}
SECONDS_BETWEEN_CHECKPOINTS = 60.0
VALIDATIONS = 10  # per run, unless train.validate_every is set
VALIDATION_FRACTION = 0.1  # of a budget in minutes, at most
LOG_LINES = 100  # per run, unless train.log_every is set
NOT_FINITE = "the validation loss is not finite"
LARGEST = 1e9  # nats; replaces infinity in records, which JSON does not have


@dataclass
class Counters:
    """The progress of a run. Checkpoints store all of it, so that a resumed run equals an uninterrupted one."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    index: int = 0
    best: float = math.inf
    best_step: int = 0
    validated: int = 0  # step of the last validation
    last: float = math.inf  # validation nats/token there
    lowest: float = math.inf  # validation nats/token of all validations
    lowest_step: int = 0
    stale: int = 0  # validations since the best one
    validations: int = 0  # tenths of the budget that have been validated
    validation_seconds: float = 0.0
    log_lines: int = 0
    loss_total: float = 0.0  # since the last log line
    loss_tokens: int = 0
    finished: bool = False

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.index)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str  # "budget", "patience", "stopped" or "complete" (the budget had been used before)
    step: int
    tokens: int
    seconds: float
    best: float  # selection score of the best weights: validation nats/token, or minus the metric of train.best_by
    best_step: int
    last: float = math.inf  # validation nats/token at the end
    lowest: float = math.inf  # ... and at the best validation, whether or not its weights are kept
    lowest_step: int = 0


@dataclass
class Trainer:
    """One run of gradient training."""

    model: Trainable
    learner: Learner
    feed: Feed[Any]
    config: TrainConfig
    folder: RunFolder
    recorder: Recorder
    reporter: Reporter
    validate: Callable[[], float]  # nats/token of the current weights
    bytes_per_token: float | None  # None if the loss does not convert to bits per byte
    unit: str = "byte"  # "dim" for images: one channel of one pixel
    measure: Callable[[], Record] = dict  # further metrics of the current weights
    diverged_above: float = math.inf  # nats/token of a validation from which on training has failed
    at: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.budget = Budget.of(self.config)
        self.clock = CLOCKS[self.config.clock]
        self.optimizers = build_optimizers(self.model, self.config)
        self.scale = LossScale(enabled=self.learner.half is torch.float16)
        self.mean = MovingAverage(self.model, self.config.ema) if self.config.ema else None
        self.recent = CheckpointAverage(self.config.average_checkpoints) if self.config.average_checkpoints else None
        self.placement = self.learner.placement
        self.processes = self.placement.processes
        self.states = state_writer(self.folder, self.processes)
        self.now = self.began = self.saved = self.logged = self._now()
        self.loss = math.inf  # of the last steps

    def _now(self) -> float:
        """Seconds on the clock of process 0."""
        return self.processes.of_first(self.clock())[0]

    def run(self) -> Outcome:
        if self.at.finished and self.progress() >= 1.0:
            return self._outcome("complete")
        self.at.finished = False
        reason = "budget"
        self.now = self.began = self.logged = self.saved = self._now()
        before = self.at.seconds
        self.reporter.begin("training")
        try:
            with stop_requests() as requests:
                while self.progress() < 1.0:
                    self._step()
                    self.now = self._now()
                    self.at.seconds = before + self.now - self.began
                    self._after_step()
                    if self._out_of_patience():
                        reason = "patience"
                        break
                    if self.processes.any(requests.stop):
                        reason = "stopped"
                        break
                # A run that is stopped before its first validation must leave a usable model, too.
                if self.at.validated != self.at.step and (reason != "stopped" or self.at.best == math.inf):
                    self._validation()
                self.at.finished = reason != "stopped"
                self._save(end=True)
        finally:
            self.reporter.end()
            self.recorder.close()
        return self._outcome(reason)

    def progress(self) -> float:
        """Return the fraction of the budget that has been used."""
        at = self.at
        epochs = at.epoch + at.index / max(1, self.feed.batches_per_epoch(at.epoch))
        return self.budget.progress(Spent(steps=at.step, tokens=at.tokens, epochs=epochs, minutes=at.seconds / 60))

    def _step(self) -> None:
        self.model.train()
        loss = self.learn(self.at.position, rate(self.config, self.progress()))
        if self.mean is not None:
            self.mean.update(self.model)
        following = self.feed.next(self.at.position)
        self.at.epoch, self.at.index = following
        self.at.step += 1
        self.at.tokens += loss.tokens
        self.at.loss_total += loss.total
        self.at.loss_tokens += loss.tokens

    def learn(self, position: Position, rate_factor: float) -> Loss:
        """Update the model by the batch at a position, at `rate_factor` times the peak learning rate."""
        set_rate(self.optimizers, rate_factor)
        seed = draw(self.feed.seed, self.at.step, "dropout")
        loss = self.learner.gradient(
            self.feed.batch(position), idle=self.feed.idle(position), seed=seed, loss_scale=self.scale.factor
        )
        self.scale.unscale(self.model.parameters())
        norm = self._clip()
        if math.isfinite(loss.total) and not math.isfinite(norm) and self.scale.overflowed():
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            return loss
        if not math.isfinite(loss.total) or not math.isfinite(norm):
            problem = f"the loss or its gradient is not finite (loss {loss.total / loss.tokens:.3g})"
            raise TrainingError(self._diverged(problem, self.at.step + 1))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.scale.succeeded()
        return loss

    def _clip(self) -> float:
        limit = self.config.clip or math.inf
        return float(full(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)))

    def _diverged(self, problem: str, step: int) -> str:
        saved = self.folder.last_step()
        kept = f"the checkpoint of step {saved} is kept" if saved is not None else "no checkpoint was saved yet"
        return (
            f"training has diverged at step {step}: {problem}; {kept}; "
            f"lower train.learning_rate ({self.config.learning_rate:g}) or "
            f"train.muon_learning_rate ({self.config.muon_learning_rate:g}), or set train.clip=1.0"
        )

    # Between steps: logging, validation, checkpoints

    def _after_step(self) -> None:
        self.states.poll()
        progress = self.progress()
        record = self._record(progress)
        self.loss = record["loss"]
        self.reporter.update(progress, record)
        if self._due(self.config.log_every, progress, LOG_LINES, self.at.log_lines):
            self.at.log_lines += 1
            self.recorder.write(record)
            self.at.loss_total, self.at.loss_tokens = 0.0, 0
            self.logged = self.now
        if self._validation_due(progress):
            self.at.validations = math.floor(progress * VALIDATIONS)
            self._validation()
        if self.config.save_every is not None:
            if self.at.step % self.config.save_every == 0:
                self._save()
        elif self.now - self.saved > SECONDS_BETWEEN_CHECKPOINTS:
            self._save()

    def _due(self, every: int | None, progress: float, per_run: int, done: int) -> bool:
        """Return whether an event is due: every so many steps if that is set, else at even fractions of the budget."""
        if every is not None:
            return self.at.step % every == 0
        return math.floor(progress * per_run) > done

    def _validation_due(self, progress: float) -> bool:
        """As `_due`, but with a budget in minutes validations take at most VALIDATION_FRACTION of them."""
        if not self._due(self.config.validate_every, progress, VALIDATIONS, self.at.validations):
            return False
        by_the_clock = self.config.minutes is not None and self.config.validate_every is None
        return not by_the_clock or self.at.validation_seconds <= VALIDATION_FRACTION * self.at.seconds

    def _record(self, progress: float) -> Record:
        """Return the metrics of the steps since the last log line."""
        at = self.at
        elapsed = self.now - self.logged
        loss = at.loss_total / at.loss_tokens
        record: Record = {"step": at.step, "tokens": at.tokens, "seconds": round(at.seconds, 3), "loss": loss}
        if self.learner.measures_surprisal and self.bytes_per_token is not None:
            record[f"bits_per_{self.unit}"] = loss / math.log(2) / self.bytes_per_token
        return record | {
            "tokens_per_second": at.loss_tokens / elapsed if elapsed > 0 else 0.0,
            "rate": rate(self.config, progress),
        }

    def _validation(self) -> None:
        began = self._now()
        self.model.eval()
        if self.recent is not None:
            self.recent.keep(self.model)
        value, average = min(self._candidates(), key=lambda candidate: candidate[0])
        if not value < math.inf or (value > self.diverged_above and not self._overfits()):
            problem = f"the validation loss is {value:.3g} nats/token" if value < math.inf else NOT_FINITE
            raise TrainingError(self._diverged(problem, self.at.step))
        with self._averaged(average):
            metrics = {**self.learner.metrics(self.feed.batch(self.at.position)), **self.measure()}
            [score] = self.processes.of_first(self.selection_score(value, metrics))
        better = score < self.at.best or self.at.best == math.inf
        if better:
            self._write_weights(average)
        self.at.validated, self.at.last = self.at.step, value
        if value < self.at.lowest:
            self.at.lowest, self.at.lowest_step = value, self.at.step
        if better:
            self.at.best, self.at.best_step, self.at.stale = score, self.at.step, 0
        else:
            self.at.stale += 1
        record: Record = {
            "step": self.at.step,
            "tokens": self.at.tokens,
            "seconds": round(self.at.seconds, 3),
            "valid_nats_per_token": min(value, LARGEST),
            **metrics,
        }
        if self.bytes_per_token is not None:
            record[f"valid_bits_per_{self.unit}"] = min(value, LARGEST) / math.log(2) / self.bytes_per_token
        if self.recent is not None:
            record["averaged"] = len(self.recent.kept) if average is self.recent else 1
        self.recorder.write(record)
        self.reporter.validated(record)
        self.now = self._now()
        took = self.now - began
        self.at.validation_seconds += took
        self.logged += took  # tokens/s excludes validation

    def _overfits(self) -> bool:
        """Whether the training loss is below the best validation loss: then a high validation loss is no divergence."""
        [loss] = self.processes.of_first(self.loss)
        return self.learner.measures_surprisal and loss < self.at.lowest < math.inf

    def selection_score(self, nats: float, metrics: Record) -> float:
        """Return the score by which the best weights are selected: the lowest wins."""
        if self.config.best_by == "loss":
            return nats
        key = f"{VALIDATION}{self.config.best_by}"
        if key not in metrics:
            raise ConfigError(
                f"train.best_by is {self.config.best_by!r}, which is not measured for this task; set best_by=loss"
            )
        value = float(metrics[key])
        return -value if metric(key).better == "higher" else value

    def _candidates(self) -> Iterator[tuple[float, WeightAverage | None]]:
        """Validate the weights (or their moving average), and the average of those at recent validations."""
        averages: list[WeightAverage | None] = [self.mean]
        if self.recent is not None and len(self.recent.kept) > 1:
            averages.append(self.recent)
        for average in averages:
            with self._averaged(average):
                [value] = self.processes.of_first(self.validate())
            yield value if math.isfinite(value) else math.inf, average

    def _write_weights(self, average: WeightAverage | None) -> None:
        with contextlib.nullcontext() if average is None else average.swapped_in(self.model):
            weights = {name: full(tensor) for name, tensor in distinct_tensors(self.model).items()}
            self.folder.write_tensors(weights)

    @contextlib.contextmanager
    def _averaged(self, average: WeightAverage | None) -> Iterator[None]:
        """All of the current weights, or of their average, are in the model within the block."""
        swapped = contextlib.nullcontext() if average is None else average.swapped_in(self.model)
        with swapped, self.placement.gathered():
            yield

    def _out_of_patience(self) -> bool:
        return self.config.patience is not None and self.at.stale >= self.config.patience

    # Checkpoints

    def _save(self, *, end: bool = False) -> None:
        self.states.save(self.at.step, self.snapshot(), end=end)
        self.saved = self.now

    def snapshot(self) -> Snapshot:
        tensors: dict[str, Tensor] = {f"model/{name}": x for name, x in distinct_tensors(self.model).items()}
        for number, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                for name, value in state.items():
                    tensors[f"optimizer/{number}/{index}/{name}"] = torch.as_tensor(value).contiguous()
        if self.mean is not None:
            tensors |= {f"mean/{index}": weight for index, weight in enumerate(self.mean.weights)}
        if self.recent is not None:
            for age, kept in enumerate(self.recent.kept):
                tensors |= {f"recent/{age}/{index}": weight for index, weight in enumerate(kept)}
        tensors |= {f"memory/{index}": tensor for index, tensor in enumerate(self.learner.carried())}
        tensors["random/cpu"] = torch.get_rng_state()
        if self.model.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.model.device)
        values = {name: value for name, value in vars(self.at).items() if value != math.inf}
        if self.scale.enabled:
            values |= {"loss_scale": self.scale.factor, "loss_scale_steps": self.scale.steps}
        return Snapshot(tensors, values | {"mean_updates": self.mean.updates if self.mean else 0})

    def resume(self) -> bool:
        """Continue from the last checkpoint, if there is one; return whether there is."""
        saved = self.folder.last_state(self._template if isinstance(self.placement, Sharded) else None)
        if saved is not None:
            self.restore(saved)
        return saved is not None

    def _template(self, name: str, size: torch.Size) -> Tensor | None:
        """The sharded tensor of this process for one of a checkpoint; None if it is not sharded."""
        kind, *path = name.split("/")
        like: Tensor | None = None
        if kind == "model":
            like = self.model.state_dict().get("/".join(path))
        elif kind == "optimizer":
            groups = self.optimizers[int(path[0])].param_groups
            like = [parameter for group in groups for parameter in group["params"]][int(path[1])]
        elif kind in ("mean", "recent"):
            like = list(self.model.parameters())[int(path[-1])]
        return like.detach() if like is not None and like.shape == size else None

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a checkpoint, bit for bit."""
        values = dict(snapshot.values)
        updates = values.pop("mean_updates", 0)
        self.scale.factor = values.pop("loss_scale", self.scale.factor)
        self.scale.steps = values.pop("loss_scale_steps", 0)
        parts = _by_kind(snapshot.tensors)
        try:
            self.at = Counters(**values)
            own = self.model.state_dict()
            weights = {name: shard_like(x, own.get(name, x)) for name, x in parts.get("model", {}).items()}
            load_distinct(self.model, weights, origin=str(self.folder.path))
            for number, optimizer in enumerate(self.optimizers):
                _load_optimizer(optimizer, _by_kind(parts.get("optimizer", {})).get(str(number), {}))
            if self.mean is not None:
                self.mean.updates = updates
                for index, weight in enumerate(self.mean.weights):
                    weight.copy_(shard_like(parts["mean"][str(index)], weight))
            if self.recent is not None:
                recent = _by_kind(parts.get("recent", {}))
                for weights in (recent[str(age)] for age in range(len(recent))):
                    own_weights = enumerate(self.model.parameters())
                    self.recent.kept.append(
                        [shard_like(weights[str(i)].to(self.model.device), weight) for i, weight in own_weights]
                    )
            memory = parts.get("memory", {})
            self.learner.restore([memory[str(index)] for index in range(len(memory))])
            torch.set_rng_state(parts["random"]["cpu"])
            if "cuda" in parts["random"]:
                torch.cuda.set_rng_state(parts["random"]["cuda"], self.model.device)
        except (KeyError, TypeError) as error:
            raise RunError(f"the checkpoint of {str(self.folder.path)!r} does not match its config: {error}") from None
        self.folder.drop_metrics_after(self.at.step)

    def _outcome(self, reason: str) -> Outcome:
        at = self.at
        return Outcome(
            reason, at.step, at.tokens, at.seconds, at.best, at.best_step, at.last, at.lowest, at.lowest_step
        )


class SparseTrainer(Trainer):
    """Training of a model that applies its own updates, by plain gradient descent.

    Budget, schedule, validation, records and checkpoints are those of every run.
    """

    def learn(self, position: Position, rate_factor: float) -> Loss:
        assert isinstance(self.model, SparseUpdates)
        batch: Chunk = self.feed.batch(position)
        total = self.model.update(batch.ids, batch.noise, rate_factor * self.config.learning_rate)
        return Loss(total, len(batch.ids))

    def selection_score(self, nats: float, metrics: Record) -> float:
        """Select the last weights: vectors keep improving when the loss on held-out text does not."""
        return -float(self.at.step)


def trainer_type(model: Trainable) -> type[Trainer]:
    """Return the trainer for a type of model."""
    return SparseTrainer if isinstance(model, SparseUpdates) else Trainer


def _by_kind(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group tensors by their name up to the first slash."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        parts.setdefault(kind, {})[rest] = tensor
    return parts


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = shard_like(tensor, parameters[int(index)])
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
