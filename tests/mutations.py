"""Breaks each guard and each strategy's methods, in a copy, and reports which tests see it.

    python tests/mutations.py [WORD]

Run by hand. WORD chooses the rows that contain it. A row is a file of the package, a text in it,
and its replacement. The test of the same name must then fail, or the test behind ``@``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {
    "DIFFERENCE": "jobs/test_refusals.py::test_the_first_difference_is_told_before_the_first_step[ddp]",
    "EXPORT": "unit/checkpoint/test_export.py",
    "GRADIENTS": "jobs/test_same_curve_gradients.py::test_the_step_follows_the_global_mean",
    "META": "unit/strategies/test_meta_device.py",
    "SKIPPED": "jobs/test_same_curve_ranks.py::test_a_gradient_that_is_not_finite_is_left_out_on_all_ranks",
    "BUFFERS": "jobs/test_same_curve_ranks.py::test_a_step_that_is_left_out_leaves_buffers_as_they_were",
    "UNUSED": "jobs/test_user_models.py::test_a_parameter_that_one_rank_does_not_use_ends_ddp_with_its_name",
    "DTYPES": "jobs/test_same_curve_gradients.py::test_the_dtypes_of_the_plan_are_those_of_the_tensors",
}
TABLE = """
checks/finite: self.in_a_row += 1 => pass
checks/finite: if 0 < run.position.skipped_in_a_row < self.patience: => if False:
checks/finite: elif is_saved and run.config.keep_last: => elif False:
checks/finite: run.position.skipped_steps += 1 => pass @ SKIPPED[ddp]
checks/finite: put_back(self._before) => pass @ BUFFERS[ddp]
checks/gradients: raise LaunchError(reason) => return @ UNUSED
checks/mean_loss: return "a sum" => return ""
checks/model: if kind.__name__ in WRAPPERS: => if False:
checks/model: if has_extra_state(module): => if False:
checks/model: if has_accumulation_hooks(parameter): => if False:
checks/model: if data and not data.drop_last and => if data and
checks/optimizer: if problem: => if False:
checks/optimizer: and group["lr"] != planned: => and False:
checks/edited: if count != before.get(name, 0) => if False @ unit/checks/test_parameters.py
checks/edited: if not is_same: => if False: @ unit/checks/test_parameters.py
checks/parameters: if changed: => if False:
checks/edited: if before is not None and local(before) => if False and local(before) @ unit/checks/test_parameters.py
checks/parameters: if hasattr(parameter, "placements") and => if False and
checks/same_data: check_same_beginning(window.digest, => bool(
data/alike: if difference: => if False: @ DIFFERENCE
checks/same_model: kind = "trainable " * tensor.requires_grad + => kind = @ DIFFERENCE
checks/same_model: if _is_whole(tensor) and tensor not in => if tensor not in
checks/same_model: and tensor not in stored => and True
checks/same_settings: if difference: => if False: @ DIFFERENCE
checks/same_settings: "notices", "launcher") => "notices")
checks/task_state: and parameter.grad is not None => and False
checks/task_state: if now.get(name) != trace] => if False]
checks/training_mode: run.train_mode() => pass
checkpoint/saver: if any(begun): => if False: @ EXPORT
checkpoint/saver: else values.isfinite() => else values.isnan()
checkpoint/saver: key.kind in ("buffer", "frozen") => False
strategies/finite_step: or math.isfinite(norm.item()): => or True:
strategies/finite_step: norm.isfinite().logical_not().float() => norm.isfinite().float()
strategies/base: if self.accelerator.is_main_process else => if True else
strategies/finite_step: elif not on_nan or => elif @ unit/strategies/test_finite_step.py
strategies/base: clip(gradients, limit, norm) => clip(gradients, 1e-9, norm) @ unit/test_step.py
strategies/base: clip(gradients, limit, norm) => pass @ GRADIENTS[ddp-2-4]
strategies/tensors: mark_sharded(module) => pass
strategies/buffers: buffer.copy_(values) => pass
strategies/ddp: self.called |= torch.is_grad_enabled() and => self.called |=
launching/launched: if made != planned or not kind.startswith(expected): => if made != planned:
strategies/tensors: torch.float32 if is_trained and => torch.float32 if False and
strategies/deepspeed: if runs != asked: => if False:
strategies/deepspeed: plugin.dschf = None => pass
strategies/deepspeed: "gradient_clipping": plan.max_grad_norm => "gradient_clipping": 2.0 or plan.max_grad_norm @ GRADIENTS[zero3-2-4]
strategies/deepspeed: tensor=flat.detach()[offset:][: len(own)], => tensor=flat.detach()[offset:],
strategies/scalars: parameter.data = parameter.data.reshape(1) => pass @ unit/strategies/test_tensors.py
strategies/deepspeed: boundary(boundary or delays) => boundary(True) @ GRADIENTS[zero1-2-4]
strategies/deepspeed: backward(loss, scale_wrt_gas=False) => backward(loss) @ GRADIENTS[zero3-2-4]
strategies/fsdp: if module is model or is_shared or not own: => if module is model or not own:
strategies/fsdp: reduce = torch.float32 if compute else None => reduce = None @ DTYPES[fsdp-16-bf16]
strategies/gathered: whole.register_hook(hook) => pass
strategies/gradient_order: if differing: => if False:
strategies/base: self.fingerprint * 31 + => self.fingerprint + @ unit/strategies/test_gradient_order.py
strategies/initial_values: if not is_stored and => if False and @ META
strategies/optimizer_probe: if not difference <= _BOUND * largest: => if False:
strategies/whole_parameters: own[key] = engines => pass
strategies/whole_parameters: strategy.fill((name, whole.data) => bool((name, whole.data)
"""


def row(line: str) -> tuple[Path, str, str, str]:
    """Return file, text, replacement and test of a line of the table."""
    file, _, rest = line.partition(": ")
    change, _, named = rest.partition(" @ ")
    old, _, new = change.partition(" => ")
    key, bracket, case = named.partition("[")
    test = TESTS.get(key, key) or f"unit/{file.replace('/', '/test_')}.py"
    return Path("trainer", f"{file}.py"), old, new, f"tests/{test}{bracket}{case}"


def result(test: str, tree: Path) -> int:
    """Return pytest's exit status of a test on a tree: 0, 1 if it fails, another if it cannot run.

    In a child of this process, which has imported torch.
    """
    child = os.fork()
    if child == 0:
        import pytest

        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            code = pytest.main(["-xq", "-pno:cacheprovider", "-Wignore:Module already", test])
        os._exit(int(code))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    lines = [line for line in TABLE.strip().splitlines() if word in line]
    for name in ("accelerate", "transformers", "datasets", "deepspeed"):
        importlib.import_module(name)  # each child would take seconds
    seen = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        alone = cache(lambda test: result(test, tree))
        for line in lines:
            file, old, new, test = row(line)
            text = (tree / file).read_text()
            assert text.count(old) == 1, f"{line}: {text.count(old)} times in the file"
            verdict = "THE TEST FAILS ALONE"
            if alone(test) == 0:
                (tree / file).write_text(text.replace(old, new))
                verdict = {0: "UNSEEN", 1: "seen"}.get(result(test, tree), "THE TEST CANNOT RUN")
                (tree / file).write_text(text)
            seen += verdict == "seen"
            print(f"{verdict}  {line}", flush=True)
    print(f"{seen} of {len(lines)} are seen")


if __name__ == "__main__":
    main()
