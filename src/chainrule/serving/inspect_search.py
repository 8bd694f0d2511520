"""How a text is found: the hypotheses of a beam search step by step, and draft tokens accepted and rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from chainrule.decoding.beam import Beam, beam_steps
from chainrule.decoding.block_size import FixedBlockSize
from chainrule.decoding.drafts import Drafter, Prefix, TokenChooser
from chainrule.decoding.generation import stream_tokens
from chainrule.decoding.sampling import Sampling
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import is_right_to_left
from chainrule.serving.inspect_text import TokenText, token_text
from chainrule.tasks import Run
from chainrule.tasks.text import TextRun
from chainrule.tasks.translation import TranslationRun
from chainrule.tokenizers import Tokenizer
from chainrule.types import Sequences


class Node(TokenText):
    """A hypothesis that was in the beam: its parent and one token more."""

    parent: int | None = Field(description="index of the parent; None: the prompt")
    step: int = Field(description="number of tokens")
    log_prob: float = Field(description="of all its tokens, in nats")
    finished: bool


class Found(BaseModel):
    """A result of the search."""

    text: str
    log_prob: float
    score: float = Field(description="log P divided by length^α, by which results are ranked")
    node: int


class SearchTree(BaseModel):
    """A beam search: every hypothesis that was in the beam, and which were after each step."""

    nodes: list[Node]
    steps: list[list[int]] = Field(description="the hypotheses in the beam after each step, most probable first")
    found: list[Found] = Field(description="results, best first")


def search(run: Run, text: str, *, width: int, length: int, length_penalty: float = 1.0) -> SearchTree:
    """Continue or translate a text by beam search, and record what was in the beam."""
    if isinstance(run, TextRun):
        if run.right_to_left:
            raise DecodingError("this model reads from right to left, so nothing follows a text; choose another run")
        options: dict[str, Any] = {"suppress": run.suppressed}
        prompts, model = run.prompt_ids([text]), run.autoregressive
    elif isinstance(run, TranslationRun) and isinstance(run.model, AutoregressiveModel):
        translator = run.translator()
        source = Sequences.pack([translator.encode_source(text)], run.model.device)
        options = {"suppress": translator.suppressed(copy_unknown=False), "source": source}
        prompts, model = [[]], run.model
    else:
        raise DecodingError("this model does not generate token by token; choose a language or translation model")
    recorder = _Recorder(run.tokenizer, is_right_to_left(run.model))
    last: list[Beam] = []
    for beams in beam_steps(
        model,
        prompts,
        width=width,
        length=min(length, model.context or length),
        eos=run.tokenizer.eos,
        length_penalty=length_penalty,
        num=width,
        **options,
    ):
        last = beams
        recorder.record(beams[0])
    return recorder.tree(last[0])


class _Recorder:
    """Numbers the hypotheses in the order in which they enter the beam."""

    def __init__(self, tokenizer: Tokenizer, right_to_left: bool) -> None:
        self.tokenizer, self.right_to_left = tokenizer, right_to_left
        self.nodes: list[Node] = []
        self.steps: list[list[int]] = []
        self._index: dict[tuple[int, ...], int] = {}
        self._finished = 0  # number of finished hypotheses that are recorded

    def record(self, beam: Beam) -> None:
        new = [(one.ids, one.log_prob, False) for one in beam.live]
        for _, one in beam.finished[self._finished :]:
            ids = [*one.ids, self.tokenizer.eos] if one.finished == "eos" else one.ids
            new.append((ids, one.log_prob, True))
        self._finished = len(beam.finished)
        new.sort(key=lambda one: -one[1])
        self.steps.append([self._node(*one) for one in new])

    def _node(self, ids: Sequence[int], log_prob: float, finished: bool) -> int:
        node = Node(
            **token_text(self.tokenizer, ids[-1]).model_dump(),
            parent=self._index.get(tuple(ids[:-1])),
            step=len(ids),
            log_prob=log_prob,
            finished=finished,
        )
        self._index[tuple(ids)] = len(self.nodes)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def tree(self, beam: Beam) -> SearchTree:
        found = []
        for one in beam.best():
            ids = [*one.ids, self.tokenizer.eos] if one.finished == "eos" else one.ids
            shown = one.ids[::-1] if self.right_to_left else one.ids
            known = [token for token in shown if token < self.tokenizer.vocabulary]
            found.append(
                Found(
                    text=self.tokenizer.decode(known),
                    log_prob=one.log_prob,
                    score=beam.rules.score(one.log_prob, len(ids)),
                    node=self._index[tuple(ids)],
                )
            )
        return SearchTree(nodes=self.nodes, steps=self.steps, found=found)


class DraftedBlock(BaseModel):
    """Draft tokens that the model verified in one pass."""

    drafted: list[TokenText]
    accepted: int = Field(description="number of draft tokens that the model chose, too")
    chosen: list[TokenText] = Field(description="what was generated: the accepted ones and the model's next token")


class Drafting(BaseModel):
    """Speculative decoding of a text."""

    blocks: list[DraftedBlock]
    drafted: int
    accepted: int
    passes: int = Field(description="forward passes of the model")
    tokens: int


class _RecordingDrafter(Drafter):
    """Another drafter whose last proposal is remembered."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.proposed: list[int] = []

    def check(self, model: AutoregressiveModel) -> None:
        self.drafter.check(model)

    def begin(self, source: Sequences | None) -> None:
        self.drafter.begin(source)

    def propose(self, prefixes: Sequence[Prefix], count: int, choose: TokenChooser) -> list[list[int]]:
        found = self.drafter.propose(prefixes, count, choose)
        self.proposed = found[0]
        return found

    @property
    def ready(self) -> bool:
        return self.drafter.ready

    def prepare(self, saving: float) -> bool:
        return self.drafter.prepare(saving)


def drafting(
    run: TextRun, text: str, draft: TextRun | None, *, length: int, block: int, sampling: Sampling, seed: int
) -> Drafting:
    """Continue a text with a draft model, or with what the text repeats, and record every block."""
    if run.right_to_left:
        raise DecodingError("this model reads from right to left, so nothing follows a text; choose another run")
    drafter = _RecordingDrafter(run.drafter("self" if draft is None else draft))
    blocks = []
    for tokens in stream_tokens(
        run.autoregressive,
        run.prompt_ids([text]),
        length=length,
        sampling=sampling,
        seeds=[seed],
        eos=run.tokenizer.eos,
        suppress=run.suppressed,
        draft=drafter,
        block_size=FixedBlockSize(block + 1),
    ):
        proposed, drafter.proposed = drafter.proposed, []
        chosen = [token.id for token in tokens]
        accepted = next((at for at, (a, b) in enumerate(zip(proposed, chosen, strict=False)) if a != b), None)
        blocks.append(
            DraftedBlock(
                drafted=[token_text(run.tokenizer, token) for token in proposed],
                accepted=min(len(proposed), len(chosen)) if accepted is None else accepted,
                chosen=[token_text(run.tokenizer, token) for token in chosen],
            )
        )
    return Drafting(
        blocks=blocks,
        drafted=sum(len(one.drafted) for one in blocks),
        accepted=sum(one.accepted for one in blocks),
        passes=len(blocks),
        tokens=sum(len(one.chosen) for one in blocks),
    )
