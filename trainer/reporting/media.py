"""Images, histograms and confusion matrices: what ``run.show`` takes, and what is made of them.

What it takes may be on a GPU, in bf16, normalized, far too many or too large. ``prepared`` makes
small arrays on the CPU of it, of which files and trackers take what they need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..text import kind_of, listed
from .drawing import bars, grid, heat_map

Pixels = NDArray[np.uint8]  # of shape (height, width, 3)
Notice = Callable[[str], None]

MOST_IMAGES = 64
MOST_PIXELS = 1024  # of the longer side
PIXELS_OF_A_CALL = 4 * 1024**2  # more would take seconds
MOST_CLASSES = 1000
BINS = 64
_CHUNK = 2**22  # elements that are counted at once
_IN_PARTS = (
    "a parameter of which each process holds a part is shown in "
    "`with run.whole_parameters(NAME) as model:`"
)
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Images:
    """Images for ``run.show``.

    Args:
        images: a tensor or array NCHW or NHWC (or one image CHW, HWC or HW), or a list of tensors,
            arrays and PIL images. Integers are from 0 to 255, floating-point values from 0 to 1.
        captions: one text for each image.
    """

    images: Any
    captions: Sequence[str] | None = None


@dataclass(frozen=True)
class Histogram:
    """The distribution of some numbers, for ``run.show``.

    Args:
        values: a tensor, an array or a list of numbers, of any shape.
    """

    values: Any


@dataclass(frozen=True)
class ConfusionMatrix:
    """A confusion matrix for ``run.show``.

    Args:
        counts: of shape (C, C); a row is a true class, a column a predicted one.
        names: of the classes.
    """

    counts: Any
    names: Sequence[str] | None = None


class NotShown(ValueError):
    """The reason why a value cannot be shown."""


@dataclass(frozen=True, kw_only=True)
class ShownImages:
    """Images as arrays of RGB pixels, and their captions ("" for none)."""

    images: list[Pixels]
    captions: list[str]

    def picture(self) -> Pixels:
        return grid(self.images)

    def numbers(self) -> dict[str, Any] | None:
        return {"captions": self.captions} if any(self.captions) else None


@dataclass(frozen=True, kw_only=True)
class ShownHistogram:
    """A histogram: counts between edges, and sums over all values."""

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]
    total: float
    total_of_squares: float

    def picture(self) -> Pixels:
        return bars(self.counts, self.edges)

    def numbers(self) -> dict[str, Any]:
        return {"counts": self.counts.tolist(), "edges": self.edges.tolist()}


@dataclass(frozen=True, kw_only=True)
class ShownMatrix:
    """A confusion matrix: a row is a true class, a column a predicted one."""

    counts: NDArray[np.float64]
    names: list[str]

    def picture(self) -> Pixels:
        return heat_map(self.counts, self.names)

    def numbers(self) -> dict[str, Any]:
        return {"names": self.names, "counts": self.counts.tolist()}


Shown = ShownImages | ShownHistogram | ShownMatrix


@torch.no_grad()
def prepared(value: Any, notice: Notice) -> Shown:
    """Return what files and trackers show of a value.

    Args:
        value: an ``Images``, a ``Histogram``, a ``ConfusionMatrix``, or what ``Images`` takes.
        notice: is given what of the value is left out or changed.

    Raises:
        NotShown: it cannot be shown.
    """
    if isinstance(value, Histogram):
        return _histogram(value, notice)
    if isinstance(value, ConfusionMatrix):
        return _matrix(value, notice)
    if isinstance(value, Images):
        return _images(value, notice)
    if isinstance(value, list | tuple | Tensor | np.ndarray) or _is_pil(value):
        return _images(Images(value), notice)
    raise NotShown(
        f"{kind_of(value)} is none of trainer.Images, trainer.Histogram, trainer.ConfusionMatrix"
    )


# -- images ---------------------------------------------------------------------------------------


def _images(value: Images, notice: Notice) -> ShownImages:
    images, count = _separated(value.images)
    if not images:
        raise NotShown("there are no images")
    if count > MOST_IMAGES:
        notice(f"the first {MOST_IMAGES} of {count:,} images are shown")
        images = images[:MOST_IMAGES]

    most = min(MOST_PIXELS**2, PIXELS_OF_A_CALL // len(images))
    reduced = [_reduced(image, most) for image in images]
    if any(small is not image for small, image in zip(reduced, images, strict=True)):
        sides = " x ".join(map(str, images[0].shape))
        notice(f"images are shown with fewer pixels (the first one is {sides})")

    captions = _captions(value, len(images), notice)
    return ShownImages(images=_pixels(reduced, notice), captions=captions)


def _captions(value: Images, count: int, notice: Notice) -> list[str]:
    captions = [str(caption) for caption in value.captions or ()]
    if captions and len(captions) < count:
        notice(f"{len(captions)} captions for {count} images")
    return (captions + [""] * count)[:count]


def _separated(value: Any) -> tuple[list[Tensor], int]:
    """Return images of shape (height, width, channels) on their device, and how many there are.

    Of very many the first ones are returned.

    Raises:
        NotShown: the value is no image.
    """
    if isinstance(value, list | tuple):
        images: list[Tensor] = []
        for part in value[: MOST_IMAGES + 1]:
            images.extend(_separated(part)[0])
        return images, max(len(images), len(value))

    channels_first = isinstance(value, Tensor)
    tensor = _as_tensor(value)
    shape = tuple(tensor.shape)
    if tensor.ndim == 2:
        return [tensor.unsqueeze(-1)], 1
    if tensor.ndim == 3:
        return list(_channels_last(tensor.unsqueeze(0), shape, channels_first)), 1
    if tensor.ndim == 4:
        first_ones = tensor[: MOST_IMAGES + 1]
        return list(_channels_last(first_ones, shape, channels_first)), shape[0]
    raise NotShown(f"shape {shape}: images are NCHW or NHWC, one is CHW, HWC or HW")


def _channels_last(batch: Tensor, shape: tuple[int, ...], prefer_first: bool) -> Tensor:
    """Return a batch as NHWC; of two ends that could be channels, tensors have the first."""
    is_first = batch.shape[1] in _CHANNELS
    is_last = batch.shape[3] in _CHANNELS
    if not (is_first or is_last):
        raise NotShown(
            f"shape {shape}: images are NCHW or NHWC, with 1, 3 or 4 channels; "
            "gray ones are x.unsqueeze(1)"
        )
    if is_first and (prefer_first or not is_last):
        return batch.permute(0, 2, 3, 1)
    return batch


def _reduced(image: Tensor, most: int) -> Tensor:
    """Leave out rows and columns of an image of more than ``most`` pixels, or with a long side."""
    height, width = int(image.shape[0]), int(image.shape[1])
    if height == 0 or width == 0:
        raise NotShown(f"an image of {height} x {width} pixels")

    by_side = math.ceil(max(height, width) / MOST_PIXELS)
    by_area = math.ceil(math.sqrt(height * width / most))
    stride = max(by_side, by_area)
    return image if stride == 1 else image[::stride, ::stride]


def _pixels(images: Sequence[Tensor], notice: Notice) -> list[Pixels]:
    """Return images as RGB bytes. Values out of range are scaled, the same in all images."""
    on_cpu = [image.detach().to("cpu") for image in images]
    floating = [image.is_floating_point() for image in on_cpu]
    low, high = _range([image for image in on_cpu if image.is_floating_point()], notice)

    pixels = []
    for image, is_floating in zip(on_cpu, floating, strict=True):
        if is_floating:
            scaled = (image.float() - low) / (high - low) * 255
            image = scaled.nan_to_num(0.0, 0.0, 0.0).clamp(0, 255).round()
        elif image.dtype == torch.bool:
            image = image.to(torch.uint8) * 255
        elif image.dtype != torch.uint8:
            if int(image.min()) < 0 or int(image.max()) > 255:
                notice("whole numbers below 0 or above 255 are cut off")
            image = image.clamp(0, 255)
        rgb = image.to(torch.uint8)[..., :3].expand(*image.shape[:2], 3)
        pixels.append(np.ascontiguousarray(rgb.numpy()))
    return pixels


def _range(images: Sequence[Tensor], notice: Notice) -> tuple[float, float]:
    """Return the values that are black and white: 0 and 1, or the least and the greatest."""
    low, high = 0.0, 1.0
    for image in images:
        values = image.float()
        finite = values[values.isfinite()]
        if finite.numel() < values.numel():
            notice("values that are not finite are black")
        if finite.numel():
            low = min(low, float(finite.min()))
            high = max(high, float(finite.max()))

    # What interpolation and 16 bits add to the ends changes no colour.
    if low < -0.01 or high > 1.01:
        notice(f"values from {low:.3g} to {high:.3g} are shown as 0 to 1; give values in [0, 1]")
        return low, high
    return 0.0, 1.0


# -- numbers --------------------------------------------------------------------------------------


def _histogram(value: Histogram, notice: Notice) -> ShownHistogram:
    tensor = _as_tensor(value.values).detach().reshape(-1)
    low, high, finite = math.inf, -math.inf, 0
    total, total_of_squares = 0.0, 0.0
    for chunk in _finite_chunks(tensor):
        low, high = min(low, float(chunk.min())), max(high, float(chunk.max()))
        total += float(chunk.sum())
        total_of_squares += float(chunk.square().sum())
        finite += chunk.numel()

    if not tensor.numel():
        raise NotShown(f"there are no values; {_IN_PARTS}")
    if not finite:
        raise NotShown("there are no finite values")
    if finite < tensor.numel():
        notice("values that are not finite are left out")

    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = np.zeros(BINS, dtype=np.int64)
    for chunk in _finite_chunks(tensor):
        # Halves, since high - low may be above the largest number.
        share = (chunk / 2 - low / 2) / (high / 2 - low / 2)
        bins = (share * BINS).long().clamp(0, BINS - 1)
        counts += torch.bincount(bins, minlength=BINS).cpu().numpy()

    edges = 2 * np.linspace(low / 2, high / 2, BINS + 1)
    return ShownHistogram(
        counts=counts, edges=edges, total=total, total_of_squares=total_of_squares
    )


def _finite_chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the finite values, in chunks: a parameter may have billions of elements."""
    # Apple's GPUs have no float64.
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    for begin in range(0, tensor.numel(), _CHUNK):
        values = tensor[begin : begin + _CHUNK].to(wide)
        values = values[values.isfinite()]
        if values.numel():
            yield values


