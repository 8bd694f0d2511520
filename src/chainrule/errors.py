"""The exceptions of chainrule.

ChainruleError
├── ConfigError       an unknown key, a value out of range, options that exclude each other
├── DataError         a file that is missing, empty, binary, too short or in an unexpected format
├── TokenizerError    a vocabulary that cannot be trained, read or applied
├── RunError          a run folder that is missing, incomplete, damaged or from a newer version
│   └── NotANumber    a model that predicts NaN
├── TrainingError     training that cannot continue: a loss that is not finite, nothing to train
├── DecodingError     a request that a decoder does not support
├── WriteError        a file that cannot be written: a full disk, a folder without permission
└── MissingExtra      an optional dependency that is not installed; the message names the extra

A message is one line that states the problem, the value, and a remedy. The command line prints it and exits with
status 2. Any other exception that reaches the user is a bug.
"""

from __future__ import annotations

import difflib
import re
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


class NotANumber(RunError):
    """A model that predicts NaN."""

    def __init__(self) -> None:
        super().__init__("the model predicts NaN: its weights are damaged or its training diverged; train it again")


class TrainingError(ChainruleError):
    """Training that cannot continue."""


class DecodingError(ChainruleError):
    """A request that a decoder does not support."""


class WriteError(ChainruleError):
    """A file that cannot be written."""

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        super().__init__(f"cannot write {what!r}: {problem}; {remedy}")
        self.what, self.problem, self.remedy = what, problem, remedy


class MissingExtra(ChainruleError):
    """An optional dependency is not installed."""

    def __init__(self, need: str, extra: str) -> None:
        super().__init__(
            f"{need} needs the optional dependency chainrule[{extra}]; "
            f'install it in your clone: pip install -c constraints.txt -e ".[{extra}]"'
        )


def memory_problem(error: BaseException) -> str | None:
    """The message for an allocation that failed, in Python, NumPy or torch; None if it is another error."""
    text = str(error)
    failed = ("can't allocate memory", "not enough memory", "out of memory")  # torch raises RuntimeError
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and any(x in text for x in failed)):
        return None
    tried = re.search(r"tried to allocate (\d+) bytes|allocate ([\d.]+ [KMGTPE]iB)", text, re.IGNORECASE)
    amount = "" if tried is None else f" (allocating {tried[2] or in_units(int(tried[1]))})"
    return (
        f"out of memory{amount}; use a smaller model (model.width, model.layers), smaller batches "
        "(train.batch_tokens) or shorter texts"
    )


def in_units(size: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the remedy of an error about an unknown name: the closest known one, or a list of all."""
    options = sorted(known)
    close = close_names(name, options, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "choose from: " + ", ".join(options)


def close_names(name: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are most similar: first those that differ in case only."""
    options = list(dict.fromkeys(known))
    same = [option for option in options if option.casefold() == name.casefold()]
    close = difflib.get_close_matches(name, options, n=count, cutoff=cutoff)
    return list(dict.fromkeys([*same, *close]))[:count]
