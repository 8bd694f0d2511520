"""A run in prose: what it is, what it has learnt from, and its figures with their protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.data.cleaning import CleaningReport
from chainrule.data.parallel import SHOWN

FIGURES = (
    "nats_per_image", "bits_per_dim", "nats_per_token", "bits_per_byte", "perplexity", "word_perplexity", "accuracy",
    "tokens", "images", "bytes", "unknown", "macro_f1", "majority", "nats_per_label", "whole", "examples", "texts",
    "exact_match", "f1", "sentence_exact_match", "sentence_f1", "finds", "answers_here", "answers_here_majority",
    "questions", "passages",
)  # fmt: skip


def card(name: str, about: Mapping[str, Any]) -> str:
    """Markdown from what `Run.info` gives."""
    lines = [
        f"# {name}: {about['family']}",
        "",
        about["summary"],
        "",
        f"- parameters: {about['parameters']:,}",
        f"- vocabulary: {about['vocabulary']:,} ({about['tokenizer']}; {about['tokenizer_note']})",
        f"- trained on: {about['data']}",
    ]
    if "source_vocabulary" in about:
        lines += _about_pairs(about)
    if about["steps"]:
        lines.append(f"- steps: {about['steps']:,}, tokens: {about['tokens']:,}, seconds: {about['seconds']:,.0f}")
    for split in ("validation", "test"):
        if (found := about[split]) is not None:
            lines += ["", f"## {split.capitalize()}: {found['data']}", "", "| figure | value |", "|---|---|"]
            known = {name: found[name] for name in FIGURES if isinstance(found.get(name), int | float)}
            lines += [f"| {name} | {value:,.6g} |" for name, value in known.items()]
            if "protocol" in found:
                protocol = ", ".join(f"{key} {value}" for key, value in found["protocol"].items() if value is not None)
                lines += ["", f"Protocol: {protocol}."]
    return "\n".join(lines) + "\n"


def _about_pairs(about: Mapping[str, Any]) -> list[str]:
    """Of a translation: its source, what cleaning has left, and BLEU at the last validation."""
    lines = [f"- given: {about['source']}"] if about["source"] else []
    if about["distil_from"]:
        lines.append(f"- learnt from the translations of: {about['distil_from']}")
    lines.append(f"- source vocabulary: {about['source_vocabulary']:,} ({about['source_tokenizer']})")
    for split, report in about["cleaning"].items():
        lines.append(f"- {split} pairs: {CleaningReport(**report).summary()}")
    if (bleu := about["bleu"]) is not None:
        figures = f"BLEU {bleu['valid_bleu']:.2f}, chrF {bleu['valid_chrf']:.2f} at step {bleu['step']:,}"
        lines.append(f"- the first {SHOWN} validation pairs, greedily: {figures} ({bleu['bleu_signature']})")
    return lines
