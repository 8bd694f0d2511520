"""chainrule: autoregressive sequence models of every family behind one small interface.

    run = chainrule.train("gpt", data="my.txt", minutes=5)
    run = chainrule.load("runs/gpt-1")
    run.score("How likely is this?").bits_per_byte
    run.generate("Once upon a time")[0].text
    run.model  # the nn.Module
    chainrule.compare("my.txt", minutes=10, out="comparison").best  # which family?
    chainrule.mix(["runs/gpt-1", "runs/ngram-1"], out="runs/both")  # one model of two

Names are imported when they are first used, so that `import chainrule` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.api import train as train
    from chainrule.comparison.compare import compare as compare
    from chainrule.mixing import mix as mix
    from chainrule.tasks import Run as Run
    from chainrule.tasks import load as load
    from chainrule.testing import check_model as check_model

__version__ = "0.1.0"
__all__ = ["Run", "check_model", "compare", "load", "mix", "train", "__version__"]

_HOMES = {
    "train": "chainrule.api",
    "load": "chainrule.tasks",
    "compare": "chainrule.comparison.compare",
    "mix": "chainrule.mixing",
    "Run": "chainrule.tasks",
    "check_model": "chainrule.testing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'chainrule' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
