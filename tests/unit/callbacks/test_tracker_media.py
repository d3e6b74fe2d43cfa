"""Pictures in trackers, read back by the trackers' own tools; and trackers that take none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trainer import ConfusionMatrix, Histogram, Images
from trainer.callbacks import tracker_faults
from trainer.callbacks.tracker_faults import TolerantTracker
from trainer.callbacks.tracker_media import NoPictures, show_in
from trainer.reporting.media import Shown, prepared


def shown(value: Any) -> Shown:
    return prepared(value, pytest.fail)


IMAGES = shown(Images([torch.zeros(1, 8, 8), torch.ones(3, 6, 10)], ["a", "b"]))
HISTOGRAM = shown(Histogram(torch.linspace(-1, 3, 640)))
MATRIX = shown(ConfusionMatrix([[3, 1], [0, 4]], ["cat", "dog"]))


def test_tensorboard_has_each_kind(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))  # type: ignore[no-untyped-call]
    tracker = SimpleNamespace(tracker=writer)
    for step in (3, 7):
        for name, value in {"a/b": IMAGES, "weights": HISTOGRAM, "confusion": MATRIX}.items():
            show_in("tensorboard", tracker, name, value, step)
    writer.close()  # type: ignore[no-untyped-call]

    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    events.Reload()
    for name in ("media/a/b", "media/confusion"):
        assert [event.step for event in events.Images(name)] == [3, 7]
    assert events.Images("media/a/b")[0].height >= 8
    [first, _] = events.Histograms("media/weights")
    assert first.step == 3 and first.histogram_value.num == 640
    assert (first.histogram_value.min, first.histogram_value.max) == (-1, 3)
    text = events.Tensors("media/a/b/captions/text_summary")[0].tensor_proto.string_val[0]
    assert text.decode() == "1. a\n2. b"


class Client:
    """A tracker of Accelerate that keeps what it is given."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int | None]] = []

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.logged.append((values, step))


def test_trackio_gets_its_own_classes() -> None:
    trackio = pytest.importorskip("trackio")
    client = Client()
    for value in (IMAGES, HISTOGRAM, MATRIX, shown(torch.zeros(1, 8, 8))):
        show_in("trackio", client, "x", value, 5)
    assert [step for _, step in client.logged] == [5] * 4
    kinds = [type(values["media/x"]) for values, _ in client.logged]
    assert kinds == [trackio.Table, trackio.Histogram, trackio.Image, trackio.Image]
    [first, second] = client.logged[0][0]["media/x"].data
    assert (first["caption"], second["caption"]) == ("a", "b")


def test_wandb_gets_its_own_classes_beside_the_step() -> None:
    wandb = pytest.importorskip("wandb")
    client = Client()
    large = shown(ConfusionMatrix(np.eye(61)))
    for value in (IMAGES, HISTOGRAM, MATRIX, large):
        show_in("wandb", client, "x", value, 5)
    assert all(values["step"] == step == 5 for values, step in client.logged)
    images, histogram, matrix, drawn = [values["media/x"] for values, _ in client.logged]
    assert [type(image) for image in images] == [wandb.Image] * 2
    assert isinstance(histogram, wandb.Histogram) and sum(histogram.histogram) == 640
    assert json.loads(json.dumps(matrix.table.data)) == [
        ["cat", "cat", 3.0],
        ["cat", "dog", 1.0],
        ["dog", "cat", 0.0],
        ["dog", "dog", 4.0],
    ]
    assert isinstance(drawn, wandb.Image)


def test_other_trackers_get_pictures_where_accelerate_has_a_way() -> None:
    drawn: list[Any] = []
    taking = SimpleNamespace(log_images=lambda values, step: drawn.append((values, step)))
    show_in("aim", taking, "x", MATRIX, 5)
    show_in("swanlab", taking, "x", IMAGES, 6)
    [(matrix, _), (images, step)] = drawn
    assert matrix["media/x"].ndim == 3 and len(images["media/x"]) == 2 and step == 6
    with pytest.raises(NoPictures):
        show_in("mlflow", SimpleNamespace(), "x", MATRIX, 5)


def tolerant(client: Any, name: str, said: list[str]) -> TolerantTracker:
    client.name = name
    return TolerantTracker(client, said.append, on_failure=lambda: None)


def test_a_tracker_that_takes_no_pictures_says_so_once() -> None:
    said: list[str] = []
    tracker = tolerant(SimpleNamespace(), "mlflow", said)
    for step in range(3):
        tracker.show("x", MATRIX, step)
    assert said == ["mlflow: takes no pictures; they are in media/ of the run"]


@pytest.mark.parametrize(("seconds", "logs_on"), [(0.1, True), (5.0, False)])
def test_a_picture_that_a_tracker_refuses_keeps_no_number_from_it(
    seconds: float, logs_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that took long was a server's, which is then left alone for numbers as well."""
    now = [100.0]
    monkeypatch.setattr(tracker_faults, "time", SimpleNamespace(monotonic=lambda: now[0]))
    said: list[str] = []

    class Refusing(Client):
        def log(self, values: dict[str, Any], step: int | None = None) -> None:
            if any(name.startswith("media/") for name in values):
                now[0] += seconds
                raise ConnectionError("refused\nand more")
            super().log(values, step)

    client = Refusing()
    tracker = tolerant(client, "wandb", said)
    pytest.importorskip("wandb")
    for step in range(3):
        tracker.show("x", HISTOGRAM, step)
        tracker.log({"loss": 1.0}, step=step)
    assert len(client.logged) == (3 if logs_on else 0)
    wait = 60 if logs_on else 100
    assert said == [
        "wandb: did not take x of step 0 (ConnectionError: refused); it is in media/ of the run; "
        f"training continues; next try in {wait} s"
    ]
