"""The commands of docs/asked_for.md do as the page says.

| promised | strategies and worlds | tests |
|---|---|---|
| Each row has commands, at most two threads, and a test of the commands | none | test_each_row_is_tested |
| The commands of a row run as they stand on the page, and have the result of the row | those of the commands (most nightly) | test_the_commands_of_a_row |
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from doc_pages import write_files
from launchers import BIN, ROOT, completed, free_port, json_in, json_lines, slow_but
from preferences import preferences
from safetensors import safe_open
from tiny_language import VOCABULARY, conversation, paragraphs, save_model, save_rows

PAGE = (ROOT / "docs/asked_for.md").read_text()
EPOCHS = ["--epochs", "6"]
LOGGED = [*EPOCHS, "--log_every", "1"]


def rows_of_page() -> dict[str, list[str]]:
    """Return the commands of each row, by title."""
    found = {}
    for section in PAGE.split("\n## ")[1:]:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        [commands] = [text for language, text in blocks if not language]
        found[section.split("\n")[0]] = commands.splitlines()
    return found


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in json_lines(run / "metrics.jsonl") if "loss" in row}


# -- the result of each row, in the folder of its commands -----------------------------------------


def all_are_the_same(folder: Path, out: str) -> None:
    verdicts = [line.split()[-1] for line in out.splitlines() if " x " in line]
    assert verdicts[0] == "reference" and len(verdicts) > 1 and set(verdicts[1:]) == {"same"}


def continues_on_one_process(folder: Path, out: str) -> None:
    run = folder / "runs/digits_cnn"
    assert "checkpoints/step-00000100" in out
    assert max(losses(run)) == json_in(run / "summary.json")["steps"] == 138


def continues_to_the_bit(folder: Path, out: str) -> None:
    assert "step-00000060" in out  # in the middle of the third epoch, of 23 steps
    assert losses(folder / "runs/digits_cnn") == losses(folder / "runs/whole")


def stops_and_continues(folder: Path, out: str) -> None:
    first, second = map(int, re.findall(r"stopped at step (\d+)", out))
    assert 0 < first < second
    assert f"step-{first:08}" in out


def loads_from_the_hubs_form(folder: Path, out: str) -> None:
    from transformers import AutoModelForCausalLM

    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(folder / path).state_dict()
        for path in ("model", "runs/whole/model")
    )
    assert len(ours) > 10 and all(ours[name].equal(value) for name, value in theirs.items())


def learns_digits(folder: Path, out: str) -> None:
    summary = json_in(folder / "runs/digits_cnn/summary.json")
    assert summary["evaluation"]["eval/accuracy"] > 0.8


def learns_in_4_bits(folder: Path, out: str) -> None:
    assert learnt(folder)


def learns_in_experts(folder: Path, out: str) -> None:
    assert any(".experts." in name for name in learnt(folder))


def learnt(folder: Path) -> list[str]:
    """Return the names in the file of the adapter, whose training lowered the loss."""
    values = list(losses(folder / "run").values())
    assert values[-1] < values[0]
    with safe_open(folder / "run/model/adapter_model.safetensors", "pt") as file:
        return list(file.keys())


def prefers(folder: Path, out: str) -> None:
    values = losses(folder / "runs/dpo")
    assert values[1] == pytest.approx(0.693147, abs=1e-6) and values[max(values)] < values[1]


def prefers_further(folder: Path, out: str) -> None:
    prefers(folder, out)
    for path in ("run/model", "runs/dpo/model"):
        assert json_in(folder / path / "adapter_config.json")["r"] == 8


def has_a_new_token(folder: Path, out: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "run/model")
    [token] = AutoTokenizer.from_pretrained(folder / "run/model")("<|think|>")["input_ids"]
    assert token == len(model.get_input_embeddings().weight) - 1 == VOCABULARY


def has_scaled_positions(folder: Path, out: str) -> None:
    positions = json_in(folder / "run/model/config.json")["rope_parameters"]
    assert (positions["rope_type"], positions["factor"]) == ("yarn", 4.0)


def shows_documents_of_a_row(folder: Path, out: str) -> None:
    row = out.split("== row ")[1]
    assert row.count("\n-- ") >= 2 and "«" in row


def counts_each_example_once(folder: Path, out: str) -> None:
    run = folder / "runs/digits_cnn"
    expected = json_in(run / "summary.json")["evaluation"]
    found = json_in(run / "evaluations/model.json")
    values = found.get("values", found)
    assert {key: values[key] for key in expected} == pytest.approx(expected, rel=1e-5)


def generates(folder: Path, out: str) -> None:
    run = folder / "runs/default"
    assert 1 < json_in(run / "summary.json")["evaluation"]["eval/length"] < 56


def has_the_scaled_rate(folder: Path, out: str) -> None:
    assert "lr 0.003 at batch 64 -> 0.012 at batch 256 (linear)" in out


def tells_the_memory(folder: Path, out: str) -> None:
    assert "the first that fits" in out
    assert re.search(r"\nstrategy +zero3\nworld_size +64\n", out) and "backward" in out


def names_the_setting(folder: Path, out: str) -> None:
    assert re.search(r"\blr\b", out) and "digits_cnn" in out and "other" in out


Check = Callable[[Path, str], None]
SHORT = ["--steps", "3"]
# Title: settings that shorten each command, the strategy of the last training, and the check.
ROWS: dict[str, tuple[list[list[str]], str, Check]] = {
    "The same curve on any layout": ([SHORT], "", all_are_the_same),
    "A checkpoint continues on another strategy and world size": (
        *([EPOCHS, EPOCHS], "single"),
        continues_on_one_process,
    ),
    "A run continues at the exact sample, in the middle of an epoch": (
        *([LOGGED], "single"),
        continues_to_the_bit,
    ),
    "A warning before the machine is taken away": ([[]], "single", stops_and_continues),
    "A sharded checkpoint in the Hub's form": ([[], []], "fsdp", loads_from_the_hubs_form),
    "A moving average under ZeRO-3": ([EPOCHS], "zero3", learns_digits),
    "QLoRA, sharded": ([[]], "fsdp", learns_in_4_bits),
    "Adapters on fused experts": ([[]], "zero3", learns_in_experts),
    "DPO with adapters, sharded": ([["--log_every", "1"]], "zero3", prefers),
    "DPO that goes on with the adapter of a fine-tune": (
        *([[], ["--log_every", "1"]], "zero3"),
        prefers_further,
    ),
    "New tokens": ([[]], "fsdp", has_a_new_token),
    "RoPE scaling without a copy of the model": ([[]], "zero3", has_scaled_positions),
    "Packed documents that do not see each other": ([[]], "", shows_documents_of_a_row),
    "The mean over all tokens of a step": ([SHORT], "", all_are_the_same),
    "Clipping under DeepSpeed": ([SHORT], "", all_are_the_same),
    "A step with NaN is skipped on all ranks": ([EPOCHS], "zero2", learns_digits),
    "An evaluation that counts each example once": (
        *([["--evaluation_batch_size", "7"]], "single"),
        counts_each_example_once,
    ),
    "Generation in an evaluation, without a hang": ([[]], "zero3", generates),
    "A learning rate for more GPUs": ([[]], "", has_the_scaled_rate),
    "Memory before renting": ([[], []], "", tells_the_memory),
    "Which settings differ between two runs": ([[]], "single", names_the_setting),
}
QUICK = ["A learning rate for more GPUs"]


def test_each_row_is_tested() -> None:
    found = rows_of_page()
    assert {title: len(lines) for title, lines in found.items()} == {
        title: len(more) for title, (more, _, _) in ROWS.items()
    }
    for section in PAGE.split("\n## ")[1:]:
        threads = re.findall(r"\]\(https://github\.com/[^)]+/(?:issues|pull)/\d+\)", section)
        assert 1 <= len(threads) <= 2, section


@pytest.fixture(scope="module")
def clone(folder: Path) -> Path:
    """A folder as the page has it: the clone's root, with a small model, texts and experts."""
    for name in ("accel_configs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("clusters"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for page in ("README.md", "docs/recipes.md", "docs/asked_for.md"):
            write_files((ROOT / page).read_text())
    save_model(folder / "smollm2")
    save_model(folder / "moe", "mixtral")
    texts = paragraphs(80)
    turns = [conversation(f"What is {at}?", text[: 30 + 3 * at]) for at, text in enumerate(texts)]
    save_rows(folder / "chats.jsonl", turns)
    save_rows(folder / "pairs.jsonl", preferences(48))
    return folder


def shell(line: str, folder: Path, more: list[str]) -> str:
    """Run a line of the page with settings appended, and a port of its own; return what it says."""
    launch = r"^(accelerate launch --config_file \S+)"
    line = re.sub(launch, rf"\1 --main_process_port {free_port()}", line)
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    words = ["bash", "-c", " ".join([line, *more])]
    done = completed(words, folder=folder, environment={"PATH": path, "PYTHONPATH": str(ROOT)})
    expected = 124 if line.startswith("timeout") else 0
    assert done.returncode == expected, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


DIGITS = "python examples/train.py --config examples/configs/digits_cnn.yaml"


def before(title: str, folder: Path) -> str:
    """Run what the page takes for granted: a run that was killed, or runs that are there."""
    [line] = rows_of_page()[title][:1]
    if title.startswith("A run continues"):
        shell(f"{DIGITS} --output_dir runs/whole", folder, LOGGED)
        return shell(line, folder, [*LOGGED, "--stop_at", "60"])
    if title.startswith("A warning"):
        return shell(line, folder, [])
    if title.startswith("An evaluation"):
        return shell(DIGITS, folder, EPOCHS)
    if title.startswith("Which settings"):
        shell(f"{DIGITS} --lr 1e-3 --output_dir runs/other", folder, EPOCHS)
        return shell(DIGITS, folder, EPOCHS)
    return ""


@pytest.mark.parametrize("title", slow_but(QUICK, ROWS))
def test_the_commands_of_a_row(title: str, clone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    shutil.copytree(clone, folder)
    more, strategy, check = ROWS[title]
    out = before(title, folder)
    for line, settings in zip(rows_of_page()[title], more, strict=True):
        out += shell(line, folder, settings)
    check(folder, out)
    if strategy:
        newest = max(folder.glob("run*/**/plan.json"), key=lambda path: path.stat().st_mtime)
        assert json_in(newest)["strategy"] == strategy
