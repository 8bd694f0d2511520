"""From predictions to text: how a token is chosen, how a row goes on, and how the best of many is found."""

from chainrule.decoding.beam import beam_search
from chainrule.decoding.choose import GREEDY, Sampling, choose
from chainrule.decoding.generate import Generation, Token, generate, stream

__all__ = ["GREEDY", "Generation", "Sampling", "Token", "beam_search", "choose", "generate", "stream"]
