"""Methods that nothing calls."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from one_process import fit
from resuming import Odd

from trainer import Callback, LaunchError, Task
from trainer.building.uncalled import refuse_uncalled


def given(*names: str, base: type = Task, **also: Any) -> Any:
    """Return a task or a callback whose class has these methods."""
    methods = {name: lambda self: None for name in names}
    return types.new_class("Mine", (base,), exec_body=lambda space: space.update(methods, **also))()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("build_scheduler", "did you mean build_schedule?"),
        ("trainning_step", "did you mean training_step?"),
        ("evalution_step", "did you mean evaluation_step?"),
        ("weights", "did you mean weight?"),
        ("configure_optimizers", "here: build_optimizer"),
        ("validation_step", "here: evaluation_step"),
        ("val_dataloader", "here: build_data"),
        ("compute_loss", "here: training_step"),
        ("on_train_epoch_end", "the events of a trainer.Callback are on_launch, "),
    ],
)
def test_a_misnamed_method_of_a_task_is_refused_with_the_right_name(name: str, right: str) -> None:
    with pytest.raises(LaunchError) as error:
        refuse_uncalled(given(name), Task)
    beginning = f"Mine has methods that nothing calls: {name} ({right}"
    assert str(error.value).startswith(beginning)
    assert str(error.value).endswith("; rename each to the method of trainer.Task, or delete it")


@pytest.mark.parametrize("name", ["on_step_end", "on_train_begin", "on_steps", "before_updates"])
def test_a_misnamed_event_of_a_callback_is_refused(name: str) -> None:
    with pytest.raises(LaunchError, match=f"^Mine has methods that nothing calls: {name} "):
        refuse_uncalled(given(name, base=Callback), Callback)


def test_all_names_stand_in_one_error() -> None:
    with pytest.raises(LaunchError) as error:
        refuse_uncalled(given("build_scheduler", "configure_optimizers"), Task)
    assert "build_scheduler (did" in str(error.value)
    assert "configure_optimizers (here: build_optimizer)" in str(error.value)


class Helped(Task):
    """Has helpers under the names of other methods, and calls them."""

    def build_teacher(self) -> None: ...

    def eval_step(self) -> None:
        self.build_teacher()

    def build_models(self) -> None:
        self.eval_step()

    def build_model(self) -> Any: ...


def test_helpers_and_names_of_ones_own_are_no_mistakes() -> None:
    refuse_uncalled(Helped(), Task)
    refuse_uncalled(given("text", "base", "wrap", "hidden", "_training_steps"), Task)
    refuse_uncalled(given("on_step", "measure", base=Callback), Callback)


def test_a_misspelt_method_over_the_right_one_of_a_base_class_is_refused() -> None:
    class Base(Task):
        def training_step(self, model: Any, batch: Any) -> Any: ...

    class Mine(Base):
        def trainin_step(self, model: Any, batch: Any) -> Any: ...

    with pytest.raises(LaunchError, match="did you mean training_step"):
        refuse_uncalled(Mine(), Task)


def test_a_run_looks_at_its_task_and_at_its_callbacks(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="nothing calls: configure_optimizers "):
        fit(tmp_path, given("configure_optimizers", base=Odd))
    with pytest.raises(LaunchError, match="nothing calls: on_steps "):
        fit(tmp_path, Odd(), given("on_steps", base=Callback))
