"""A wing is named in the core twice: by its key in the config, and in the row of hooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launchers import ROOT

PACKAGE = ROOT / "trainer"

# The key of a wing with the rules about its value, and the line that puts it into a run.
KEY_AND_ROW = {"config/train_config.py", "config/rules.py", "row.py"}

# Rooms that are wings as a whole. No room of the core imports from them (test_structure.py).
ROOMS = ("commands/", "language/", "rehearsal/")

# The words of each wing, its own modules, and the reason of each other module that names it.
WINGS: dict[str, tuple[str, set[str], dict[str, str]]] = {
    "the Hub": (
        r"push_to_hub|hub_private|HfApi|the Hub\b",
        {"callbacks/hub.py"},
        {},
    ),
    "trackers": (
        r"wandb|W&B|trackio|GeneralTracker|init_trackers|\btrackers?\b",
        {"callbacks/tracking.py", "callbacks/wandb_run.py"},
        {
            "run.py": "run.tracker(name), for a task's own pictures",
            "reporting/used_folder.py": "the files that a new run in an old folder deletes",
            "text.py": "how settings with a secret are called",
            "launching/files/deepspeed_model.py": "keys of DeepSpeed",
        },
    ),
    "the profile": (
        r"profile_steps|torch\.profiler",
        {"callbacks/profiling.py"},
        {},
    ),
    "the limit of time": (r"max_time|time_limit", {"callbacks/time_limit.py"}, {}),
    "adapters": (
        r"\bpeft\b|(?<!Type)adapter|\blora\b",
        set(),
        {
            "private/peft.py": "the switch of its layers",
            "building/new_model.py": "peft adds layers in another mode than the model's",
            "optim/muon.py": "the factors are AdamW's",
        },
    ),
    "weights in 4 bits": (
        r"bitsandbytes|\b4.bit|quant_state",
        set(),
        {"building/new_model.py": "counts the elements of a packed parameter"},
    ),
    "Muon": (
        r"muon",
        set(),
        {"optim/muon.py": "the wing", "private/torch.py": "the rate of torch's own"},
    ),
    "the same bits": (
        r"same_bits",
        {
            "callbacks/digest_file.py",
            "strategies/exact.py",
            "strategies/exact_ddp.py",
            "strategies/exact_deepspeed.py",
            "strategies/exact_fsdp.py",
            "strategies/same_bits.py",
        },
        {
            "strategies/__init__.py": "the table of classes by strategy",
            "config/fingerprint.py": "the table of keys that decide numbers",
            "building/build.py": "refused in a loop of one's own, which has no row",
            "data/lanes.py": "the key to drop",
        },
    ),
    # These have left. A task draws its own pictures, and sets a group's rate to 0 until a step.
    "pictures": (r"gallery|show_confusion|run\.show\b", set(), {}),
    "thawing": (r"unfreeze:|set_trainable|FrozenLayers", set(), {}),
}

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
CORE = [name for name in MODULES if not name.startswith(ROOMS)]


def naming(words: str, own: set[str]) -> set[str]:
    """Return the modules of the core that name a wing, without its own, its key and its line."""
    pattern = re.compile(words, re.IGNORECASE)
    others = [name for name in CORE if name not in own | KEY_AND_ROW]
    return {name for name in others if pattern.search((PACKAGE / name).read_text())}


@pytest.mark.parametrize("wing", WINGS)
def test_the_core_names_a_wing_by_its_key_and_in_the_row(wing: str) -> None:
    words, own, beside = WINGS[wing]
    assert naming(words, own) == set(beside)


@pytest.mark.parametrize("wing", [name for name, (_, own, _) in WINGS.items() if own])
def test_each_wing_is_in_the_row(wing: str) -> None:
    """So that a module that was moved or renamed does not go unseen."""
    _, own, _ = WINGS[wing]
    row = (PACKAGE / "row.py").read_text()
    assert own <= set(MODULES)
    assert any(f"callbacks.{Path(name).stem} " in row for name in own)


def test_tensor_parallelism_is_named_in_five_files_at_most() -> None:
    pattern = re.compile(r"tensor.?parallel|\btp_|_tp_", re.IGNORECASE)
    named = [name for name in MODULES if pattern.search((PACKAGE / name).read_text())]
    assert 1 <= len(named) <= 5, named
