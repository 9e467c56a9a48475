"""`candlewick segment`: a picture and a place in it, the object out: mask, cut-out, run lengths or outline."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from candlewick.commands.common import Failure, emit, find_model, only_with, readable, writable, write_whole
from candlewick.options import OptionError

KINDS = (".png", ".json", ".svg")
EXAMPLES = {"--point": "400,300", "--box": "100,80,500,420"}


@dataclass(frozen=True)
class Prompt:
    """What was pointed at, in pixels of the picture."""

    points: list[list[float]]
    labels: list[int]
    box: list[float] | None

    @staticmethod
    def parse(points: Sequence[str], box: str | None) -> Prompt:
        """`X,Y` or `X,Y,LABEL` each, and `X0,Y0,X1,Y1`. Raises Failure that shows the form."""
        places, labels = [], []
        for text in points:
            numbers = _numbers("--point", text, (2, 3), "X,Y or X,Y,LABEL")
            if len(numbers) == 3 and numbers[2] not in (0, 1):
                raise Failure(f"--point {text}: the label is 1 (in the object) or 0 (not in it)")
            places.append(numbers[:2])
            labels.append(int(numbers[2]) if len(numbers) == 3 else 1)
        return Prompt(places, labels, None if box is None else _numbers("--box", box, (4,), "X0,Y0,X1,Y1"))

    def check(self, picture: np.ndarray) -> None:
        """Raises OptionError for what lies outside the picture, (height, width, 3)."""
        from candlewick.models.sam import check_inside

        check_inside(self.points, self.box, picture.shape[1], picture.shape[0])

    @property
    def empty(self) -> bool:
        return not self.points and self.box is None


def _numbers(option: str, text: str, counts: tuple[int, ...], form: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in counts or not np.isfinite(numbers).all():
        raise Failure(f"{option} {text}: wanted {form} in pixels, such as {EXAMPLES[option]}")
    return numbers


def segment(image: Path, model: str, executor: str, threads: int | None, points: Sequence[str], box: str | None,
            everything: bool, multimask: bool, cutout: bool, points_per_side: int | None, output: Path | None,
            quiet: bool) -> None:
    """Everything that can be refused is refused before the model loads; the output appears whole or not at all."""
    prompt = Prompt.parse(points, box)
    if everything and not prompt.empty:
        raise Failure("--everything finds all objects by itself; leave --point and --box out")
    if everything and multimask:
        raise Failure("--everything gives every object once; leave --multimask out")
    only_with("--points-per-side", points_per_side is not None, "--everything", everything)
    if not everything and prompt.empty:
        raise Failure("say what to segment: --point X,Y, --box X0,Y0,X1,Y1 or --everything")
    if output is None:
        kind = ".json"
    else:
        kind = output.suffix.lower()
        if kind not in KINDS:
            raise OptionError("{output} {path}: the name must end in {endings}", path=output, endings=", ".join(KINDS))
        writable(output, image)
    if cutout and (kind != ".png" or everything):
        raise Failure("--cutout writes one object as PNG; give -o NAME.png and a point or a box")
    picture = read_picture(image)
    prompt.check(picture)
    folder = find_sam(model)
    masks, facts = asyncio.run(
        run(folder, executor, threads, picture, prompt, everything, multimask, points_per_side or 32, quiet))
    if everything and not masks and not quiet:
        print("no object found", file=sys.stderr)
    write(picture, masks, facts, kind, cutout, output)


def find_sam(name: str) -> Path:
    """A checkpoint's folder, or a person's MobileSAM in PyTorch's own file."""
    path = Path(name)
    return path if path.is_file() and path.suffix in (".pt", ".pth") else find_model(name)


def read_picture(path: Path) -> np.ndarray:
    """-> (height, width, 3) uint8"""
    from candlewick.image_file import read_image

    return read_image(readable(path, "an image file"))


@contextlib.asynccontextmanager
async def segmenter(folder: Path, executor_name: str, threads: int | None) -> AsyncIterator[Any]:
    """A Segmenter on an executor, which is given back at the end."""
    from candlewick import executors
    from candlewick.models.sam import Segmenter
    from candlewick.weights.load import Checkpoint
    from candlewick.weights.source import FileSource

    own = folder.is_file()
    checkpoint = Checkpoint({folder.name: FileSource(folder)}, folder.name) if own else Checkpoint.open(folder)
    executor = executors.create(executor_name, threads=threads)
    try:
        yield await Segmenter.load(checkpoint, executor)
    finally:
        await executor.close()


async def run(folder: Path, executor_name: str, threads: int | None, picture: np.ndarray, prompt: Prompt, everything: bool,
              multimask: bool, points_per_side: int, quiet: bool) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    """-> logits (height, width) of each mask, best first (large first with --everything), and what is known of each."""
    from candlewick.models.sam import EverythingOptions, best

    async with segmenter(folder, executor_name, threads) as task:
        await task.set_image(picture)
        found: list[tuple[np.ndarray, dict[str, Any]]] = []
        if everything:
            shown = not quiet and sys.stderr.isatty()
            async for event in task.segment_everything(EverythingOptions(points_per_side=points_per_side)):
                if event["event"] == "progress" and shown:
                    print(f"\rpoint {event['done']} of {event['total']}", end="", file=sys.stderr, flush=True)
                elif event["event"] == "mask":
                    facts = {"predicted_iou": event["iou"], "stability_score": event["stability"],
                             "point_coords": [event["point"]]}
                    found.append((task.upsample(event["logits"]), facts))
            if shown:
                print(file=sys.stderr)
        else:
            answer = await task.predict(prompt.points, prompt.labels, prompt.box, multimask=True if multimask else None)
            order = list(np.argsort(-answer["iou"], kind="stable")) if multimask else \
                [best(answer, len(prompt.points), prompt.box is not None)]
            for i in order:
                facts = {"predicted_iou": float(answer["iou"][i]), "point_coords": prompt.points,
                         "point_labels": prompt.labels, **({"box": prompt.box} if prompt.box else {})}
                found.append((task.upsample(answer["masks"][i]), facts))
    return [logits for logits, _ in found], [facts for _, facts in found]


def write(picture: np.ndarray, masks: list[np.ndarray], facts: list[dict[str, Any]], kind: str, cutout: bool,
          output: Path | None) -> None:
    """JSON and SVG hold every mask. A PNG holds one; where there are more, the others are NAME-2.png, NAME-3.png, ..."""
    from candlewick.models.sam import outputs

    height, width = picture.shape[:2]
    if kind == ".json":
        objects = [outputs.annotation(logits > 0, **about) for logits, about in zip(masks, facts)]
        emit(outputs.to_json(width, height, objects), output)
        return
    assert output is not None
    if kind == ".svg":
        emit(outputs.svg([logits > 0 for logits in masks], width, height), output)
        return
    for i, logits in enumerate(masks, 1):
        to = output if i == 1 else output.with_name(f"{output.stem}-{i}{output.suffix}")
        write_whole(to, outputs.cutout_png(picture, logits) if cutout else outputs.mask_png(logits > 0))
