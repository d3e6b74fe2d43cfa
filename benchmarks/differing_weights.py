"""How many weights differ from those of one process, with ``same_bits`` and without, as a picture.

    python benchmarks/differing_weights.py docs/pictures/same-bits.svg

The digits CNN trains 40 steps in one process and under each strategy on two. 2 minutes on two cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
STRATEGIES = ("DDP", "FSDP2", "ZeRO-1", "ZeRO-2", "ZeRO-3")
WIDTH = 320  # pixels of all weights
SETTINGS = {
    "config": ROOT / "examples" / "configs" / "digits_cnn.yaml",
    "micro_batch_size": 4,
    "global_batch_size": 48,
    "max_steps": 40,
    "eval_every": "null",
    "save_every": "null",
}
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" role="img">
<title>Weights that differ from those of one process</title>
<style>
  text {{ font: 14px system-ui, sans-serif; fill: #57606a; }} .h {{ font-weight: 600; }}
  .off {{ fill: #c2571a; }} .on {{ fill: #2e8b57; }}
  @media (prefers-color-scheme: dark) {{ text {{ fill: #b6bec8; }} }}
</style>
<text class="h" x="10" y="22">{title}</text>"""


def weights(strategy: str, mode: str, folder: Path) -> dict[str, object]:
    """Train, and return the exported weights."""
    name = strategy.lower().replace("-", "").replace("fsdp2", "fsdp")
    out = folder / f"{name}-{mode}"
    words = [sys.executable, "examples/train.py"]
    if name != "single":
        launcher = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
        words = [*launcher, "--config_file", f"accel_configs/{name}.yaml", "examples/train.py"]
    settings = {**SETTINGS, "same_bits": mode, "output_dir": out}
    words += [f"--{key}={value}" for key, value in settings.items()]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (file,) = (out / "model").glob("*.safetensors")
    return load_file(file)


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("false", "true"):
            alone = weights("single", mode, Path(folder))
            for strategy in STRATEGIES:
                other = weights(strategy, mode, Path(folder))
                found[strategy, mode] = sum(int((alone[k] != other[k]).sum()) for k in alone)
                print(strategy, mode, found[strategy, mode], flush=True)
    total = sum(tensor.numel() for tensor in alone.values())
    title = f"Weights of {total:,} that differ from those of one process, after 40 steps"
    lines = [HEAD.format(height=44 + 52 * len(STRATEGIES), title=title)]
    for row, strategy in enumerate(STRATEGIES):
        y = 40 + 52 * row
        lines.append(f'<text class="h" x="10" y="{y + 26}">{strategy} x2</text>')
        for place, (mode, name) in enumerate((("false", "off"), ("true", "on"))):
            count, top = found[strategy, mode], y + 22 * place
            length = WIDTH * count / total
            lines.append(
                f'<rect class="{name}" x="100" y="{top}" width="{length:.1f}" height="18"/>'
                f'<text x="{108 + length:.1f}" y="{top + 14}">{count:,}  same_bits {name}</text>'
            )
    Path(sys.argv[1]).write_text("\n".join([*lines, "</svg>\n"]))


if __name__ == "__main__":
    main()
