"""What the experiments measure with: trainings that share a time budget, likelihoods, use of the context, speed."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import chainrule
from chainrule.comparison.analysis import interval, paired_difference
from chainrule.data.corpus import Corpus
from chainrule.evaluation.likelihood import surprisals
from chainrule.families import family
from chainrule.interface.base import AutoregressiveModel
from chainrule.reports.formatting import duration
from chainrule.tasks.base import parameters
from chainrule.training.loop import CLOCKS
from chainrule.types import Batch, Sequences
from claims import PAGES, ROOT, Interval, Page, Plot, Series, Table, mean_interval

SEED = 1618  # no default of the package was chosen with it
TINY = {
    "width": 8,
    "layers": 1,
    "heads": 2,
    "context": 64,
    "chunk": 4,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "hidden": 8,
    "memory": 4,
    "attention_width": 8,
    "key_width": 4,
}
TRAINING = 0.75  # of the minutes of an experiment; the rest is for measuring


# Arguments and budget


@dataclass(frozen=True)
class Setting:
    """How an experiment is run."""

    quick: bool
    minutes: float
    seed: int
    threads: int
    clock: str  # wall or cpu
    out: Path
    parts: tuple[str, ...]
    given: tuple[str, ...]  # arguments other than --out
    runs: Path
    training: float = TRAINING
    features: str | None = None  # folder of a pretrained BERT

    def data(self, folder: str) -> Path:
        """A folder of CHAINRULE_DATA."""
        root = os.environ.get("CHAINRULE_DATA")
        found = Path(root or "CHAINRULE_DATA") / folder
        if root is None or not found.is_dir():
            sys.exit(f"error {str(found)!r} does not exist; set CHAINRULE_DATA (CONTRIBUTING.md), or use --quick")
        return found

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def includes(self, part: str) -> bool:
        return part in self.parts

    def train(
        self,
        name: str,
        kind: str,
        *,
        share: float = 0.0,
        steps: int | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> chainrule.Run:
        """Train a run for its `share` of the training time of the whole experiment, or for some steps."""
        given = {key: dict(value) for key, value in (settings or {}).items()}
        fields = family(kind).Config.model_fields
        if self.quick:
            tiny = {key: value for key, value in TINY.items() if key in fields}
            given["model"] = {**given.get("model", {}), **tiny}
            given["train"] = {**given.get("train", {}), "batch_tokens": 256, "validate_tokens": 256}
            options = {name: value for name, value in options.items() if name not in ("epochs", "tokens")}
        if kind in ("ngram", "neighbours"):
            budget: dict[str, Any] = {}
        elif self.quick:
            budget = {"steps": 3}
        elif steps is not None:
            budget = {"steps": steps}
        else:
            budget = {"minutes": self.minutes * self.training * share}
            given["train"] = {**given.get("train", {}), "clock": self.clock}
        started = CLOCKS[self.clock]()
        run = chainrule.train(
            kind, settings=given, out=self.runs / name, seed=self.seed, threads=self.threads, scored=False,
            progress=False, **budget, **options,
        )  # fmt: skip
        print(f"{name}: trained in {CLOCKS[self.clock]() - started:.0f} s", flush=True)
        return run

    def spent(self, seconds: float) -> str:
        """The time that it took, and might have."""
        if self.quick:
            return "quick, which measures nothing"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        measured = " of CPU time, whatever else the machine does" if self.clock == "cpu" else ""
        return f"{duration(seconds)}, --minutes {self.minutes:g}, on {threads}{measured}"

    def page(self, script: str, title: str, data: str) -> Page:
        name = Path(script).stem.replace("_", "-")
        setting = {
            "command": " ".join(["python", f"experiments/{Path(script).name}", *self.given]),
            "data": "built in" if self.quick else data,
            "seed": str(self.seed),
            "load of the machine when it began": f"{os.getloadavg()[0]:.1f} processes on {os.cpu_count()} processors",
        }
        return Page(name, title, Path(script).name, setting)


def run_experiment(
    script: str,
    experiment: Callable[[Setting], Page],
    *,
    parts: Sequence[str],
    minutes: float = 30.0,
    training: float = TRAINING,
) -> None:
    """Read the arguments, run the experiment, and write its page; `training` is the share of the minutes for training.

    An experiment that can use a pretrained BERT has a part called "answers"; --features names its folder.
    """
    parser = argparse.ArgumentParser(description=f"Writes docs/claims/{Path(script).stem.replace('_', '-')}.md.")
    parser.add_argument("--quick", action="store_true", help="seconds, on built-in data: shows that everything runs")
    parser.add_argument("--minutes", type=float, default=minutes, help="for everything, on the threads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: minutes of CPU time, with one thread")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, help="folder of the page; default docs/claims, with --quick build/claims")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="only some parts")
    if "answers" in parts:
        parser.add_argument("--features", metavar="FOLDER", help="answers: a BERT in Hugging Face's format")
    given = parser.parse_args()
    if given.clock == "cpu" and given.threads != 1:
        parser.error("--clock cpu adds up the time of all threads; use it with --threads 1")
    before = torch.get_num_threads()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as runs:
        setting = Setting(
            quick=given.quick,
            minutes=given.minutes,
            seed=given.seed,
            threads=given.threads,
            clock=given.clock,
            out=given.out or (ROOT / "build" / "claims" if given.quick else PAGES),
            parts=tuple(given.parts),
            given=_reproducible(sys.argv[1:]),
            runs=Path(runs),
            training=training,
            features=getattr(given, "features", None),
        )
        started = CLOCKS[given.clock]()
        page = experiment(setting)
        page.setting["budget"] = setting.spent(CLOCKS[given.clock]() - started)
        page.left_out += [part for part in parts if part not in given.parts]
        print(page.write(setting.out))
    torch.set_num_threads(before)
    for verdict in page.verdicts:
        print(f"- {verdict.sentence}")


def _reproducible(words: Sequence[str]) -> tuple[str, ...]:
    """The arguments that the results depend on: without --out, and of folders the name only."""
    found, rest = [], iter(words)
    for word in rest:
        if word == "--out":
            next(rest)
        elif word == "--features":
            found += [word, Path(next(rest)).name]
        else:
            found.append(word)
    return tuple(found)


# Likelihood


class TextData(NamedTuple):
    """Text to train on: options of training, and settings of the data."""

    options: dict[str, str]
    settings: dict[str, Any]


def text_data(setting: Setting) -> TextData:
    """WikiText-2; with --quick, built-in prose."""
    if setting.quick:
        return TextData({"data": "builtin:prose"}, {"test_fraction": 0.05})
    folder = setting.data("wikitext-2")
    options = {"data": str(folder / "train.txt.gz"), "valid": str(folder / "valid.txt.gz")}
    return TextData(options, {"test": str(folder / "test.txt.gz"), "unit": "stream"})


class HeldOut(NamedTuple):
    """The surprisal of every token of held-out data under a model."""

    run: Any
    nats: np.ndarray
    bytes: int

    @property
    def bits(self) -> Interval:
        value = float(self.nats.sum(dtype=np.float64) / np.log(2) / self.bytes)
        return Interval(value, *interval(self.nats, self.bytes))

    def gain_over(self, other: HeldOut) -> Interval:
        """Bits per byte saved compared with the other model, on the same tokens."""
        saved = float((other.nats - self.nats).sum(dtype=np.float64) / np.log(2) / self.bytes)
        return Interval(saved, *paired_difference(other.nats, self.nats, self.bytes))

    @property
    def parameters(self) -> int:
        return parameters(self.run.model)

    @property
    def trained(self) -> dict[str, object]:
        """Training tokens, and tokens per second of the whole training."""
        last = self.run.folder.records("metrics.jsonl")[-1]
        return {"training tokens": last.get("tokens", 0)}


def test_corpus(run: Any, limit: int) -> Corpus:
    """The first tokens of a run's test data."""
    return _first(run.splits(run.config.data).test, limit)


