"""Everything that chainrule raises on purpose.

ChainruleError
├── ConfigError       an unknown key, a value out of range, options that exclude each other
├── DataError         a file that is missing, empty, binary, too short or in another form than stated
├── TokenizerError    a vocabulary that cannot be trained, read or applied
├── RunError          a run folder that is missing, half written, damaged or from a newer version
├── TrainingError     a run that cannot go on: loss not finite, nothing to train
├── DecodingError     a request that a decoder cannot fulfil
└── MissingExtra      an optional dependency that is not installed; the message names the extra

A message is one line and says what is wrong, what was found, and what to do about it. The command line prints it
and exits with status 2; anything else that escapes is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ChainruleError(Exception):
    """Base of every error that is the user's to mend."""


class ConfigError(ChainruleError):
    """A setting that cannot be used."""


class DataError(ChainruleError):
    """Data that cannot be read or does not suffice."""


class TokenizerError(ChainruleError):
    """A tokenizer that cannot be trained, read or applied."""


class RunError(ChainruleError):
    """A run folder that cannot be used."""


class TrainingError(ChainruleError):
    """Training that cannot go on."""


class DecodingError(ChainruleError):
    """A request that a decoder cannot fulfil."""


class MissingExtra(ChainruleError):
    """An optional dependency is not installed."""

    def __init__(self, need: str, extra: str) -> None:
        super().__init__(f'{need} needs an optional dependency; install it with: pip install "chainrule[{extra}]"')


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown word: the closest known one, or all of them."""
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "choose from: " + ", ".join(options)
