"""The Fast Autoregressive Transformer; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.translation import Search, decode_sources
from chainrule.errors import ConfigError, DataError
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import is_right_to_left
from chainrule.kernels import step as kernels
from chainrule.models.fat import FAT, FATConfig
from chainrule.nn.layers import rms_norm
from chainrule.testing import check_model
from chainrule.types import Batch, Sequences, tensors
from tests.models.copying import exact_matches, learn

VOCABULARY, SOURCE_VOCABULARY = 7, 9
SMALL = {
    "vocabulary": VOCABULARY,
    "source_vocabulary": SOURCE_VOCABULARY,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "width": 8,
    "heads": 2,
    "key_width": 3,
    "max_distance": 2,
    "context": 16,
}
RARE = (3, 5)  # source tokens that were counted once, where others were counted ten times
SKIPPING = {"skip": {"threshold": 0.5}}  # 0.5 · 9 = 4.5 times


def model_of(**settings: object) -> FAT:
    """With perturbed parameters, because residual branches are initialised to zero."""
    torch.manual_seed(0)
    model = FAT(FATConfig.parse({**SMALL, **settings})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def skipping_model(**settings: object) -> FAT:
    model = model_of(**SKIPPING, **settings)
    counts = torch.full((SOURCE_VOCABULARY,), 10)
    counts[list(RARE)] = 1
    model.set_source_frequency(counts)
    return model


def batch() -> Batch:
    random = torch.Generator().manual_seed(2)
    target = torch.randint(VOCABULARY, (3, 6), generator=random)
    source = torch.tensor([[1, 3, 4, 5, 0], [5, 3, 0, 7, 7], [0, 2, 2, 2, 2]])
    return Batch(Sequences.full(target), Sequences(source, torch.tensor([5, 3, 1])))


# The equations


def read(model: FAT, ids: Tensor, positions: Tensor) -> Tensor:
    """The encoder for one source, token by token, following the docstring."""
    assert model.tokens.source is not None
    x = rms_norm(model.tokens.source)[ids] + model.sinusoids[positions]
    for layer in model.encoder:
        u = rms_norm(x)
        queries, keys = layer.query_key(u).view(len(ids), 2, 2, 3).unbind(1)  # (S, H, d) each
        values, gates = layer.value_gate(u).chunk(2, -1)
        found = torch.zeros_like(u)
        for i in range(len(ids)):
            for head in range(2):
                lengths = (queries[i, head] + keys[:, head]).relu().norm(dim=-1)
                weights = (lengths / 3**0.5).softmax(0)
                found[i, head * 4 : head * 4 + 4] = weights @ values[:, head * 4 : head * 4 + 4]
        x = x + layer.out(gates.sigmoid() * found)
        x = x + layer.mlp.out(layer.mlp.inside(rms_norm(x)).relu().square())
    return rms_norm(x)


def write(model: FAT, tokens: list[int], source: Tensor, positions: Tensor) -> Tensor:
    """The decoder for one target, step by step."""
    memories = [torch.zeros(8, dtype=torch.float64) for _ in model.decoder]
    predictions = []
    for time, token in enumerate(tokens):
        y = rms_norm(model.tokens.matrix)[token]
        for number, layer in enumerate(model.decoder):
            u = rms_norm(y)
            forget, candidate = layer.gates(u[None])[0].chunk(2)
            decay = forget.sigmoid()
            memories[number] = h = decay * memories[number] + (1 - decay) * candidate
            query = layer.query(rms_norm(h))
            keys, values = layer.key_value(source).chunk(2, -1)
            context = []
            for head in range(2):
                part = slice(head * 4, head * 4 + 4)
                distances = layer.distances[(time - positions).clamp(-2, 2) + 2, head]
                scores = keys[:, part] @ query[part] / 2 + distances
                weights = scores.softmax(0)
                if model.config.attention_weights == "tanh":
                    weights = scores.tanh() / scores.tanh().abs().sum()
                context.append(weights @ values[:, part])
            inside = layer.mlp.inside(torch.cat([u, rms_norm(h), *context])).relu().square()
            y = y + layer.mlp.out(inside)
        predictions.append(rms_norm(y) @ model.tokens.matrix[:VOCABULARY].t() + model.tokens.bias)
    return torch.stack(predictions)


@torch.no_grad()
@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
@pytest.mark.parametrize("weights", ["softmax", "tanh"])
def test_the_model_computes_its_equations(direction: str, weights: str) -> None:
    model, (target, source) = model_of(direction=direction, attention_weights=weights), batch()
    found = model.logits(batch())
    for row, length in enumerate(source.lengths.tolist()):
        positions = torch.arange(length) if direction == "left_to_right" else torch.arange(length).flip(0)
        vectors = read(model, source.ids[row, :length], positions)
        expected = write(model, [VOCABULARY, *target.ids[row, :-1].tolist()], vectors, positions)
        torch.testing.assert_close(found[row], expected)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["softmax", "tanh"])
def test_attention_maps_are_distributions_over_unpadded_source_tokens(weights: str) -> None:
    maps, (_, source) = model_of(attention_weights=weights).attention_maps(batch()), batch()
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps[..., 0]))
    assert not maps.masked_select(~source.mask[:, None]).any()


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
def test_the_state_does_not_grow_with_the_target(rows: int) -> None:
    model, (target, source) = model_of(), batch()
    step = model.start(Sequences(source.ids[:rows], source.lengths[:rows]))
    sizes = set()
    for token in target.ids[:rows].t():
        sizes.add(sum(tensor.numel() for tensor in tensors(step.state)))
        step = model.step(token, step.state)
    assert len(sizes) == 1


def test_a_source_longer_than_the_context_is_refused() -> None:
    with pytest.raises(DataError, match="17 tokens does not fit into the context of 16"):
        model_of().start(Sequences.full(torch.zeros(1, 17, dtype=torch.int64)))


def test_a_right_to_left_model_declares_its_direction() -> None:
    assert is_right_to_left(model_of(direction="right_to_left"))
    assert not is_right_to_left(model_of())


# Learning


@pytest.mark.parametrize("reverse", [False, True])
def test_it_learns_to_copy_and_to_reverse(reverse: bool) -> None:
    torch.manual_seed(0)
    sizes = {"vocabulary": 6, "source_vocabulary": 6, "width": 32, "encoder_layers": 2, "dropout": 0.0}
    model = FAT(FATConfig.parse(sizes))
    learn(model, reverse=reverse, steps=200)
    assert exact_matches(model, reverse=reverse) > 0.9


# The hybrid forward pass


@torch.no_grad()
def test_nothing_is_skipped_before_tokens_are_counted() -> None:
    model, counted = model_of(**SKIPPING), skipping_model()
    torch.testing.assert_close(model.logits(batch()), model_of().logits(batch()))
    assert not torch.allclose(counted.logits(batch()), model.logits(batch()))


@torch.no_grad()
@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
def test_skipping_a_token_equals_attending_to_all_but_it(direction: str) -> None:
    """The reference computes all tokens and masks the rare ones in attention."""
    model, (target, source) = skipping_model(direction=direction), batch()
    full = model_of(direction=direction)
    positions = torch.arange(5)[None]
    if model.right_to_left:
        positions = (source.lengths[:, None] - 1 - positions).clamp_min(0)
    ends = torch.arange(5) == source.lengths[:, None] - 1
    rare = torch.isin(source.ids, torch.tensor(RARE)) & ~ends
    hidden = (rare | ~source.mask)[:, None, None]
    x = full.tokens.embed_source(source.ids) + full.sinusoids[positions]
    for layer in full.encoder:
        x = layer(x, torch.zeros(3, 1, 1, 5, dtype=x.dtype).masked_fill(hidden, -torch.inf))
    tokens = F.pad(target.ids, (1, 0), value=full.bos)[:, :-1]
    cross_attends = []
    for layer in full.decoder:
        keys, values = layer.key_values(rms_norm(x))
        offsets = (torch.arange(6)[:, None] - positions[:, None]).clamp(-2, 2) + 2
        bias = layer.distances[offsets].permute(0, 3, 1, 2).masked_fill(hidden, -torch.inf)
        cross_attends.append(lambda q, k=keys, v=values, b=bias: F.scaled_dot_product_attention(q, k, v, b))
    y = full.tokens.embed(tokens)
    for layer, cross_attend in zip(full.decoder, cross_attends, strict=True):
        y, _ = layer(y, torch.zeros(3, 8, dtype=y.dtype), cross_attend)
    torch.testing.assert_close(model.logits(batch()), full.readout(rms_norm(y)))


@torch.no_grad()
def test_which_rare_token_is_skipped_makes_no_difference() -> None:
    model, (target, source) = skipping_model(), batch()
    assert source.ids[0, 1] == RARE[0]
    other = source.ids.clone()
    other[0, 1] = RARE[1]
    changed = Batch(target, Sequences(other, source.lengths))
    torch.testing.assert_close(model.logits(changed), model.logits(batch()), rtol=0, atol=0)
    assert not torch.allclose(model_of().logits(changed), model_of().logits(batch()))


@torch.no_grad()
def test_a_skipped_token_is_neither_computed_nor_attended_to() -> None:
    model = skipping_model()
    state = model.start(batch().source).state
    assert state.source.lengths.tolist() == [3, 1, 1]  # of 5, 3 and 1
    assert {keys.shape[2] for keys in state.source.keys} == {3}
    assert state.source.positions[0].tolist() == [0, 2, 4]
    maps = model.attention_maps(batch())
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps[..., 0]))
    assert not maps[0, :, [1, 3]].any()


@torch.no_grad()
def test_the_last_token_of_a_source_is_never_skipped() -> None:
    model = skipping_model()
    source = Sequences(torch.tensor([[RARE[0], RARE[1]]]), torch.tensor([2]))
    assert model.start(source).state.source.positions.tolist() == [[1]]


def test_a_model_that_skips_tokens_passes_every_check() -> None:
    check_model(lambda: skipping_model(direction="right_to_left"))


def test_fit_statistics_counts_source_tokens() -> None:
    model = model_of(**SKIPPING)
    model.fit_statistics([([1, 1, 2, 0], [1, 0]), ([2, 1, 0], [2, 0])])
    assert model.source_frequency.tolist() == [2, 3, 2, 0, 0, 0, 0, 0, 0]


# The shortlist

LISTING = {"shortlist": {"partners": 2, "threshold": 0.5}}  # 0.5 · 7 = 3.5 times


def listing_model(**settings: object) -> FAT:
    """0, 1 and 2 are frequent; 3 and 4 are candidates of source token 1, 5 of 4, and 6 of none."""
    model = model_of(**LISTING, **settings)
    assert model.shortlist is not None
    partners = torch.full((SOURCE_VOCABULARY, 2), -1)
    partners[1] = torch.tensor([3, 4])
    partners[4, 0] = 5
    model.shortlist.set(torch.arange(VOCABULARY) < 3, partners)
    return model


@torch.no_grad()
def test_a_shortlisted_model_renormalises_over_the_shortlist_of_its_source() -> None:
    model = listing_model()
    found = model.shortlisted().logits(batch()).softmax(-1)
    whole = model.logits(batch()).softmax(-1)
    for row, words in enumerate([[0, 1, 2, 3, 4, 5], [0, 1, 2], [0, 1, 2]]):
        listed = torch.zeros(VOCABULARY, dtype=torch.bool)
        listed[words] = True
        assert not found[row, :, ~listed].any()
        expected = whole[row][:, listed]
        torch.testing.assert_close(found[row][:, listed], expected / expected.sum(-1, keepdim=True))


@torch.no_grad()
def test_tokens_off_the_shortlist_have_probability_zero() -> None:
    model, (_, source) = listing_model(), batch()
    within = Batch(Sequences.full(torch.tensor([[1, 5, 0]] * 3)), source)
    limited = model.shortlisted().log_prob(within)
    assert limited[0] > model.log_prob(within)[0]
    assert limited[1:].tolist() == [-torch.inf] * 2


def test_a_shortlisted_model_passes_every_check() -> None:
    findings = check_model(lambda: listing_model().shortlisted())
    excepted = {finding.check for finding in findings if finding.status == "exception"}
    assert excepted == {"saving and loading is bit exact", "the source matters"}
    assert sum(finding.status == "passed" for finding in findings) == 14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@torch.inference_mode()
def test_a_compiled_step_with_a_shortlist_equals_the_modules(dtype: torch.dtype) -> None:
    model = listing_model().eval().to(dtype).shortlisted()
    assert kernels.has_program(model)
    source, tokens = batch().source, torch.tensor([[1, 2, 0], [2, 2, 1], [0, 1, 1]])
    with kernels.torch_only():
        expected = extended(model, source, tokens)
    found = extended(model, source, tokens)
    assert torch.equal(found == -torch.inf, expected == -torch.inf)
    real = expected > -torch.inf
    torch.testing.assert_close(found[real], expected[real], atol=1e-12 if dtype == torch.float64 else 2e-5, rtol=0)


def extended(model: AutoregressiveModel, source: Sequences | None, tokens: torch.Tensor) -> torch.Tensor:
    """The logits after BOS and after each token."""
    step = model.start(source)
    found = [step.logits]
    for column in tokens.t():
        step = model.step(column, step.state)
        found.append(step.logits)
    return torch.cat(found, 1)


def test_beam_search_can_use_the_shortlist() -> None:
    model, sources = listing_model(), [[1, 4, 0], [2, 0], [4, 2, 3, 0]]
    found = decode_sources(model, sources, Search(beam=3, shortlist=True))
    assert found == decode_sources(model.shortlisted(), sources, Search(beam=3))
    assert found != decode_sources(model, sources, Search(beam=3))
    said = [{word for one in results for word in one.ids} for results in found]
    assert all(words <= {0, 1, 2, *more} for words, more in zip(said, ([3, 4, 5], [], [5]), strict=True))


def test_fit_statistics_puts_the_best_associated_tokens_on_the_shortlist() -> None:
    model = model_of(shortlist={"partners": 1, "threshold": 0.5})
    pairs = [([1, 0], [3, 1, 2, 0]), ([1, 0], [3, 1, 2, 0]), ([1, 2, 0], [4, 1, 2, 0]), ([2, 0], [4, 1, 2, 0])]
    model.fit_statistics(pairs)
    assert model.shortlist is not None
    assert model.shortlist.frequent.tolist() == [True, True, True, False, False, False, False]  # 4 times or more
    assert model.shortlist.partners[:4, 0].tolist() == [3, 3, 4, -1]  # 0 stood beside both: the lower id


def test_a_shortlist_contains_everything_until_it_is_set() -> None:
    model = model_of(**LISTING)
    torch.testing.assert_close(model.shortlisted().logits(batch()), model.logits(batch()))


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 9}, "width 9 is not divisible by heads 2; try 8 or 10"),
        ({"shortlist": {"partners": 5}}, "needs a threshold above 0, else no token is rare; set skip.threshold"),
        ({"skip": {"treshold": 1}}, "did you mean 'threshold'?"),
        ({"direction": "both"}, "'direction' got 'both'"),
        ({"shared_embeddings": True}, "got 9 source and 7 target tokens"),
    ],
)
def test_inconsistent_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        model_of(**settings)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_decoding_with_a_missing_shortlist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.shortlist\.partners"):
        model_of().shortlisted()
