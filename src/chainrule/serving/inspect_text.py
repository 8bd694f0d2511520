"""What language models expect: surprisal of every token of a text, and the distribution of the next token."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field

from chainrule.data.corpus import Corpus
from chainrule.decoding.copying import surface_forms
from chainrule.decoding.incremental import IncrementalReader
from chainrule.decoding.sampling import FORBIDDEN, Sampling, filter_logits
from chainrule.errors import DecodingError
from chainrule.evaluation.predictions import predictions
from chainrule.evaluation.protocol import protocol_for
from chainrule.evaluation.token_scores import token_scores
from chainrule.interface.capabilities import is_right_to_left
from chainrule.tasks.text import TextRun
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.base import REPLACEMENT

EXPECTED = 8  # most probable tokens of each model that are listed for a position


class TokenText(BaseModel):
    """A token as text."""

    text: str
    special: str | None = Field(None, description="eos, unknown, or bytes: part of a character")


class Expected(TokenText):
    """A token that a model finds probable."""

    probabilities: list[float] = Field(description="under each model")


class ReadToken(TokenText):
    """A token of the text under one model."""

    bits: float = Field(description="surprisal, −log₂ P(token | tokens before it)")
    rank: int = Field(description="1: the most probable token")
    begin: int = Field(description="in characters of the decoded text")
    end: int
    expected: list[Expected]


class Reading(BaseModel):
    """A text under one model."""

    model: str
    tokens: list[ReadToken]
    bits: float
    bits_per_byte: float


class Segment(BaseModel):
    """The smallest part of the text between positions where every model has a token boundary."""

    begin: int
    end: int
    bits: list[float] = Field(description="under each model")


class ReadAnswer(BaseModel):
    """A text under one or two models."""

    readings: list[Reading]
    segments: list[Segment] = Field(description="of the text; empty if the models decode it differently")
    same_tokens: bool = Field(description="whether all models have the same vocabulary")


def token_text(tokenizer: Tokenizer, token: int, piece: str | None = None) -> TokenText:
    """A token for display; `piece` is its text in context."""
    if token == tokenizer.eos:
        return TokenText(text="", special="eos")
    if token >= tokenizer.vocabulary:
        return TokenText(text="", special="unknown")
    text = tokenizer.pieces([token])[0] if piece is None else piece
    if token == tokenizer.unknown:
        return TokenText(text=text, special="unknown")
    return TokenText(text=text, special="bytes" if not text.strip("\ufffd") else None)


def shown_pieces(text: str, pieces: Sequence[str]) -> list[str]:
    """The strings of tokens, with the text itself in place of unknown characters and words."""
    if not any(REPLACEMENT in piece for piece in pieces):
        return list(pieces)
    if sum(map(len, pieces)) == len(text):  # unknown characters
        ends = list(accumulate(map(len, pieces)))
        return [text[end - len(piece) : end] for piece, end in zip(pieces, ends, strict=True)]
    words = iter(surface_forms(text, [piece for piece in pieces if piece]))
    return [piece and piece.replace(REPLACEMENT, next(words)) for piece in pieces]


def read(runs: Sequence[tuple[str, TextRun]], text: str) -> ReadAnswer:
    """The surprisal of each token under each run, and what was expected in its place."""
    same = len({repr(run.vocabulary) for _, run in runs}) == 1 and len({run.right_to_left for _, run in runs}) == 1
    tops = [_top_tokens(run, text) for _, run in runs]
    if same and len(runs) > 1:
        union = [sorted({token for top in tops for token in top[at]}) for at in range(len(tops[0]))]
        tops = [union] * len(runs)
    readings = []
    for at, (name, run) in enumerate(runs):
        shared = [one for _, one in runs] if same else [run]
        readings.append(_reading(name, run, text, tops[at], shared))
    return ReadAnswer(readings=readings, segments=_segments(readings), same_tokens=same)


def _corpus(run: TextRun, text: str) -> Corpus:
    return run.scored_corpus(text, None).corpus


def _top_tokens(run: TextRun, text: str) -> list[list[int]]:
    """The most probable tokens at each position, in the order of the model."""
    corpus = _corpus(run, text)
    return [
        [one.token for one in found.alternatives] for found in token_scores(run.model, corpus, alternatives=EXPECTED)
    ]


@torch.inference_mode()
def _probabilities(run: TextRun, text: str, tokens: Sequence[Sequence[int]]) -> list[list[float]]:
    """P of the given tokens at each position."""
    corpus = _corpus(run, text)
    found: list[list[float]] = [[] for _ in tokens]
    for where, _, logits in predictions(run.model, corpus, protocol_for(run.model, corpus), None):
        log_probs = F.log_softmax(logits.double(), dim=-1)
        for row, position in enumerate(where.tolist()):
            found[position] = log_probs[row, tokens[position]].exp().tolist()
    return found


def _reading(name: str, run: TextRun, text: str, tops: Sequence[Sequence[int]], shared: Sequence[TextRun]) -> Reading:
    corpus, tokenizer = _corpus(run, text), run.tokenizer
    scores = token_scores(run.model, corpus, alternatives=1)
    under = [_probabilities(one, text, tops) for one in shared]
    order = range(len(scores) - 1, -1, -1) if is_right_to_left(run.model) else range(len(scores))
    pieces = shown_pieces(text, tokenizer.pieces(scores[at].token for at in order))
    ends = list(accumulate(map(len, pieces)))
    tokens = []
    for at, piece, end in zip(order, pieces, ends, strict=True):
        found = scores[at]
        expected = [
            Expected(**token_text(tokenizer, token).model_dump(), probabilities=list(values))
            for token, *values in zip(tops[at], *(one[at] for one in under), strict=True)
        ]
        tokens.append(
            ReadToken(
                **token_text(tokenizer, found.token, piece).model_dump(),
                bits=found.surprisal / math.log(2),
                rank=found.rank,
                begin=end - len(piece),
                end=end,
                expected=expected,
            )
        )
    bits = math.fsum(token.bits for token in tokens)
    return Reading(model=name, tokens=tokens, bits=bits, bits_per_byte=bits / max(1, len(text.encode())))


def _segments(readings: Sequence[Reading]) -> list[Segment]:
    """Cut the text where all models have a token boundary, and add up the bits between.

    A character that spans several tokens belongs to the last of them, so tokens without text belong to what follows.
    Those at the end, such as EOS, are a segment of their own.
    """
    if len({"".join(token.text for token in one.tokens) for one in readings}) != 1:
        return []
    ends = [{token.end for token in one.tokens if token.end > token.begin} for one in readings]
    cuts = sorted(set.intersection(*ends))
    totals = [[0.0] * len(readings) for _ in range(len(cuts) + 1)]
    for column, one in enumerate(readings):
        index = len(cuts)
        for token in reversed(one.tokens):
            if token.end > token.begin:
                index = bisect_left(cuts, token.end)
            totals[index][column] += token.bits
    bounds = [0, *cuts, cuts[-1] if cuts else 0]
    found = [
        Segment(begin=begin, end=end, bits=bits) for (begin, end), bits in zip(pairwise(bounds), totals, strict=True)
    ]
    return found if any(totals[-1]) else found[:-1]


class NextToken(TokenText):
    """A possible next token."""

    id: int
    probability: float = Field(description="under the model")
    sampled: float = Field(description="probability of being sampled with these settings; 0 if it is cut off")


class NextTokens(BaseModel):
    """The distribution of the next token, and what the sampling settings leave of it."""

    tokens: list[NextToken] = Field(description="the most probable ones")
    vocabulary: int
    kept: int = Field(description="number of tokens that can be sampled")
    kept_probability: float = Field(description="their probability under the model")
    entropy: float = Field(description="of the model's distribution, in bits")
    context_tokens: int = Field(description="number of tokens before it")


@torch.inference_mode()
def next_tokens(run: TextRun, text: str, sampling: Sampling, *, count: int = 12) -> NextTokens:
    """What follows a text, and which part of it the settings cut off; the cut is that of `decoding.sampling`."""
    if run.right_to_left:
        raise DecodingError("this model reads from right to left, so nothing follows a text; choose another run")
    [ids] = run.prompt_ids([text])
    logits = IncrementalReader(run.autoregressive).read([ids], [0]).logits[:, -1].double().cpu()
    log_probs = F.log_softmax(logits, -1)[0]
    if suppressed := run.suppressed:
        logits = logits.index_fill(-1, torch.tensor(suppressed), FORBIDDEN)
    sampled = filter_logits(logits, sampling)[0].softmax(-1)
    if sampling.greedy:
        sampled = F.one_hot(logits[0].argmax(), logits.shape[1]).double()
    probabilities = log_probs.exp()
    kept = sampled > 0
    shown = probabilities.topk(min(count, len(probabilities))).indices.tolist()
    tokens = [
        NextToken(
            **token_text(run.tokenizer, token).model_dump(),
            id=token,
            probability=float(probabilities[token]),
            sampled=float(sampled[token]),
        )
        for token in shown
    ]
    return NextTokens(
        tokens=tokens,
        vocabulary=len(probabilities),
        kept=int(kept.sum()),
        kept_probability=float(probabilities[kept].sum()),
        entropy=float(-(probabilities * log_probs.clamp(min=-1e9)).sum()) / math.log(2),
        context_tokens=len(ids),
    )
