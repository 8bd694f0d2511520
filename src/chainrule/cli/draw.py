"""`chainrule draw`: sample images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.lines import progress_bar
from chainrule.cli.options import Checkpoint, Device, RunPath, Threads, open_image_run, output, refuse_options
from chainrule.files import require_parent, require_suffix
from chainrule.limits import LARGEST_SEED

FRAMES = {".gif": 64, ".png": 12}  # frames of the generation, by file format


def draw(
    context: typer.Context,
    run: RunPath,
    out: Annotated[Path, typer.Option(help="PNG file for the grid of images.", show_default=False)],
    num: Annotated[int, typer.Option(min=1, help="Number of images.")] = 16,
    label: Annotated[
        str | None,
        typer.Option(
            help="Class of the images, for class-conditional models. Default: all classes in turn.", show_default=False
        ),
    ] = None,
    complete: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE|N",
            help="Complete the upper part of an image file, or of validation image N.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[float, typer.Option(help="With --complete: fraction of rows that are given.")] = 0.5,
    grow: Annotated[
        Path | None,
        typer.Option(
            help="Also write the pixel-by-pixel generation of the first image: a .gif, or a .png strip.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature: below 1 less random, above 1 more random.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Random seed; image i uses seed + i.")] = 0,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Sample images: unconditionally, given a class, or given the upper part of an image. For example

        chainrule draw runs/digits --out grid.png

        chainrule draw runs/labelled --label 3 --out threes.png

        chainrule draw runs/digits --complete 0 --out halves.png --grow growing.gif

    With --complete, the first image of the grid is the original.
    """
    require_suffix(out, (".png",))
    if grow is not None:
        require_suffix(grow, tuple(FRAMES))
    refuse_options(context, "keep", unless=complete is not None, needs="--complete")
    for path in filter(None, (out, grow)):
        require_parent(path)
    opened = open_image_run(run, device=device, threads=threads, checkpoint=checkpoint)
    import numpy as np

    from chainrule.data.pictures import grid, require_pillow, unfinished, write_growing, write_png

    require_pillow()
    example = None if complete is None else opened.example(complete)
    drawing = opened.drawing(num, label=label, complete=example, keep=keep, seed=seed, temperature=temperature)
    first = next(drawing)
    steps = opened.form.size - first.known
    count = 0 if grow is None else min(steps + 1, FRAMES[grow.suffix])
    chosen = {round(index * steps / max(1, count - 1)) for index in range(count)}
    frames = [unfinished(opened.visible(first.levels[0]), first.known)] if count else []
    with progress_bar("drawing") as progress:
        for step, stage in enumerate(drawing, start=1):
            progress(step / steps)
            if step in chosen:
                frames.append(unfinished(opened.visible(stage.levels[0]), stage.known))
    images = stage.levels if example is None else np.concatenate([example[None], stage.levels])
    write_png(out, grid(opened.visible(images)))
    output.print(f"[green]{out}[/green]  {len(images)} images", highlight=False, soft_wrap=True)
    if grow is not None:
        write_growing(grow, frames)
        output.print(f"[green]{grow}[/green]  {len(frames)} frames", highlight=False, soft_wrap=True)
