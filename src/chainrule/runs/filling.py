"""Runs that fill gaps: what is missing here?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chainrule.decoding.filling import Filling, FillSearch, fill
from chainrule.errors import ConfigError
from chainrule.runs.embeddings import EmbeddingRun
from chainrule.tokenizers.bytes import Bytes
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace

GAP = "<>"


class Filled(NamedTuple):
    """A text whose gaps were filled."""

    text: str
    gaps: list[str]  # what was written into each
    log_prob: float  # nats, of all of it given the rest of the text


@dataclass(frozen=True, kw_only=True)
class FillingRun(EmbeddingRun):
    """A model that sees both sides of a gap, with its vocabulary. It embeds texts as well."""

    does = "fills gaps"
    use = 'chainrule fill {run} --text "… <> …"'

    def fill(self, text: str, *, num: int = 5, beam: int | None = None, longest: int = 16) -> list[Filled]:
        """The best fillings, best first, of a text in which `<>` stands for what is missing.

        A masked model writes one token into each gap; two gaps side by side are two tokens. One that writes spans
        writes up to `longest` tokens.
        """
        if beam is not None and beam < num:
            raise ConfigError(f"{num} fillings were asked of a beam of {beam}; raise beam to {num}")
        parts = [self.tokenizer.encode(part).tolist() for part in self._parts(text)]
        limits = FillSearch(beam=beam or max(8, num), longest=longest, suppress=tuple(self._suppressed))
        found = fill(self.model, parts, limits, eos=self.tokenizer.eos)
        return [self._filled(parts, one) for one in found[:num]]

    def _parts(self, text: str) -> list[str]:
        """What stands between the gaps.

        Tokens begin with the space that parts them from the word before, so a space before a gap belongs to the gap,
        unless tokens are single characters.
        """
        *before, last = text.split(GAP)
        if isinstance(self.tokenizer, Chars | Bytes):
            return [*before, last]
        return [*(part.removesuffix(" ") for part in before), last]

    def _filled(self, parts: list[list[int]], filling: Filling) -> Filled:
        ids = list(parts[0])
        for span, part in zip(filling.spans, parts[1:], strict=True):
            ids += [*span, *part]
        gaps = [self.tokenizer.decode(span) for span in filling.spans]
        return Filled(self.tokenizer.decode(ids), [gap.strip(" ") or gap for gap in gaps], filling.log_prob)

    @property
    def _suppressed(self) -> list[int]:
        """What is no text: the unknown token, an end in the middle, and ids that stand for nothing."""
        tokenizer = self.tokenizer
        unknown = [] if tokenizer.unknown is None else [tokenizer.unknown]
        special = tokenizer.special if isinstance(tokenizer, HuggingFace) else []
        without_text = range(tokenizer.vocabulary, self.model.vocabulary)
        return sorted({*unknown, tokenizer.eos, *special, *without_text})