def _first(corpus: Corpus, limit: int) -> Corpus:
    return corpus.first(min(limit, len(corpus)))


def held_out(run: Any, limit: int, *, validation: bool = False) -> HeldOut:
    """Score the first `limit` tokens of the test data, or of the validation data."""
    corpus = _first(run.splits(run.config.data).valid, limit) if validation else test_corpus(run, limit)
    return HeldOut(run, surprisals(run.model.eval(), corpus).nats.astype(np.float64), corpus.bytes)


# How far back a prediction depends on the text


def nats_by_context(
    model: AutoregressiveModel, corpus: Corpus, contexts: Sequence[int], *, rows: int, seed: int
) -> dict[int, np.ndarray]:
    """The surprisal of the same tokens when only the last `context` tokens before them are the true ones.

    Everything earlier is text from elsewhere, so that the model always reads ordinary text of the same length.
    """
    length = max(contexts)
    starts = np.random.default_rng(seed).choice(len(corpus) - length - 1, rows, replace=False)
    ids = torch.from_numpy(np.stack([corpus.tokens[start : start + length + 1].astype(np.int64) for start in starts]))
    elsewhere = ids.roll(1, dims=0)
    found = {}
    for context in contexts:
        mixed = ids.clone()
        mixed[:, : length - context] = elsewhere[:, : length - context]
        found[context] = np.concatenate([_last_nats(model, part) for part in mixed.split(64)])
    return found


