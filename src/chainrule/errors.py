"""The exceptions of chainrule.

ChainruleError
├── ConfigError       an unknown key, a value out of range, options that exclude each other
├── DataError         a file that is missing, empty, binary, too short or in an unexpected format
├── TokenizerError    a vocabulary that cannot be trained, read or applied
├── RunError          a run folder that is missing, incomplete, damaged or from a newer version
├── TrainingError     training that cannot continue: a loss that is not finite, nothing to train
├── DecodingError     a request that a decoder does not support
└── MissingExtra      an optional dependency that is not installed; the message names the extra

A message is one line that states the problem, the value, and a remedy. The command line prints it and exits with
status 2. Any other exception that reaches the user is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ChainruleError(Exception):
    """Base class of all errors that the user can fix."""


class ConfigError(ChainruleError):
    """An invalid setting."""


class DataError(ChainruleError):
    """Data that cannot be read or used."""


class TokenizerError(ChainruleError):
    """A tokenizer that cannot be trained, read or applied."""


class RunError(ChainruleError):
    """A run folder that cannot be used."""


class TrainingError(ChainruleError):
    """Training that cannot continue."""


class DecodingError(ChainruleError):
    """A request that a decoder does not support."""


class MissingExtra(ChainruleError):
    """An optional dependency is not installed."""

    def __init__(self, need: str, extra: str) -> None:
        super().__init__(
            f"{need} needs the optional dependency chainrule[{extra}]; "
            f'install it in your clone: pip install -c constraints.txt -e ".[{extra}]"'
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the remedy of an error about an unknown name: the closest known one, or a list of all."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "choose from: " + ", ".join(options)
