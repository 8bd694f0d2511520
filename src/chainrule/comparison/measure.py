"""How fast a model writes, and what it writes by itself."""

from __future__ import annotations

import time

import torch

from chainrule.data.corpus import Corpus
from chainrule.decoding import Sampling, stream
from chainrule.runs import TextRun

PROMPT = 64  # tokens that are read before the clock starts
WARM_UP = 8  # tokens written before it starts
LONGEST = 1000  # tokens written at most
SAMPLE_BYTES = 400


def decoding_speed(run: TextRun, corpus: Corpus, *, threads: int, seconds: float = 2.0) -> float:
    """Tokens a second, one text at a time, sampled after a prompt from a corpus."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _speed(run, corpus, seconds)
    finally:
        torch.set_num_threads(before)


def _speed(run: TextRun, corpus: Corpus, seconds: float) -> float:
    prompt = [int(token) for token in corpus.tokens[:PROMPT]]
    length = WARM_UP + LONGEST
    written, began = 0, 0.0
    for _ in stream(run.autoregressive, [prompt], length=length, sampling=Sampling(), seeds=[0]):
        written += 1
        now = time.perf_counter()
        if written == WARM_UP:
            began = now
        elif written > WARM_UP and now - began > seconds:
            break
    return (written - WARM_UP) / (time.perf_counter() - began)


def sample(run: TextRun, corpus: Corpus, seed: int) -> str:
    """A few lines of the model's own."""
    length = max(16, round(SAMPLE_BYTES / corpus.bytes_per_token))
    [text] = run.generate("", length=length, temperature=0.8, seed=seed)
    return text.text
