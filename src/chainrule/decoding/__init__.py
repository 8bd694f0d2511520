"""From predictions to text: how a token is chosen, how a row goes on, and how the best of many is found."""

from chainrule.decoding.agreement import agreed
from chainrule.decoding.beam import beam_search
from chainrule.decoding.choose import GREEDY, Sampling, choose
from chainrule.decoding.drafts import Drafter, EitherDrafter, LookupDrafter, ModelDrafter
from chainrule.decoding.generate import Generation, Token, generate, stream
from chainrule.decoding.parallel import write
from chainrule.decoding.sentences import Alignment, Translated, Translator, streamed
from chainrule.decoding.translation import Search, Translation, translate
from chainrule.decoding.viterbi import viterbi

__all__ = [
    "GREEDY",
    "Alignment",
    "Drafter",
    "EitherDrafter",
    "Generation",
    "LookupDrafter",
    "ModelDrafter",
    "Sampling",
    "Search",
    "Token",
    "Translated",
    "Translation",
    "Translator",
    "agreed",
    "beam_search",
    "choose",
    "generate",
    "stream",
    "streamed",
    "translate",
    "viterbi",
    "write",
]