@torch.inference_mode()
def _last_nats(model: AutoregressiveModel, ids: torch.Tensor) -> np.ndarray:
    last = torch.zeros_like(ids, dtype=torch.bool)
    last[:, -1] = True
    logits = model.eval().logits_at(Batch(Sequences.full(ids)), last)
    return F.cross_entropy(logits, ids[:, -1], reduction="none").double().numpy()


def gains(nats: Mapping[int, np.ndarray]) -> dict[int, Interval]:
    """The nats that each longer context saves over the next shorter one."""
    steps = list(nats)
    return {longer: mean_interval(nats[shorter] - nats[longer]) for shorter, longer in itertools.pairwise(steps)}


def saved_beyond(
    nats: Mapping[str, Mapping[int, np.ndarray]], model: str, near: int, *, more_than: str | None = None
) -> Interval:
    """The nats that text beyond a distance saves in one model, or by how much more than in another."""
    longest = max(nats[model])
    saved = nats[model][near] - nats[model][longest]
    if more_than is not None:
        saved = saved - (nats[more_than][near] - nats[more_than][longest])
    return mean_interval(saved)


def reach(gained: Mapping[int, Interval]) -> int:
    """The longest context up to which every doubling still saves nats beyond doubt; 1 if none does."""
    longest = 1
    for context, saved in gained.items():
        if saved.low <= 0:
            break
        longest = context
    return longest


CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


def use_of_context(setting: Setting, page: Page, models: Mapping[str, HeldOut]) -> dict[str, dict[int, np.ndarray]]:
    """Nats of the same tokens by context for each model, with the table and the plot of what each doubling saves."""
    lengths = CONTEXTS if not setting.quick else CONTEXTS[:5]
    nats = {
        name: nats_by_context(
            one.run.model,
            test_corpus(one.run, setting.size(400_000, 2000)),
            lengths,
            rows=setting.size(3000, 40),
            seed=setting.seed,
        )
        for name, one in models.items()
    }
    gained = {name: gains(one) for name, one in nats.items()}
    rows = [
        {"model": name, **{str(length): str(saved) for length, saved in one.items()}, "reach": reach(one)}
        for name, one in gained.items()
    ]
    page.tables.append(Table("Nats saved by each doubling of the context, in characters", rows))
    lines = {name: Series.of(one) for name, one in gained.items()}
    title = "How far back predictions depend on the text"
    page.plots.append(Plot("reach", title, "context, in characters", "nats saved by the doubling", lines, log_x=True))
    return nats


# Speed


def timed(works: Mapping[str, Callable[[], object]], rounds: int, setting: Setting) -> dict[str, list[float]]:
    """Seconds of each work in interleaved rounds, after one to warm up."""
    clock = CLOCKS[setting.clock]
    for work in works.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = clock()
            work()
            found[name].append(clock() - began)
    return found


def median(times: Sequence[float]) -> float:
    return statistics.median(times)


def ratio(first: Sequence[float], second: Sequence[float]) -> Interval:
    """How many times as long the first took, round by round."""
    return mean_interval([one / other for one, other in zip(first, second, strict=True)])
