"""Engines that come as Python packages: their files parsed by their own code, and what they start,
run.
"""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import SETTINGS, Run, assert_same_curve, by_step, environment, finished, settings
from hosts import ADDRESSES, NAMES, Hosts
from launchers import BIN, ROOT, json_in

CLUSTERS = ROOT / "examples/clusters"
STEPS = 40
TORCHX = ("torchx==0.7.0", "setuptools<81")  # it imports pkg_resources
SKYPILOT = ("skypilot==0.14.1",)
DSTACK = ("dstack==0.22.5",)
KUBEFLOW = ("kubeflow==0.5.0",)


def parsed(python: Path, code: str, path: Path) -> Any:
    """Return the JSON that a piece of code of an engine's own environment prints of a file."""
    done = finished([str(python / "python"), "-c", code, str(path)], HOME=str(python.parent))
    return json.loads(done.stdout.splitlines()[-1])


def test_torchx_starts_two_processes(tmp_path: Path, one_process: Run) -> None:
    run = tmp_path / "run"
    path = f"{BIN}:{environment('torchx', *TORCHX, trains=False)}:{os.environ['PATH']}"
    finished([str(CLUSTERS / "torchx.sh"), *settings(run, STEPS)], PATH=path, SHAPE="1x2")
    plan = json_in(run / "plan.json")
    assert (plan["launcher"], plan["world_size"], plan["strategy"]) == ("torchrun", 2, "fsdp")
    assert_same_curve(run, one_process(STEPS))


def train_by_text(
    hosts: Hosts, text: str, variables: dict[str, str], run: Path, expected: dict[int, float]
) -> None:
    """Run what an engine would run on each machine, under the variables that it sets there."""
    more = " ".join(["--max_steps", str(STEPS), *SETTINGS])
    command = f"set -eu\n{text.rstrip()} {more}"
    jobs = [
        hosts.start(
            name, ["bash", "-c", command], {**variables, "RUN": str(run), "NUMBER": str(number)}
        )
        for number, name in enumerate(NAMES)
    ]
    assert hosts.wait(jobs) == [0, 0], hosts.all_said()
    assert json_in(run / "plan.json")["world_size"] == 2
    assert_same_curve(run, expected)


def test_skypilot_reads_its_file_and_its_commands_train(
    hosts: Hosts, tmp_path: Path, one_process: Run
) -> None:
    code = """
import json, sky, sys
task = sky.Task.from_yaml(sys.argv[1])
[resources] = task.resources
print(json.dumps([task.name, task.num_nodes, task.run, task.envs, resources.accelerators]))
"""
    name, nodes, text, variables, gpus = parsed(
        environment("skypilot", *SKYPILOT, trains=False), code, CLUSTERS / "skypilot.yaml"
    )
    assert (name, nodes, gpus) == ("samecurve", 2, {"H100": 8})
    ranked = f'export SKYPILOT_NODE_RANK="$NUMBER"\n{text}'
    addresses = "\n".join(ADDRESSES.values())
    variables |= {
        "SKYPILOT_NODE_IPS": addresses,
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
    }
    train_by_text(hosts, ranked, variables, tmp_path / "run", one_process(STEPS))


def test_dstack_reads_its_file_and_its_commands_train(
    hosts: Hosts, tmp_path: Path, one_process: Run
) -> None:
    code = """
import json, sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
task = parse_apply_configuration(yaml.safe_load(open(sys.argv[1])))
print(json.dumps([task.type, task.nodes, task.commands, task.env.as_dict()]))
"""
    kind, nodes, commands, variables = parsed(
        environment("dstack", *DSTACK, trains=False), code, CLUSTERS / "dstack.yaml"
    )
    assert (kind, nodes, len(commands)) == ("task", 2, 2) and commands[0].startswith("pip install")
    ranked = f'export DSTACK_NODE_RANK="$NUMBER"\n{commands[1]}'
    variables |= {
        "DSTACK_NODES_NUM": "2",
        "DSTACK_GPUS_PER_NODE": "1",
        "DSTACK_MASTER_NODE_IP": ADDRESSES["node1"],
    }
    train_by_text(hosts, ranked, variables, tmp_path / "run", one_process(STEPS))


def test_kubeflow_takes_the_manifest_and_its_command_trains(
    hosts: Hosts, tmp_path: Path, one_process: Run
) -> None:
    """The models of the CRD keep what they know: what comes back is the whole manifest."""
    code = """
import json, sys, yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob as Job
written = yaml.safe_load(open(sys.argv[1]))
print(json.dumps([written, Job.from_dict(written).to_dict()]))
"""
    written, known = parsed(
        environment("kubeflow", *KUBEFLOW, trains=False), code, CLUSTERS / "kubeflow.yaml"
    )
    assert known == written
    container = written["spec"]["trainer"]
    text = " ".join([*container["command"], *container["args"]]).replace("/shared/digits", '"$RUN"')
    # As the runtime torch-distributed sets them.
    variables = {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": ADDRESSES["node1"], "PET_MASTER_PORT": "29400",
    }  # fmt: skip
    train_by_text(
        hosts,
        f'export PET_NODE_RANK="$NUMBER"\n{text}',
        variables,
        tmp_path / "run",
        one_process(STEPS),
    )


def test_kubeflow_is_told_the_progress(tmp_path: Path) -> None:
    got: list[tuple[str, dict[str, Any]]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    (tmp_path / "token").write_text("secret\n")
    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        words = [
            str(BIN / "python"),
            "examples/clusters/kubeflow_train.py",
            *settings(tmp_path / "run", STEPS),
        ]
        finished(
            [*words, "--config", "examples/configs/digits_cnn.yaml"],
            KUBEFLOW_TRAINER_SERVER_URL=f"http://127.0.0.1:{server.server_port}/status",
            KUBEFLOW_TRAINER_SERVER_TOKEN=str(tmp_path / "token"),
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    (tmp_path / "told.json").write_text(json.dumps(got[-1][1]))
    code = """
import json, sys
from kubeflow_trainer_api.models import TrainerV1alpha1UpdateTrainJobStatusRequest as Request
status = Request.from_json(open(sys.argv[1]).read()).trainer_status
names = {metric.name: metric.value for metric in status.metrics}
print(json.dumps([status.progress_percentage, status.estimated_remaining_seconds, names]))
"""
    progress, seconds, names = parsed(
        environment("kubeflow", *KUBEFLOW, trains=False), code, tmp_path / "told.json"
    )
    assert got[-1][0] == "Bearer secret" and (progress, seconds) == (100, 0)
    assert float(names["loss"]) == by_step(tmp_path / "run")[STEPS]


@pytest.mark.timeout(1800)
def test_kubeflow_runs_a_job_on_this_machine(tmp_path: Path, one_process: Run) -> None:
    """The SDK makes an environment for the job, which takes minutes."""
    run = tmp_path / "run"
    python = environment("kubeflow", *KUBEFLOW, trains=False) / "python"
    words = [
        str(python),
        "examples/clusters/kubeflow_local.py",
        "--processes",
        "2",
        *settings(run, STEPS),
    ]
    finished(words, seconds=1700, TMPDIR=str(tmp_path))
    assert json_in(run / "plan.json")["world_size"] == 2
    assert_same_curve(run, one_process(STEPS))
