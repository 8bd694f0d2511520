"""Every metric that scores, run cards, tables and progress lines state: its key, label, format and direction.

Keys are those of `scores.jsonl`, `metrics.jsonl` and `--json`; metrics of validations have the prefix `valid_`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

VALIDATION = "valid_"


@dataclass(frozen=True)
class Metric:
    """How a metric is named and compared."""

    label: str  # a label with a slash is a unit and follows its value: "1.912 bits/byte", but "BLEU 31.2"
    format: str = ",d"  # in running text; tables show four decimals
    better: Literal["lower", "higher"] | None = None  # none: a count, or the score of a baseline

    def __call__(self, value: float) -> str:
        """Return the value with its label, as a progress line shows it."""
        number = format(value, self.format)
        return f"{number} {self.label}" if "/" in self.label else f"{self.label} {number}"


METRICS: dict[str, Metric] = {
    # Training, in the order of the progress line
    "loss": Metric("loss", ".3f", "lower"),
    "valid_nats_per_token": Metric("valid", ".3f", "lower"),
    "log_normaliser": Metric("log normaliser", "+.3f"),
    "tokens_per_second": Metric("tokens/s", ",.0f", "higher"),
    # Likelihood
    "nats_per_image": Metric("nats/image", ".2f", "lower"),
    "bits_per_dim": Metric("bits/dim", ".3f", "lower"),
    "nats_per_token": Metric("nats/token", ".3f", "lower"),
    "bits_per_byte": Metric("bits/byte", ".3f", "lower"),
    "perplexity": Metric("perplexity", ".2f", "lower"),
    "word_perplexity": Metric("word perplexity", ".2f", "lower"),
    "accuracy": Metric("accuracy", ".4f", "higher"),
    "majority": Metric("majority baseline", ".4f"),
    "tokens": Metric("tokens"),
    "images": Metric("images"),
    "bytes": Metric("bytes"),
    "unknown": Metric("unknown tokens"),
    # Labels and tags
    "macro_f1": Metric("macro-F1", ".4f", "higher"),
    "micro_f1": Metric("micro-F1", ".4f", "higher"),
    "label_accuracy": Metric("accuracy by label", ".4f", "higher"),
    "entity_precision": Metric("entity precision", ".4f", "higher"),
    "entity_recall": Metric("entity recall", ".4f", "higher"),
    "entity_f1": Metric("entity F1", ".4f", "higher"),
    "entities": Metric("entities"),
    "nats_per_label": Metric("nats/label", ".3f", "lower"),
    "whole": Metric("sentence accuracy", ".4f", "higher"),
    "examples": Metric("labels"),
    "texts": Metric("texts"),
    "pairs": Metric("pairs of texts"),
    # Answers
    "exact_match": Metric("exact match", ".4f", "higher"),
    "f1": Metric("F1", ".4f", "higher"),
    "likeliest_exact_match": Metric("exact match of the most probable answers", ".4f"),
    "likeliest_f1": Metric("F1 of the most probable answers", ".4f"),
    "sentence_exact_match": Metric("exact match of the sentence baseline", ".4f"),
    "sentence_f1": Metric("F1 of the sentence baseline", ".4f"),
    "overlap": Metric("overlap", ".4f", "higher"),
    "answerability": Metric("answerability accuracy", ".4f", "higher"),
    "answerability_majority": Metric("answerability majority baseline", ".4f"),
    "questions": Metric("questions"),
    "passages": Metric("passages"),
    "lines": Metric("lines"),
    # Multiple choice
    "accuracy_per_token": Metric("accuracy by likelihood per token", ".4f", "higher"),
    "accuracy_per_byte": Metric("accuracy by likelihood per byte", ".4f", "higher"),
    "accuracy_unnormalised": Metric("accuracy by likelihood", ".4f", "higher"),
    "random_choice": Metric("random choice", ".4f"),
    # Translations
    "bleu": Metric("BLEU", ".1f", "higher"),
    "chrf": Metric("chrF", ".1f", "higher"),
    "sentences": Metric("sentences"),
    "untranslated": Metric("sources passed through, empty or too long"),
    "cut": Metric("translations cut at the length limit"),
    "unscored": Metric("references too long for nats/token"),
}

HEADLINES = ("bits_per_byte", "bits_per_dim", "entity_f1", "accuracy", "f1", "nats_per_token")
"""The metrics that summarise a score in one line: the first that is present."""

PROGRESS = (
    "loss", "bits_per_byte", "bits_per_dim", "valid_nats_per_token", "valid_accuracy", "valid_bleu", "valid_chrf",
    "log_normaliser", "tokens_per_second", "lines", "texts",
)  # fmt: skip
"""Metrics of the progress line."""


def metric(key: str) -> Metric:
    """Return the metric of a key; a key of the validation data may have no entry of its own."""
    return METRICS[key] if key in METRICS else METRICS[key.removeprefix(VALIDATION)]


def known_metrics(record: Mapping[str, Any]) -> Iterator[tuple[str, Metric, float]]:
    """Yield the key, metric and value of every single number of a score that is a known metric, in the order above."""
    for key, entry in METRICS.items():
        if isinstance(value := record.get(key), int | float):
            yield key, entry, value


def score_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a stored score: its metrics, and the protocol in one line."""
    rows: dict[str, Any] = {metric.label: value for name, metric, value in known_metrics(found) if name != "unknown"}
    if found.get("unknown"):
        rows["unknown tokens"] = f"{found['unknown']:,} (bits/byte does not count what they stand for)"
    return rows | {"protocol": protocol_line(found["protocol"])} if "protocol" in found else rows


METHODS = {
    "carried": "one pass over the text",
    "windows": "sliding windows",
    "documents": "document by document",
    "whole": "all tokens of a document in parallel",
}
"""How the methods of a protocol are called in tables and cards."""


def protocol_line(protocol: Mapping[str, Any]) -> str:
    """How the text was read, in one line."""
    method = str(protocol["method"])
    parts = [METHODS.get(method, method)]
    if protocol.get("context"):
        parts.append(f"context {protocol['context']}, stride {protocol['stride']}")
    parts.append("state carried over between segments" if protocol["carry_over"] else "no state carried over")
    parts.append("EOS counted" if protocol["eos"] else "no EOS")
    if protocol.get("bytes"):
        parts.append(f"bytes of {protocol['bytes']}")
    if protocol.get("source"):
        parts.append("given the source")
    if protocol.get("tokens"):
        parts.append(f"first {protocol['tokens']:,} tokens only")
    if protocol.get("gamma") is not None:
        parts.append(f"γ {protocol['gamma']:g}")
    return ", ".join(parts)
