"""Labels, tags and answers with their probabilities, over the text."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import BaseModel, Field

from chainrule.data.cleaning import sentence
from chainrule.data.labelled import encode_text
from chainrule.data.source import normalisation_of
from chainrule.decoding.translation import attention
from chainrule.errors import DataError, DecodingError
from chainrule.interface.conditional import HasAttention
from chainrule.serving.inspect_text import shown_pieces
from chainrule.tasks import Run
from chainrule.tasks.answers import AnswerRun
from chainrule.tasks.generated_answers import GeneratedAnswerRun
from chainrule.tasks.labels import LabelRun
from chainrule.tasks.pair_labels import PairLabelRun
from chainrule.tasks.tags import TagRun
from chainrule.types import Batch, Sequences

ALTERNATIVES = 3  # tags listed for a word
LABELLING_RUNS = (LabelRun, PairLabelRun, TagRun, AnswerRun, GeneratedAnswerRun)


class Choice(BaseModel):
    """A label, a tag or an answer, with its probability."""

    text: str
    probability: float


class LabelledPart(BaseModel):
    """A part of the text."""

    text: str
    weight: float | None = Field(None, description="attention of the prediction to this part")
    choices: list[Choice] = Field(default_factory=list, description="what it is labelled with, most probable first")
    chosen: str | None = Field(None, description="the label in the best sequence of labels")


class Labelled(BaseModel):
    """What a model says of a text."""

    kind: str = Field(description="label, tags, span or answer")
    choices: list[Choice] = Field(description="of the whole text, most probable first")
    parts: list[LabelledPart] = Field(description="the text in parts; empty if nothing is said of parts")


def label(run: Run, text: str, other: str = "") -> Labelled:
    """Classify, tag, or answer; `other` is the question about the text, or the second text of a pair."""
    if not text.strip():
        raise DataError("the text is empty; give at least one word")
    if isinstance(run, LabelRun):
        return _label(run, text)
    if isinstance(run, PairLabelRun):
        [pair] = run.predict([(text, other)])
        return Labelled(kind="label", choices=_ranked({} if pair is None else pair.probabilities), parts=[])
    if isinstance(run, TagRun):
        return _tags(run, text)
    if isinstance(run, AnswerRun):
        return _span(run, other, text)
    if isinstance(run, GeneratedAnswerRun):
        [found] = run.answer([text], num=3)
        return Labelled(
            kind="answer",
            choices=[Choice(text=one.text, probability=math.exp(one.log_prob)) for one in found],
            parts=[],
        )
    raise DecodingError("this model does not label texts; choose a classifier, a tagger or a reader")


def _ranked(probabilities: Mapping[str, float]) -> list[Choice]:
    ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])
    return [Choice(text=text, probability=probability) for text, probability in ranked]


def _label(run: LabelRun, text: str) -> Labelled:
    [found] = run.predict(text)
    if found is None:
        raise DataError("the text is empty; give at least one word")
    parts = []
    if isinstance(run.model, HasAttention):
        read = sentence(text, normalisation_of(run.config.data))
        ids = encode_text(read, run.tokenizer)[: run.model.source_context]
        [weights] = attention(run.model, [ids], [[0]])
        pieces = shown_pieces(read, run.tokenizer.pieces(ids))
        parts = [
            LabelledPart(text=piece, weight=value) for piece, value in zip(pieces, weights[0].tolist(), strict=True)
        ]
    return Labelled(kind="label", choices=_ranked(found.probabilities), parts=parts)


@torch.inference_mode()
def _tags(run: TagRun, text: str) -> Labelled:
    """The best tags; the probabilities of a tag are those given the best tags before it."""
    words = text.split()
    [found] = run.tag([words])
    assert found is not None
    ids = [run.labels.index(tag) for tag in found.tags]
    batch = Batch(Sequences.pack([ids], run.model.device), Sequences.pack([run.encode(words)], run.model.device))
    probabilities = run.model.logits(batch)[0].double().softmax(-1)  # (T, V)
    parts = []
    for word, tag, row in zip(words, found.tags, probabilities, strict=True):
        top = row.topk(min(ALTERNATIVES, len(row)))
        choices = [
            Choice(text=run.labels[index], probability=value)
            for value, index in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]
        parts.append(LabelledPart(text=word, choices=choices, chosen=tag))
    whole = Choice(text=" ".join(found.tags), probability=math.exp(found.log_prob))
    return Labelled(kind="tags", choices=[whole], parts=parts)


def _span(run: AnswerRun, question: str, text: str) -> Labelled:
    if not question.strip():
        raise DataError("the question is empty; ask one about the text")
    found = run.answer(question, text)
    choices = [Choice(text=found.text, probability=found.probability), Choice(text="", probability=found.nowhere)]
    if found.start < 0:
        return Labelled(kind="span", choices=choices[1:], parts=[LabelledPart(text=text)])
    end = found.start + len(found.text)
    cuts = [("", text[: found.start]), (found.text, text[found.start : end]), ("", text[end:])]
    parts = [
        LabelledPart(text=part, chosen=chosen or None, choices=choices[:1] if chosen else [])
        for chosen, part in cuts
        if part
    ]
    return Labelled(kind="span", choices=sorted(choices, key=lambda one: -one.probability), parts=parts)
