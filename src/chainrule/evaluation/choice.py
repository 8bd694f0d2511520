"""Multiple choice by likelihood: the ending that a language model finds most probable after a context.

    score(e) = log P(e | shots, context) / length of e,    in tokens or in bytes

Without the division short endings would win. Tokens favour endings whose words are single tokens, bytes are the same
for every tokenizer (Gao et al., 2021, "A framework for few-shot language model evaluation"). In the few-shot setting
of Brown et al., 2020, examples with their correct ending are put before the context.

An example is a line of JSON: {"context": …, "endings": […], "label": …}, the label being the number of an ending, from
0, or the ending itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field

from chainrule.data.batching import by_length
from chainrule.data.records import as_text, missing_field, read_records
from chainrule.data.text import find_files
from chainrule.errors import DataError
from chainrule.evaluation.scores import MetricValues
from chainrule.interface.base import AutoregressiveModel
from chainrule.tokenizers import Tokenizer
from chainrule.types import Batch, Sequences

BETWEEN_SHOTS = "\n\n"
ROWS_AT_ONCE, TOKENS_AT_ONCE = 64, 8192


class ChoiceScore(MetricValues):
    """Accuracies, and how they were measured."""

    accuracy_per_token: float = Field(description="of the ending with the highest log-probability per token")
    accuracy_per_byte: float = Field(description="of the ending with the highest log-probability per byte")
    accuracy_unnormalised: float = Field(description="of the ending with the highest log-probability")
    random_choice: float = Field(description="expected accuracy of choosing at random")
    examples: int
    shots: int = Field(description="examples with their correct ending before each context")
    truncated: int = Field(description="number of endings whose context was cut at its start to fit into the model")


class Choice(NamedTuple):
    """A context with its endings."""

    context: str
    endings: tuple[str, ...]
    label: int

    def joined(self, ending: int) -> tuple[str, str]:
        """The context and an ending, separated by a space unless one of them has white space there."""
        text = self.endings[ending]
        spaced = not self.context or self.context[-1].isspace() or text[:1].isspace()
        return self.context, text if spaced else f" {text}"


class ScoredChoice(NamedTuple):
    """The number of the chosen ending by each length, and the log-probabilities of all endings."""

    per_token: int
    per_byte: int
    log_probs: tuple[float, ...]  # nats


def read_choices(spec: str) -> list[Choice]:
    """Read every example of files of JSON lines."""
    found = [_choice(record, where) for path in find_files(spec)[0] for where, record in read_records(path)]
    if not found:
        raise DataError(f'{spec!r} contains no examples; give lines of {{"context": …, "endings": […], "label": …}}')
    return found


def _choice(record: dict[str, Any], where: str) -> Choice:
    for name in ("context", "endings", "label"):
        if name not in record:
            raise missing_field(where, name, record, setting=None)
    endings, label = record["endings"], record["label"]
    if not isinstance(endings, list) or len(endings) < 2:
        raise DataError(f"{where} has the endings {endings!r:.40}; give a list of at least two texts")
    texts = tuple(as_text(ending, where, "endings", setting=None) for ending in endings)
    if not all(texts):
        raise DataError(f"{where} has an empty ending; give every ending a text")
    if isinstance(label, str) and label in texts:
        label = texts.index(label)
    if isinstance(label, str) and label.isdecimal():
        label = int(label)
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < len(texts):
        raise DataError(
            f"{where} has the label {label!r:.40}; give the number of the correct ending, 0 to {len(texts) - 1}"
        )
    return Choice(as_text(record["context"], where, "context", setting=None), texts, label)


def few_shot_prompt(shots: Sequence[Choice]) -> str:
    """Examples with their correct endings, to be put before a context."""
    return "".join("".join(shot.joined(shot.label)) + BETWEEN_SHOTS for shot in shots)


class _Row(NamedTuple):
    ids: list[int]
    first: int  # index of the first token of the ending
    size: int  # bytes of the ending


def score_choices(
    model: AutoregressiveModel,
    tokenizer: Tokenizer,
    choices: Sequence[Choice],
    *,
    shots: Sequence[Choice] = (),
    progress: Callable[[float], None] | None = None,
) -> tuple[ChoiceScore, list[ScoredChoice]]:
    """The accuracy of the most probable endings, and the choices themselves."""
    prompt, cut = few_shot_prompt(shots), 0
    rows: list[_Row] = []
    for choice in choices:
        for number in range(len(choice.endings)):
            row, shortened = _encoded(model, tokenizer, prompt, *choice.joined(number))
            rows.append(row)
            cut += shortened
    nats = _log_probs(model, rows, progress)
    found, begin = [], 0
    for choice in choices:
        end = begin + len(choice.endings)
        tokens = np.array([len(row.ids) - row.first for row in rows[begin:end]])
        sizes = np.array([row.size for row in rows[begin:end]])
        own = nats[begin:end]
        found.append(ScoredChoice(int((own / tokens).argmax()), int((own / sizes).argmax()), tuple(own.tolist())))
        begin = end

    def accuracy(chosen: Callable[[ScoredChoice], int]) -> float:
        return float(np.mean([chosen(one) == choice.label for one, choice in zip(found, choices, strict=True)]))

    score = ChoiceScore(
        accuracy_per_token=accuracy(lambda one: one.per_token),
        accuracy_per_byte=accuracy(lambda one: one.per_byte),
        accuracy_unnormalised=accuracy(lambda one: int(np.argmax(one.log_probs))),
        random_choice=float(np.mean([1 / len(choice.endings) for choice in choices])),
        examples=len(choices),
        shots=len(shots),
        truncated=cut,
    )
    return score, found


def _encoded(
    model: AutoregressiveModel, tokenizer: Tokenizer, prompt: str, context: str, ending: str
) -> tuple[_Row, bool]:
    """A context with an ending, cut at its start to the model's context; and whether it was cut.

    A token may cover the end of the context and the start of the ending; it then belongs to the ending.
    """
    before = tokenizer.encode(prompt + context).tolist()
    ids = tokenizer.encode(prompt + context + ending).tolist()
    shared = next((index for index, pair in enumerate(zip(before, ids, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(before), len(ids) - 1) if shared is None else shared
    over = 0 if model.context is None else max(0, len(ids) - model.context)
    if over > first:
        raise DataError(
            f"an ending of {len(ids) - first} tokens ({ending!r:.40}) does not fit into the context of "
            f"{model.context}; shorten it, or train with a larger context"
        )
    return _Row(ids[over:], first - over, len(ending.encode())), over > 0


@torch.inference_mode()
def _log_probs(
    model: AutoregressiveModel, rows: Sequence[_Row], progress: Callable[[float], None] | None
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(rows,) nats of the endings."""
    found, done = np.zeros(len(rows)), 0
    for group in by_length([len(row.ids) for row in rows], ROWS_AT_ONCE, TOKENS_AT_ONCE):
        batch = Batch(Sequences.pack([rows[index].ids for index in group], device=model.device))
        nats = model.token_log_probs(batch).double().cpu().numpy()
        for index, one in zip(group, nats, strict=True):
            found[index] = one[rows[index].first :].sum()
        done += len(group)
        if progress is not None:
            progress(done / len(rows))
    return found
