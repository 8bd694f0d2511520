"""Realistic frontier results: several translation runs, and one text run with drafts; and tiny runs to measure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chainrule.config import DataConfig, RunConfig
from chainrule.frontier.results import FailedMeasurement, FrontierResults, FrontierRow, Speed, finding
from chainrule.interface.base import Model
from chainrule.tasks import load
from chainrule.tasks.text import TextRun
from chainrule.testing import tiny_model
from chainrule.testing.tiny import tiny_parallel
from chainrule.tokenizers.words import Words
from chainrule.training.checkpoint import RunFolder

TRANSLATORS = {  # family, methods: label -> BLEU, chrF, sentences/s at batch 1 and at 16
    "base": ("transformer", {"greedy": (38.4, 61.2, 21.0, 148.0), "beam 5": (39.6, 62.0, 8.1, 51.0)}),
    "hybrid": (
        "hybrid",
        {
            "greedy": (36.9, 60.0, 33.0, 210.0),
            "speculative": (36.9, 60.0, 58.0, 230.0),
            "beam 5": (38.0, 60.8, 11.0, 63.0),
        },
    ),
    "masked": (
        "nonautoregressive",
        {
            "1 pass": (31.0, 55.1, 160.0, 610.0),
            "2 passes": (34.2, 57.9, 101.0, 402.0),
            "4 passes": (36.1, 59.4, 58.0, 231.0),
            "10 passes": (36.8, 60.1, 25.0, 101.0),
        },
    ),
    "every-second": ("hybrid_regressive", {"every 2nd token": (37.5, 60.7, 40.0, 260.0)}),
}


def results_of(rows: list[FrontierRow], **values: object) -> FrontierResults:
    results = FrontierResults(
        **{
            "item": "sentence",
            "throughput": "sentences",
            "metric": "BLEU",
            "higher_is_better": True,
            "baseline": rows[0].name,
            "batches": [1, 16],
            "rows": rows,
            "complete": True,
            "threads": 2,
            "machine": "x86_64, 2 processors",
            "version": "0.1.0",
            "created": "2025-03-01T12:00:00+00:00",
            "command": "chainrule frontier base hybrid masked every-second --source test.en --references test.de",
            "protocol": {
                "sentences": 1000,
                "BLEU signature": "nrefs:1|case:mixed",
                "sentences per round": {"batch 1": 64},
            },
            **values,
        }
    )
    return results.model_copy(update={"findings": [finding(results, batch) for batch in results.batches]})


def speed(batch: int, per_second: float, tokens: float, baseline: float, compared: int = 0) -> Speed:
    return Speed(
        batch=batch,
        items_per_second=per_second,
        interval=(0.97 * per_second, 1.02 * per_second),
        tokens_per_second=tokens * per_second,
        speedup=per_second / baseline,
        rounds=5,
        compared=compared,
    )


@pytest.fixture(scope="session")
def results() -> FrontierResults:
    rows = [
        FrontierRow(
            name=f"{run} {method}",
            run=run,
            family=family,
            method=method,
            same_output_as="greedy" if method == "speculative" else None,
            quality={"BLEU": bleu, "chrF": chrf},
            speeds=[
                speed(batch, rate, 13.2, baseline, 4224 if method == "speculative" else 0)
                for batch, rate, baseline in ((1, one, 21.0), (16, many, 148.0))
            ],
        )
        for run, (family, methods) in TRANSLATORS.items()
        for method, (bleu, chrf, one, many) in methods.items()
    ]
    return results_of(rows, failures=[FailedMeasurement(name="base draft tiny", batch=1, reason="other vocabularies")])


@pytest.fixture(scope="session")
def text_results() -> FrontierResults:
    rates = {
        "greedy": (390.0, 2900.0),
        "greedy, draft self": (610.0, 3000.0),
        "greedy, draft ngram": (905.0, 3900.0),
        "sampled": (381.0, 2850.0),
        "sampled, draft self": (379.0, 2840.0),
        "sampled, draft ngram": (702.0, 3100.0),
    }
    rows = [
        FrontierRow(
            name=f"gpt {method}",
            run="gpt",
            family="gpt",
            method=method,
            same_output_as=method.partition(",")[0] if "draft" in method else None,
            quality={"bits/byte": 1.912},
            speeds=[
                speed(batch, rate / 200, 200, baseline / 200, 6400 if "draft" in method else 0)
                for batch, rate, baseline in ((1, one, 390.0), (16, many, 2900.0))
            ],
        )
        for method, (one, many) in rates.items()
    ]
    return results_of(rows, item="text", throughput="tokens", metric="bits/byte", higher_is_better=False)


def create(path: Path, family: str, model: Model) -> Path:
    """A run of a tiny model with the words x, y and z; translation runs have the source words a to d."""
    folder = RunFolder(path)
    task = "translation" if model.task == "translation" else "text"
    config = RunConfig(
        family=family,
        tokenizer="words",
        data=DataConfig(train="somewhere", unit="documents" if task == "translation" else "stream"),
        model=model.config.model_dump(mode="json", exclude_none=True),
    )
    folder.create(config, Words(["x", "y", "z"]), Words(["a", "b", "c", "d"]) if task == "translation" else None)
    folder.write_weights(model)
    return path


def with_large_weights(model: Model, seed: int = 3) -> Model:
    """Large random weights, so that no two tokens have nearly equal probabilities."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every kind with its own decoding methods."""
    folder = tmp_path_factory.mktemp("runs")
    models = {
        "base": ("transformer", tiny_model("transformer")),
        "other": ("seq2seq", tiny_model("seq2seq")),
        "hybrid": ("hybrid", tiny_model("hybrid")),
        "ctc": ("nonautoregressive", tiny_parallel("nonautoregressive", "ctc")),
        "masked": ("nonautoregressive", tiny_parallel("nonautoregressive", "masked")),
        "third": ("hybrid_regressive", tiny_parallel("hybrid_regressive", "every third")),
        "gpt": ("gpt", tiny_model("gpt")),
        "small": ("recurrent", tiny_model("recurrent")),
    }
    return {name: create(folder / name, family, with_large_weights(model)) for name, (family, model) in models.items()}


@pytest.fixture
def opened(runs: dict[str, Path]) -> TextRun:
    """Any run."""
    return load(runs["gpt"], TextRun, device="cpu")
