"""Every compiled step equals the torch modules that it replaces."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from chainrule.compose.mixture import Mixture
from chainrule.decoding import Sampling, generate_tokens
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.conditional import Conditional
from chainrule.kernels import integer_products
from chainrule.kernels.quantization import quantized
from chainrule.kernels.step import Compilable, program_of, room, torch_only
from chainrule.models.gpt import GPT
from chainrule.models.hybrid import HybridModel
from chainrule.testing.tiny import SOURCE_VOCABULARY, VOCABULARY, composed_variants, tiny_model, variants
from chainrule.types import Sequences, State, map_state, select, tensors

ROWS = 9  # more than are computed together
CHUNKS = (1, 1, 4, 1, 2)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def compiled(name: str, variant: str) -> bool:
    model = tiny_model(name, variant)
    return isinstance(model, Compilable) and model.has_program


COMPILED = [(name, variant) for name, variant in [*variants(), *composed_variants()] if compiled(name, variant)]


def sources(model: AutoregressiveModel) -> Sequences | None:
    """Sources of different lengths, for models of translation."""
    if not isinstance(model, Conditional):
        return None
    known = min(SOURCE_VOCABULARY, model.source_vocabulary)
    longest = min(6, model.source_context or 6)
    lengths = torch.tensor([6, 1, 4, 2, 6, 3, 5, 1, 2]).clamp(max=longest)
    return Sequences(torch.randint(known, (ROWS, longest)), lengths)


def read(model: AutoregressiveModel, source: Sequences | None, ids: torch.Tensor) -> tuple[torch.Tensor, State]:
    """Logits after BOS and after each token, and the last state."""
    step = model.start(source, batch_size=ROWS)
    found = [step.logits]
    for chunk in torch.split(ids, CHUNKS, dim=1):
        step = model.extend(chunk, step.state)
        found.append(step.logits)
    return torch.cat(found, dim=1), step.state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "variant"), COMPILED)
def test_a_compiled_step_equals_the_modules(name: str, variant: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, variant).to(dtype)
    torch.manual_seed(1)
    source, ids = sources(model), torch.randint(VOCABULARY, (ROWS, sum(CHUNKS)))
    with torch.inference_mode():
        with torch_only():
            expected, expected_state = read(model, source, ids)
        found, state = read(model, source, ids)
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=0)
    rows = slice(None) if source is None else source.lengths == source.ids.shape[1]  # padding may hold any value
    for ours, theirs in zip(tensors(state), tensors(expected_state), strict=True):
        torch.testing.assert_close(ours[rows], theirs[rows], atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize(("name", "variant"), COMPILED)
def test_a_row_is_the_same_to_the_last_bit_whatever_rows_share_its_batch(name: str, variant: str) -> None:
    model = tiny_model(name, variant).float()
    torch.manual_seed(1)
    source, ids = sources(model), torch.randint(VOCABULARY, (ROWS, sum(CHUNKS)))
    with torch.inference_mode():
        _, state = read(model, source, ids)
        if room(model, state) < 1:  # a window moves, and torch modules read it
            state = model.step(ids[:, 0], state).state
        if room(model, state) < 1:
            pytest.skip("its window moves at every token, and torch modules read it")
        order = torch.tensor([2, 0, 5, 1, 4, 3])
        alone = model.step(ids[:1, 0], select(state, order[1:2])).logits
        together = model.step(ids[order, 0], select(state, order)).logits
    assert torch.equal(together[1:2], alone)


@pytest.mark.parametrize(("name", "variant"), COMPILED)
def test_tokens_read_in_a_block_are_the_same_to_the_last_bit_as_one_by_one(name: str, variant: str) -> None:
    model = tiny_model(name, variant).float()
    torch.manual_seed(1)
    source, ids = sources(model), torch.randint(VOCABULARY, (1, 6))
    if source is not None:
        source = Sequences(source.ids[:1], source.lengths[:1])
    with torch.inference_mode():
        begin = model.start(source, batch_size=1).state
        block = model.extend(ids, map_state(torch.clone, begin)).logits
        single, state = [], begin
        for token in ids[0]:
            step = model.step(token[None], state)
            single.append(step.logits)
            state = step.state
    assert torch.equal(block, torch.cat(single, dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "variant"), COMPILED)
def test_a_step_with_int8_weights_equals_the_modules_with_the_same_rounded_weights(
    name: str, variant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer_products, "AVAILABLE", False)
    found, expected, exact = logits_in_int8(tiny_model(name, variant).to(dtype))
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=0)
    assert not torch.equal(expected, exact)
    assert (expected.softmax(-1) - exact.softmax(-1)).abs().max() < 0.05


@pytest.mark.skipif(not integer_products.AVAILABLE, reason="needs a processor with VNNI")
@pytest.mark.parametrize(("name", "variant"), COMPILED)
def test_products_in_integers_lose_little_beside_the_rounding_of_the_weights(name: str, variant: str) -> None:
    found, expected, exact = logits_in_int8(tiny_model(name, variant).float())
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() < (expected - exact).abs().max() / 50


def logits_in_int8(model: AutoregressiveModel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of the model with int8 weights, by its steps and by its modules; and those of the model itself."""
    small = quantized(model)
    torch.manual_seed(1)
    source, ids = sources(model), torch.randint(VOCABULARY, (ROWS, sum(CHUNKS)))
    with torch.inference_mode():
        with torch_only():
            expected, _ = read(small, source, ids)
            exact, _ = read(model, source, ids)
        return read(small, source, ids)[0], expected, exact


