"""A folder of tiny runs of every task, a report and a running training: what the tests of the page are served."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import chainrule as package
from chainrule.config import DataConfig, RunConfig
from chainrule.families import build
from chainrule.testing.tiny import TINY
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.words import Words
from chainrule.training.checkpoint import RunFolder

LINES = (
    "the cat sat on the mat and the dog sat on the log\n",
    "a bird in the hand is worth two in the bush\n",
    "where there is smoke there is fire, said the cook\n",
    "the early bird catches the worm but the second mouse gets the cheese\n",
)
REPORT = """<!doctype html><title>Comparison</title><h1 id="head">Which model?</h1>
<script>document.getElementById("head").textContent = "The best model"</script>"""


def make_served(folder: Path) -> Path:
    """Create everything in a new folder."""
    folder.mkdir(parents=True)
    beside = folder.parent / f"{folder.name}-data"
    beside.mkdir()
    _text_runs(folder, beside)
    _translation_run(folder, beside)
    _image_runs(folder, beside)
    _labelling_runs(folder)
    _report(folder / "comparison")
    start_training(folder, "training")
    return folder


def _text_runs(folder: Path, beside: Path) -> None:
    text = beside / "text.txt"
    text.write_text("".join(LINES[(index * 7 + index // 3) % 4] for index in range(160)), encoding="utf-8")
    common: dict[str, Any] = {"data": str(text), "progress": False, "scored": False}
    package.train("ngram", out=folder / "ngram", **common)
    package.train("ngram", out=folder / "pieces", tokenizer="bpe:300", **common)
    small = {"layers": 2, "width": 32, "heads": 2, "context": 64}
    package.train("gpt", out=folder / "gpt", steps=60, settings={"model": small}, seed=1, **common)


def _translation_run(folder: Path, beside: Path) -> None:
    words = ["one two", "two one", "one", "two", "one two one", "two two"] * 20
    (beside / "train.en").write_text("\n".join(words) + "\n", encoding="utf-8")
    (beside / "train.up").write_text("\n".join(words).upper() + "\n", encoding="utf-8")
    settings = {
        "model": {"encoder_layers": 1, "decoder_layers": 2, "width": 16, "heads": 2, "context": 64},
        "train": {"batch_tokens": 256, "validate_bleu": False},
    }
    package.train(
        "transformer",
        source=str(beside / "train.en"),
        target=str(beside / "train.up"),
        out=folder / "shout",
        steps=30,
        settings=settings,
        progress=False,
        scored=False,
    )


def _image_runs(folder: Path, beside: Path) -> None:
    """Images of 6 by 6 pixels with a bright row or a bright column."""
    random = np.random.default_rng(0)
    images = random.integers(2, size=(120, 6, 6))
    labels = np.arange(120) % 2
    for image, label, where in zip(images, labels, random.integers(6, size=120), strict=True):
        image[(where, slice(None)) if label else (slice(None), where)] = 7
    np.savez(beside / "bars.npz", images=images, labels=labels)
    common: dict[str, Any] = {"data": str(beside / "bars.npz"), "progress": False, "scored": False}
    pixels = {"layers": 3, "width": 8, "first_kernel": 3}
    package.train("pixelcnn", out=folder / "bars", steps=30, settings={"model": pixels}, **common)
    vit = {"patch": 2, "layers": 1, "width": 16, "heads": 2, "shift": 0, "dropout": 0.0}
    settings = {"model": vit, "train": {"batch_tokens": 32}}
    package.train("vit", out=folder / "bar-labels", steps=30, settings=settings, **common)


def _labelling_runs(folder: Path) -> None:
    words = Words(["a", "b", "c", "d"])
    _random_run(folder / "classifier", "classifier", words, vocabulary=3, labels=("x", "y", "z"))
    letters = Chars("\nabcd")
    separator = int(letters.encode("\n")[0])
    _random_run(folder / "tagger", "tagger", letters, vocabulary=2, labels=("N", "V"), separator=separator)
    passages = {"passage_length": 4, "passage_stride": 2, "negatives": 1}
    _random_run(folder / "reader", "reader", words, passages, vocabulary=5, separator=0)


def _random_run(
    path: Path, family: str, tokenizer: Tokenizer, data: dict[str, Any] | None = None, **model: Any
) -> None:
    variant = next(iter(TINY[family].values()))
    torch.manual_seed(3)
    network = build(family, {**variant, "source_vocabulary": tokenizer.vocabulary, **model})
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    folder = RunFolder(path)
    values = network.config.model_dump(mode="json", exclude_none=True)
    config = RunConfig(family=family, data=DataConfig(train="train.tsv", unit="documents", **data or {}), model=values)
    folder.create(config, tokenizer)
    folder.write_weights(network)


def _report(path: Path) -> None:
    path.mkdir()
    (path / "plan.json").write_text("{}", encoding="utf-8")
    (path / "results.json").write_text("{}", encoding="utf-8")
    (path / "report.html").write_text(REPORT, encoding="utf-8")


def start_training(folder: Path, name: str) -> Path:
    """A training in a served folder that has recorded five steps and has not saved weights yet."""
    trained = RunFolder(folder / "gpt")
    path = folder / name
    RunFolder(path).create(trained.config(), trained.tokenizer())
    for step in range(1, 6):
        add_record(path, step)
    return path


def add_record(path: Path, step: int) -> None:
    """What a training appends to its log."""
    record = {"step": step, "seconds": step * 1.5, "loss": 3 / step, "bits_per_byte": 4 / step, "time": time.time()}
    with (path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        if step % 2 == 0:
            file.write(json.dumps({"step": step, "seconds": step * 1.5, "valid_bits_per_byte": 4.2 / step}) + "\n")
