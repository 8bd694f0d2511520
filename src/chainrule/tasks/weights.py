"""Runs whose weights are stored in int8, and what that costs in accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from torch import nn

from chainrule.errors import ChainruleError
from chainrule.evaluation.likelihood import score
from chainrule.evaluation.protocol import protocol_for
from chainrule.kernels.quantization import quantized

if TYPE_CHECKING:
    from chainrule.tasks.mixable import MixableRun

Weights: TypeAlias = Literal["float32", "int8"]
AnyMixableRun = TypeVar("AnyMixableRun", bound="MixableRun[Any]")

SCORED_TOKENS = 10_000  # of the validation data
TRANSLATED_PAIRS = 100
RECORDS = "int8.jsonl"


def with_weights(run: AnyMixableRun, weights: Weights) -> AnyMixableRun:
    """The run with its weights as they are, or stored in int8."""
    return run if weights == "float32" else replace(run, model=quantized(run.model))


def int8_loss(run: MixableRun[Any], small: MixableRun[Any]) -> Mapping[str, Any] | None:
    """What both runs score on the start of the validation data; measured once, and None if it cannot be read."""
    about = {"weights": _fingerprint(run.model), "tokens": SCORED_TOKENS}
    for record in run.folder.records(RECORDS):
        if about.items() <= record.items():
            return record
    try:
        found = {**about, "float32": _scores(run), "int8": _scores(small)}
    except (ChainruleError, OSError):
        return None
    if run.folder.writable:
        run.folder.append(RECORDS, found)
    return found


def _fingerprint(model: nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _scores(run: MixableRun[Any]) -> dict[str, float]:
    corpus, source, _ = run.held_out_splits(run.config.data)["validation"]
    found = score(run.model, corpus, protocol_for(run.model, corpus, tokens=SCORED_TOKENS), source=source)
    metrics = {"nats_per_token": found.nats_per_token}
    if found.bits_per_byte is not None:
        metrics["bits_per_byte"] = found.bits_per_byte
    return metrics | run.sample_metrics(corpus, source, TRANSLATED_PAIRS)


def describe_loss(found: Mapping[str, Any]) -> str:
    """One line for the user."""
    names = {"bits_per_byte": "bits/byte", "nats_per_token": "nats/token", "bleu": "BLEU"}
    shown = [name for name in names if name in found["int8"] and not _is_redundant(name, found["int8"])]
    parts = [f"{found['int8'][name]:.4f} {names[name]} (float32: {found['float32'][name]:.4f})" for name in shown]
    return f"int8 weights, start of the validation data: {', '.join(parts)}"


def _is_redundant(name: str, metrics: Mapping[str, float]) -> bool:
    return name == "nats_per_token" and "bits_per_byte" in metrics