def _matrix(value: ConfusionMatrix, notice: Notice) -> ShownMatrix:
    tensor = _as_tensor(value.counts).detach().cpu()
    if tensor.ndim != 2 or tensor.shape[0] != tensor.shape[1] or not tensor.numel():
        raise NotShown(f"shape {tuple(tensor.shape)}: a confusion matrix is C x C")
    size = int(tensor.shape[0])
    if size > MOST_CLASSES:
        raise NotShown(f"{size:,} classes; at most {MOST_CLASSES:,} are drawn")

    counts = tensor.double().numpy()
    if not np.isfinite(counts).all():
        notice("counts that are not finite are 0")
        counts = np.nan_to_num(counts, nan=0.0, posinf=0.0, neginf=0.0)
    names = [str(name) for name in value.names or range(size)]
    if len(names) != size:
        notice(f"{len(names)} names for {size} classes: {listed(names)}")
        names = [str(number) for number in range(size)]
    return ShownMatrix(counts=counts, names=names)


def _as_tensor(value: Any) -> Tensor:
    """Return a value as a tensor, which may be on a device; PIL images as HWC.

    Raises:
        NotShown: it is no array of numbers, or a part of one.
    """
    if _is_pil(value):
        value = np.array(value.convert("RGB"))
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(np.array(value))
        except (TypeError, ValueError, RuntimeError):
            raise NotShown(f"{kind_of(value)} is no array of numbers") from None

    if hasattr(value, "full_tensor"):
        raise NotShown(_IN_PARTS)
    if value.is_complex() or value.is_quantized or value.layout != torch.strided:
        raise NotShown(f"values of {str(value.dtype).removeprefix('torch.')} cannot be drawn")
    tensor: Tensor = value
    return tensor


def _is_pil(value: Any) -> bool:
    """Return whether a value is an image of PIL, which need not be installed."""
    return type(value).__module__.startswith("PIL.") and hasattr(value, "convert")
