"""`chainrule plan`: what training a large model takes, before it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Json, importing_torch, output, print_json, print_table

if TYPE_CHECKING:
    from chainrule.training.planning import Plan, Setting


def plan(
    parameters: Annotated[str, typer.Option(help="Size of the gpt: 124M, 1.5B, …", show_default=False)],
    tokens: Annotated[str, typer.Option(help="Training tokens: 300M, 30B, …", show_default=False)],
    gpus: Annotated[str, typer.Option(help="Number and kind: 1xA100, 8xA100, 64xH100, …", show_default=False)],
    vocabulary: Annotated[int, typer.Option(min=2, help="Tokens in the vocabulary.")] = 50304,
    context: Annotated[int, typer.Option(min=1, help="Tokens per sequence.")] = 1024,
    batch_tokens: Annotated[str, typer.Option(help="Tokens per optimizer step, of all processes together.")] = "524288",
    price: Annotated[
        float | None, typer.Option(min=0, help="Dollars per GPU and hour. Default: a round figure.", show_default=False)
    ] = None,
    network: Annotated[
        float, typer.Option(min=0.1, help="Network between machines, in GB/s per GPU and direction.")
    ] = 25.0,
    json: Json = False,
) -> None:
    """Estimate memory, batch, time and cost of training a gpt on several GPUs, and say which settings to use.

    The memory follows from the shapes of the model; the time from a simulation of computation and communication with
    the stated speeds of the hardware, of which training is assumed to reach 40 %. For example

        chainrule plan --parameters 1.5B --tokens 30B --gpus 8xA100
    """
    with importing_torch():
        from chainrule.training.planning import Machines, count_of, gpt_with, make_plan

    machines = Machines.parse(gpus)
    wanted, total = count_of(parameters, "--parameters"), count_of(tokens, "--tokens")
    shape = gpt_with(wanted, vocabulary=vocabulary, context=context)
    found = make_plan(shape, machines, batch_tokens=count_of(batch_tokens, "--batch-tokens"), network=network * 1e9)
    hourly = machines.number * (machines.gpu.price if price is None else price)
    rows = [_values(found, setting, total, hourly) for setting in found.settings]
    if json:
        print_json({"model": shape.model, "parameters": shape.parameters, "gpus": gpus, "settings": rows})
        return
    _show(found, rows, hourly)


def _values(plan: Plan, setting: Setting, tokens: int, hourly: float) -> dict[str, Any]:
    days = plan.days(setting, tokens)
    return {
        "parallel": setting.parallel,
        "memory_bytes": round(setting.memory),
        "state_bytes": round(setting.states),
        "activation_bytes": round(setting.activations),
        "rows": setting.rows,
        "accumulate": setting.pieces,
        "batch_tokens": plan.batch_tokens,
        "compute_seconds": setting.compute,
        "communication_seconds": setting.communication,
        "step_seconds": setting.seconds,
        "tokens_per_second": plan.batch_tokens / setting.seconds,
        "days": days,
        "dollars": 24 * days * hourly,
    }


def _show(plan: Plan, rows: list[dict[str, Any]], hourly: float) -> None:
    from chainrule.errors import in_units

    model, machines = plan.shape.model, plan.machines
    shape = f"width {model['width']}, {model['layers']} layers, {model['heads']} heads, context {model['context']}"
    for number, row in enumerate(rows):
        communication = f"{row['communication_seconds']:.3f} s, partly at the same time"
        table = {
            "setting": f"train.parallel={row['parallel']}",
            "memory per process": f"{in_units(row['memory_bytes'])} of {in_units(machines.gpu.memory)} "
            f"({in_units(row['state_bytes'])} weights, gradients and optimizer state)",
            "batch": f"{row['batch_tokens']:,} tokens: {row['rows']} sequences per process, "
            f"train.accumulate={row['accumulate']}",
            "step": f"{row['step_seconds']:.2f} s: computation {row['compute_seconds']:.2f} s, communication "
            f"{communication}",
            "speed": f"{row['tokens_per_second']:,.0f} tokens/s",
            "time": f"{row['days']:.1f} days",
            "cost": f"${row['dollars']:,.0f} at ${hourly:,.2f} per hour",
        }
        title = f"gpt, {plan.shape.parameters / 1e6:,.0f}M parameters: {shape}\n" if number == 0 else ""
        print_table(table, title=title)
    best, local = rows[0], min(machines.number, 8)
    nodes = "" if machines.number <= 8 else f" --nnodes {-(-machines.number // 8)}"
    settings = " ".join(f"--set model.{key}={model[key]}" for key in ("width", "layers", "heads", "context"))
    output.print(
        f"\nuse torchrun{nodes} --nproc-per-node {local} -m chainrule train gpt {settings} "
        f"--set train.batch_tokens={best['batch_tokens']} --set train.accumulate={best['accumulate']} "
        f"--set train.parallel={best['parallel']} …",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
