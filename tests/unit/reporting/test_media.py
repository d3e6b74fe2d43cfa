"""What is shown of a value is small and right, and what is not as it should be is one notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from trainer import ConfusionMatrix, Histogram, Images
from trainer.reporting import media
from trainer.reporting.media import NotShown, ShownHistogram, ShownImages, ShownMatrix, prepared


def shown(value: Any, *notices: str) -> Any:
    """Return what is shown of a value, whose notices begin with these words."""
    said: list[str] = []
    result = prepared(value, said.append)
    assert len(said) == len(notices), said
    assert all(text.startswith(begin) for text, begin in zip(said, notices, strict=True)), said
    return result


GRADIENT = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
BYTES = torch.arange(256).reshape(16, 16).numpy()


@pytest.mark.parametrize(
    "value",
    [
        GRADIENT,
        GRADIENT[0],
        GRADIENT[0, 0],
        GRADIENT.permute(0, 2, 3, 1).numpy(),
        GRADIENT.double().requires_grad_(),
        GRADIENT.expand(1, 3, 16, 16),
        torch.cat([GRADIENT, GRADIENT, GRADIENT, torch.zeros_like(GRADIENT)], dim=1),
        (GRADIENT * 255).round().to(torch.uint8),
        (GRADIENT * 255).round().long(),
        [GRADIENT[0]],
        [Image.fromarray(BYTES.astype(np.uint8))],
        Image.fromarray(BYTES.astype(np.uint8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_image_in_any_form_is_the_same_pixels(value: Any) -> None:
    result = shown(value)
    assert isinstance(result, ShownImages)
    [pixels] = result.images
    assert pixels.shape == (16, 16, 3) and pixels.dtype == np.uint8
    assert (pixels == BYTES[..., None]).all()
    assert result.captions == [""]


def test_16_bits_and_truth_values_are_images() -> None:
    half = shown(GRADIENT.to(torch.bfloat16)).images[0].astype(int)
    assert abs(half - BYTES[..., None]).max() <= 1
    assert np.unique(shown(GRADIENT > 0.5).images[0]).tolist() == [0, 255]


def test_tensors_have_their_channels_first_and_arrays_last_where_both_could_be() -> None:
    assert shown(torch.zeros(2, 3, 8, 3)).images[0].shape == (8, 3, 3)
    assert shown(np.zeros((2, 3, 8, 3))).images[0].shape == (3, 8, 3)


def test_normalized_images_are_scaled_together_with_a_notice() -> None:
    images = torch.tensor([-2.0, 0.0, 1.0, 2.0]).reshape(2, 1, 1, 2)
    first, second = shown(images, "values from -2 to 2 are shown as 0 to 1").images
    assert first[0, :, 0].tolist() == [0, 128] and second[0, :, 0].tolist() == [191, 255]


def test_values_that_are_not_finite_are_black() -> None:
    image = torch.tensor([[float("nan"), 1.0], [float("inf"), 0.0]])
    assert shown(image, "values that are not finite").images[0][..., 0].tolist() == [
        [0, 255],
        [0, 0],
    ]
    assert (
        shown(torch.full((1, 1, 2, 2), torch.nan), "values that are not finite").images[0].max()
        == 0
    )


def test_whole_numbers_out_of_range_are_cut_off() -> None:
    pixels = shown(torch.tensor([[-5, 300]]), "whole numbers below 0").images[0]
    assert pixels[0, :, 0].tolist() == [0, 255]


def test_very_many_and_very_large_images_are_made_few_and_small() -> None:
    many = torch.zeros(1, 1, 2, 2).expand(10**9, 1, 2, 2)  # of which no process has the memory
    assert len(shown(many, "the first 64 of 1,000,000,000 images").images) == 64
    assert len(shown([GRADIENT[0]] * 70, "the first 64 of 70 images").images) == 64
    large = torch.zeros(1, 1).expand(3, 50_000, 40_000)
    [pixels] = shown(large, "images are shown with fewer pixels").images
    assert max(pixels.shape) <= media.MOST_PIXELS
    several = shown(torch.zeros(1).expand(64, 3, 1024, 1024), "images are shown with fewer").images
    assert sum(image.shape[0] * image.shape[1] for image in several) <= media.PIXELS_OF_A_CALL


def test_captions_that_are_too_few_are_filled_up() -> None:
    images = torch.zeros(3, 1, 2, 2)
    assert shown(Images(images, ["a", "b", "c"])).captions == ["a", "b", "c"]
    assert shown(Images(images, ["a"]), "1 captions for 3 images").captions == ["a", "", ""]


class Part(torch.Tensor):
    """What looks like a parameter of which this process has a part."""

    def full_tensor(self) -> torch.Tensor:
        raise AssertionError("it would wait for the other ranks")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.zeros(2, 5, 8, 8), r"shape \(2, 5, 8, 8\): images are NCHW or NHWC, with 1, 3 or 4"),
        (torch.zeros(32, 28, 28), r"shape \(32, 28, 28\): .* gray ones are x.unsqueeze\(1\)"),
        (torch.zeros(1, 2, 3, 4, 5), "images are NCHW or NHWC, one is CHW, HWC or HW"),
        (torch.zeros(0, 3, 8, 8), "there are no images"),
        (torch.zeros(1, 3, 0, 8), "an image of 0 x 8 pixels"),
        ([], "there are no images"),
        (Images(None), "None is no array of numbers"),
        (Images(["a.png"]), "is no array of numbers"),
        ("a.png", "a str is none of trainer.Images"),
        (3.5, "a float is none of trainer.Images"),
        (torch.zeros(2, 2, dtype=torch.complex64), "complex64"),
        (Histogram(torch.zeros(3).as_subclass(Part)), "run.whole_parameters"),
        (Histogram(torch.zeros(0)), "there are no values"),
        (Histogram([float("nan")]), "there are no finite values"),
        (Histogram("text"), "a str is no array of numbers"),
        (ConfusionMatrix(torch.zeros(2, 3)), r"shape \(2, 3\): a confusion matrix is C x C"),
        (ConfusionMatrix(torch.zeros(0, 0)), "C x C"),
        (ConfusionMatrix(torch.zeros(2000, 2000)), "2,000 classes"),
    ],
)
def test_what_cannot_be_shown_says_why(value: Any, reason: str) -> None:
    with pytest.raises(NotShown, match=reason):
        prepared(value, lambda text: None)


def test_a_histogram_counts_every_finite_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_CHUNK", 7)
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    result = shown(Histogram(values.reshape(10, 100)))
    assert isinstance(result, ShownHistogram)
    counts, edges = np.histogram(values.double().numpy(), bins=media.BINS)
    assert result.counts.tolist() == counts.tolist()
    assert result.edges == pytest.approx(edges)
    assert result.total == pytest.approx(float(values.double().sum()))
    assert result.total_of_squares == pytest.approx(float(values.double().square().sum()))


@pytest.mark.parametrize(
    ("values", "notices"),
    [
        (torch.full((5,), 3.0), ()),
        (torch.tensor([1e308, -1e308], dtype=torch.float64), ()),
        (torch.tensor([1.0, 2.0, float("nan")]), ("values that are not finite are left out",)),
        (torch.tensor([1, 2, 3]), ()),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), ()),
        ([1, 2.5], ()),
    ],
)
def test_odd_numbers_have_a_histogram(values: Any, notices: tuple[str, ...]) -> None:
    result = shown(Histogram(values), *notices)
    finite = torch.as_tensor(values).double().isfinite().sum()
    assert result.counts.sum() == finite and np.isfinite(result.edges).all()


def test_a_confusion_matrix_keeps_its_counts_and_names() -> None:
    result = shown(ConfusionMatrix([[3, 1], [0, 5]], ["cat", "dog"]))
    assert isinstance(result, ShownMatrix)
    assert result.numbers() == {"names": ["cat", "dog"], "counts": [[3.0, 1.0], [0.0, 5.0]]}
    assert shown(ConfusionMatrix(torch.eye(2))).names == ["0", "1"]
    wrong = shown(ConfusionMatrix(torch.eye(2), ["cat"]), "1 names for 2 classes")
    assert wrong.names == ["0", "1"]
    nan = ConfusionMatrix([[float("nan"), 1.0], [0.0, 1.0]])
    assert shown(nan, "counts that are not finite are 0").counts.tolist() == [[0, 1], [0, 1]]
