"""Decoding: from predictions to token ids and texts.

sampling      choose one token from logits
incremental   read rows of different lengths, beyond the context, and rewind them
generation    sample or decode greedily, token by token
drafts        drafters for speculative decoding
speculative   verify draft tokens in blocks
beam          beam search
structured    Viterbi search and answer spans
filling       gaps in a text
copying       replace unknown words of a translation
translation   batches of sources as token ids
translator    texts with their tokenizers
"""

from chainrule.decoding.beam import beam_search
from chainrule.decoding.block_size import BlockSize, FixedBlockSize
from chainrule.decoding.drafts import Drafter, FallbackDrafter, LookaheadDrafter, LookupDrafter, ModelDrafter
from chainrule.decoding.generation import GeneratedToken, Generation, generate_tokens, stream_tokens
from chainrule.decoding.sampling import GREEDY, Sampling, choose
from chainrule.decoding.structured import viterbi
from chainrule.decoding.translation import Search, Translation, decode_sources
from chainrule.decoding.translator import Alignment, TranslatedText, Translator, agreement

__all__ = [
    "GREEDY",
    "Alignment",
    "BlockSize",
    "Drafter",
    "FallbackDrafter",
    "FixedBlockSize",
    "GeneratedToken",
    "Generation",
    "LookaheadDrafter",
    "LookupDrafter",
    "ModelDrafter",
    "Sampling",
    "Search",
    "TranslatedText",
    "Translation",
    "Translator",
    "agreement",
    "beam_search",
    "choose",
    "decode_sources",
    "generate_tokens",
    "stream_tokens",
    "viterbi",
]
