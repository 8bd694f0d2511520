"""Features of text: what a pretrained BERT or GPT-2 that lies in a local folder makes of it."""

from chainrule.features.extraction import extract
from chainrule.features.pretrained import Pretrained

__all__ = ["Pretrained", "extract"]
