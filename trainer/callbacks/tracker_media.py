"""How each tracker shows images, histograms and confusion matrices, by its own classes.

https://docs.wandb.ai/ref/python/data-types, https://pytorch.org/docs/stable/tensorboard.html,
https://huggingface.co/docs/trackio
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..reporting.drawing import padded
from ..reporting.media import Shown, ShownHistogram, ShownImages

# W&B cuts off what is drawn from a table of more rows: then it is a picture.
_MOST_TABLE_CLASSES = 60


class NoPictures(Exception):
    """A tracker that has no way to show pictures through Accelerate."""


def show_in(tracker_name: str, tracker: Any, name: str, shown: Shown, step: int) -> None:
    """Show a value in a tracker of Accelerate that has started, as ``media/NAME``.

    The prefix keeps it apart from numbers: ``samples`` is an axis of each run.

    Raises:
        NoPictures: it cannot.
        Exception: whatever its client raises.
    """
    name = f"media/{name}"
    if tracker_name == "wandb":
        values = {"step": step, name: _for_wandb(name, shown)}
        tracker.log(values, step=step)
    elif tracker_name == "trackio":
        tracker.log({name: _for_trackio(shown)}, step=step)
    elif tracker_name == "tensorboard":
        _show_in_tensorboard(tracker.tracker, name, shown, step)
    else:
        _show_in_other(tracker_name, tracker, name, shown, step)


def _for_wandb(name: str, shown: Shown) -> Any:
    import wandb

    if isinstance(shown, ShownHistogram):
        return wandb.Histogram(np_histogram=(shown.counts, shown.edges))
    if isinstance(shown, ShownImages):
        pairs = zip(shown.images, shown.captions, strict=True)
        return [wandb.Image(image, caption=caption or None) for image, caption in pairs]
    if len(shown.names) > _MOST_TABLE_CLASSES:
        return wandb.Image(shown.picture())

    # What wandb.plot.confusion_matrix draws, which takes every single prediction.
    rows = []
    for row, actual in enumerate(shown.names):
        for column, predicted in enumerate(shown.names):
            rows.append([actual, predicted, shown.counts[row, column]])
    columns: list[str | int] = ["Actual", "Predicted", "nPredictions"]
    return wandb.plot_table(
        vega_spec_name="wandb/confusion_matrix/v1",
        data_table=wandb.Table(columns=columns, data=rows),
        fields={str(column): str(column) for column in columns},
        string_fields={"title": name},
    )


def _for_trackio(shown: Shown) -> Any:
    import trackio

    if isinstance(shown, ShownHistogram):
        return trackio.Histogram(np_histogram=(shown.counts, shown.edges))
    if isinstance(shown, ShownImages):
        pictures = [trackio.Image(image) for image in shown.images]
        if len(pictures) == 1:
            return trackio.Image(shown.images[0], caption=shown.captions[0] or None)
        rows = [list(pair) for pair in zip(pictures, shown.captions, strict=True)]
        return trackio.Table(columns=["image", "caption"], data=rows)
    return trackio.Image(shown.picture())  # its tables sort columns that are numbers


def _show_in_tensorboard(writer: Any, name: str, shown: Shown, step: int) -> None:
    if isinstance(shown, ShownHistogram):
        writer.add_histogram_raw(
            name,
            min=shown.edges[0],
            max=shown.edges[-1],
            num=int(shown.counts.sum()),
            sum=shown.total,
            sum_squares=shown.total_of_squares,
            bucket_limits=shown.edges[1:].tolist(),
            bucket_counts=shown.counts.tolist(),
            global_step=step,
        )

    elif isinstance(shown, ShownImages):
        batch = np.stack(padded(shown.images))
        writer.add_images(name, batch, global_step=step, dataformats="NHWC")
        captions = [caption for caption in shown.captions if caption]
        if captions:
            lines = [f"{number}. {text}" for number, text in enumerate(shown.captions, start=1)]
            writer.add_text(f"{name}/captions", "\n".join(lines), global_step=step)

    else:
        writer.add_image(name, shown.picture(), global_step=step, dataformats="HWC")

    writer.flush()


def _show_in_other(tracker_name: str, tracker: Any, name: str, shown: Shown, step: int) -> None:
    """Show pictures in a tracker by Accelerate's ``log_images``, where it has one."""
    log_images = getattr(tracker, "log_images", None)
    if log_images is None:
        raise NoPictures
    if tracker_name == "swanlab":
        images = shown.images if isinstance(shown, ShownImages) else [shown.picture()]
        log_images({name: images}, step=step)
    else:  # aim and clearml take one picture under a name
        log_images({name: shown.picture()}, step=step)