@pytest.mark.parametrize(("name", "variant"), [("gpt", "modern"), ("recurrent", "lstm"), ("transformer", "rotary")])
def test_a_row_with_int8_weights_is_the_same_in_any_batch_and_block(name: str, variant: str) -> None:
    model = quantized(tiny_model(name, variant).float())
    torch.manual_seed(1)
    source, ids = sources(model), torch.randint(VOCABULARY, (ROWS, 4))
    with torch.inference_mode():
        begin = model.start(source, batch_size=ROWS).state
        together = [model.step(ids[:, 0], map_state(torch.clone, begin))]
        for token in ids[:, 1:].unbind(1):
            together.append(model.step(token, together[-1].state))
        for row in range(ROWS):
            block = model.extend(ids[row : row + 1], select(begin, torch.tensor([row]))).logits
            assert torch.equal(block[0], torch.cat([step.logits[row] for step in together]))


def test_most_families_are_compiled() -> None:
    names = {name for name, _ in COMPILED}
    assert names >= {"gpt", "recurrent", "self_regressive", "causal_conv", "attentive_conv", "finite_memory"}
    assert names >= {"seq2seq", "transformer", "autoregressive_transformer", "fat", "t5"}
    assert names >= {"hybrid", "hybrid_language", "pixelcnn", "labelled_pixelcnn", "neural_cache", "reverse"}
    assert names >= {"mixture", "ensemble", "conditional_mixture", "conditional_ensemble", "sliding"}


def test_a_converted_or_copied_model_gets_a_program_of_its_own() -> None:
    model = tiny_model("gpt", "modern").float()
    assert isinstance(model, Compilable)
    ids = torch.tensor([1])
    with torch.inference_mode():
        first = model.step(ids, model.start().state).logits
        assert program_of(model) is program_of(model)
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.mul_(2)
        assert not torch.equal(other.step(ids, other.start().state).logits, first)
        double = model.double().step(ids, model.start().state).logits
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), first, atol=1e-5, rtol=0)


def test_a_model_with_another_tensor_or_module_gets_a_program_of_its_own() -> None:
    model = tiny_model("gpt", "modern").float()
    assert isinstance(model, GPT)
    with torch.inference_mode():
        first = program_of(model)
        block = model.trunk.blocks[0]
        model.trunk.blocks[0] = copy.deepcopy(block)
        second = program_of(model)
        assert second is not first
        name, weight = next(iter(model.trunk.blocks[0].named_parameters()))
        owner = model.trunk.blocks[0].get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], nn.Parameter(weight.clone(), requires_grad=False))
        third = program_of(model)
        assert third is not second
        assert program_of(model) is third


def test_changed_weights_are_used_at_once() -> None:
    model = tiny_model("recurrent", "lstm")
    ids = torch.tensor([1])
    with torch.inference_mode():
        before = model.step(ids, model.start().state).logits
        for parameter in model.parameters():
            parameter.add_(0.5)
        after = model.step(ids, model.start().state).logits
    assert not torch.equal(before, after)


def test_gradients_flow_through_the_modules_only() -> None:
    model = tiny_model("gpt", "modern")
    state = map_state(torch.clone, model.start().state)
    assert model.step(torch.tensor([1]), state).logits.requires_grad


def test_a_part_without_weight_does_not_change_a_compiled_mixture() -> None:
    first, second = tiny_model("gpt", "modern"), tiny_model("recurrent", "lstm")
    both = Mixture.of([first, second], gate="fixed", weights=[0.0, 1.0])
    assert both.has_program
    ids = torch.tensor([[1, 2]])
    with torch.inference_mode():
        found = both.extend(ids, both.start().state).logits
        expected = second.extend(ids, second.start().state).logits.log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=TOLERANCE[torch.float32], rtol=0)


def test_a_mixture_with_a_damaged_part_predicts_nan() -> None:
    both = Mixture.of([tiny_model("gpt", "modern"), tiny_model("recurrent", "lstm")])
    with torch.inference_mode():
        state = both.start().state
        next(both.components[1].parameters()).fill_(torch.nan)
        assert both.extend(torch.tensor([[1]]), state).logits.isnan().all()


def test_the_text_of_a_mixture_is_that_of_the_modules_across_windows() -> None:
    both = tiny_model("mixture", "context").double()
    options = {"length": 40, "sampling": Sampling(), "seeds": [1, 2]}
    with torch_only():
        expected = generate_tokens(both, [[1, 2, 3], [4]], **options)  # type: ignore[arg-type]
    found = generate_tokens(both, [[1, 2, 3], [4]], **options)  # type: ignore[arg-type]
    assert [one.ids for one in found] == [one.ids for one in expected]


@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize("name", ["hybrid", "hybrid_language"])
def test_a_hybrid_of_one_branch_equals_its_modules(name: str, gamma: float) -> None:
    model = tiny_model(name, "gated").double()
    assert isinstance(model, HybridModel)
    twin = model.with_gamma(gamma)
    torch.manual_seed(1)
    source, ids = sources(twin), torch.randint(VOCABULARY, (ROWS, sum(CHUNKS)))
    with torch.inference_mode():
        with torch_only():
            expected, _ = read(twin, source, ids)
        found, _ = read(twin, source, ids)
    torch.testing.assert_close(found, expected, atol=TOLERANCE[torch.float64], rtol=0)


def test_the_text_of_a_hybrid_is_that_of_the_modules_across_chunks_and_windows() -> None:
    model = tiny_model("hybrid_language", "several layers").double()
    options = {"length": 50, "sampling": Sampling(), "seeds": [1, 2, 3]}
    prompts = [[1, 2, 3], [4], [0] * 11]
    with torch_only():
        expected = generate_tokens(model, prompts, **options)  # type: ignore[arg-type]
    found = generate_tokens(model, prompts, **options)  # type: ignore[arg-type]
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected])
