"""Text features: hidden vectors of a pretrained BERT or GPT-2 in a local folder, and encoders of text."""

from chainrule.features.extraction import extract
from chainrule.features.pretrained import Pretrained, use_tokenizer

__all__ = ["Pretrained", "extract", "use_tokenizer"]
