"""Small models with random weights in float64 that depend on their whole history."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chainrule.config import ModelConfig
from chainrule.interface.base import Advance, AutoregressiveModel, Table, TabledReadout, readable, shift_right
from chainrule.types import Batch, Sequences, Step

VOCABULARY = 5


class TinyGRU(TabledReadout):
    """A recurrent model with unlimited context; a source, if any, sets the initial state."""

    task = "text"
    width = 8

    def __init__(self, vocabulary):
        super().__init__(ModelConfig(vocabulary=vocabulary))
        self.embedding = nn.Embedding(vocabulary + 1, self.width)
        self.cell = nn.GRUCell(self.width, self.width)
        self.head = nn.Linear(self.width, vocabulary)

    def tables(self):
        yield self.embedding.weight
        yield self.head.weight

    def init_output_bias(self, log_frequencies):
        self.head.bias.data.copy_(log_frequencies)

    def initial(self, source, batch_size):
        if source is None:
            return self.head.weight.new_zeros(batch_size, self.width)
        return (self.embedding(readable(source)) * source.mask[..., None]).sum(1)

    def advance(self, tokens, state):
        hidden = []
        for token in tokens.unbind(1):
            state = self.cell(self.embedding(token), state)
            hidden.append(state)
        return Advance(torch.stack(hidden, 1), state)

    def hidden(self, batch):
        tokens = shift_right(readable(batch.target), self.bos)
        return self.advance(tokens, self.initial(batch.source, len(tokens))).hidden

    def readout_table(self):
        return Table(self.head.weight, self.head.bias)


class Positional(AutoregressiveModel):
    """A limited context: logits from the position, the last token and the sum of all; too many tokens are an error."""

    task = "text"

    def __init__(self, vocabulary, context):
        super().__init__(ModelConfig(vocabulary=vocabulary))
        self.limit = context
        self.positions = nn.Parameter(torch.randn(context, vocabulary))
        self.last = nn.Parameter(torch.randn(vocabulary + 1, vocabulary))
        self.sums = nn.Parameter(torch.randn(vocabulary + 1, vocabulary))

    @property
    def context(self):
        return self.limit

    def logits(self, batch):
        tokens = shift_right(readable(batch.target), self.vocabulary)
        return self._read(tokens, self._initial(batch.source, len(tokens))).logits

    def start(self, source=None, *, batch_size=1):
        rows = batch_size if source is None else len(source.ids)
        return self._read(torch.full((rows, 1), self.vocabulary), self._initial(source, rows))

    def extend(self, tokens, state):
        return self._read(tokens, state)

    def _initial(self, source, rows):
        sums = self.sums.new_zeros(rows, self.vocabulary)
        if source is not None:
            sums = (F.embedding(readable(source), self.sums) * source.mask[..., None]).sum(1)
        return {"sum": sums, "read": torch.zeros(rows, dtype=torch.int64)}

    def _read(self, tokens, state):
        where = state["read"][:, None] + torch.arange(tokens.shape[1])
        self.require_room(int(where.max()) + 1)
        sums = state["sum"][:, None] + F.embedding(tokens, self.sums).cumsum(1)
        logits = self.positions[where] + F.embedding(tokens, self.last) + torch.sin(sums)
        return Step(logits, {"sum": sums[:, -1], "read": where[:, -1] + 1})


class Bigram(AutoregressiveModel):
    """Probabilities from a table by the last token; the last row is for the start."""

    task = "text"

    def __init__(self, table):
        super().__init__(ModelConfig(vocabulary=len(table[0])))
        self.register_buffer("table", torch.tensor(table, dtype=torch.float64).log())

    def logits(self, batch):
        return self.table[shift_right(readable(batch.target), self.vocabulary)]

    def start(self, source=None, *, batch_size=1):
        return Step(self.table[-1].expand(batch_size, 1, -1), ())

    def extend(self, tokens, state):
        return Step(self.table[tokens], ())


def randomised(model, seed, scale):
    """Large weights, so that there are no near ties."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
    return model.double().eval()


@pytest.fixture
def recurrent():
    return randomised(TinyGRU(VOCABULARY), seed=0, scale=1.0)


@pytest.fixture
def bounded():
    return randomised(Positional(VOCABULARY, context=7), seed=1, scale=1.5)


@pytest.fixture(params=["recurrent", "bounded"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def make_bounded():
    return lambda context: randomised(Positional(VOCABULARY, context), seed=1, scale=1.5)


@pytest.fixture
def make_bigram():
    return Bigram


@pytest.fixture
def make_unigram():
    return lambda probabilities: Bigram([probabilities] * (len(probabilities) + 1))


@pytest.fixture
def predict():
    """Log-probabilities (V,) after a history, by `logits` only, with the window advanced token by token."""

    def log_probs(model, history, source=None):
        view = []
        for index, token in enumerate(history):
            view.append(token)
            if len(view) == model.context:
                view = list(history[index + 1 - model.context // 2 : index + 1])
        batch = Batch(Sequences.full(torch.tensor([[*view, 0]])), source)
        return model.logits(batch)[0, -1].log_softmax(-1).detach()

    return log_probs
