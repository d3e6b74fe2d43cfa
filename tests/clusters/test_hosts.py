"""The launchers on two machines, and a cable that is cut while they train."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from cluster_runs import Run, assert_same_curve, by_step, settings, wait_for_step
from hosts import NAMES, Hosts
from launchers import json_in

STEPS = 40


def processes(run: Path) -> int:
    return int(json_in(run / "plan.json")["world_size"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero3"])
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_two_machines_learn_what_one_process_learns(
    launcher: str, strategy: str, hosts: Hosts, tmp_path: Path, one_process: Run
) -> None:
    words = [f"examples/clusters/{launcher}.sh", *settings(tmp_path / "run", STEPS)]
    assert hosts.run(words, {"STRATEGY": strategy}) == [0, 0], hosts.all_said()
    assert processes(tmp_path / "run") == 2
    assert_same_curve(tmp_path / "run", one_process(STEPS))


@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_a_cut_cable_ends_both_sides_and_the_run_goes_on(
    launcher: str, hosts: Hosts, tmp_path: Path, one_process: Run
) -> None:
    run, steps = tmp_path / "run", 300
    words = [f"examples/clusters/{launcher}.sh", *settings(run, steps), "--timeout_minutes", "0.2"]
    jobs = [
        hosts.start(
            name,
            words,
            {"MACHINE": str(number), "FIRST": NAMES[0], "PROCESSES": "1", "STRATEGY": "ddp"},
        )
        for number, name in enumerate(NAMES)
    ]
    wait_for_step(run, 30)
    hosts.cut()
    cut = time.monotonic()
    ended = {}
    while len(ended) < 2:
        ended |= {name: time.monotonic() - cut for name, job in zip(NAMES, jobs, strict=True)
                  if job.poll() is not None and name not in ended}  # fmt: skip
        assert time.monotonic() - cut < 120, hosts.all_said()
        time.sleep(0.1)
    print({name: round(seconds, 1) for name, seconds in ended.items()})
    assert all(job.returncode for job in jobs), "a job that did not finish does not say that it did"
    assert max(ended.values()) < 60, ended
    reached = max(by_step(run))
    assert reached < steps
    hosts.mend()
    assert hosts.run(words, {"STRATEGY": "ddp"}) == [0, 0], hosts.all_said()
    assert_same_curve(run, one_process(steps))


def test_a_list_of_machines_for_the_deepspeed_launcher(
    hosts: Hosts, tmp_path: Path, one_process: Run
) -> None:
    """Over pdsh and ssh, as it starts the others itself."""
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    (keys / "user.pub").rename(keys / "authorized")
    server = [
        "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-h", str(keys / "host"), "-o", "StrictModes=no",
        "-o", f"AuthorizedKeysFile={keys / 'authorized'}", "-o", "PidFile=none", "-o", "UsePAM=no",
    ]  # fmt: skip
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks its helper in
    for name in NAMES:
        hosts.start(name, server)
    config = tmp_path / "ssh_config"
    config.write_text(
        f"IdentityFile {keys / 'user'}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    ssh = (
        tmp_path / "bin/ssh"
    )  # pdsh and DeepSpeed start it by name; the user's own configuration stays as it is
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    ssh.chmod(0o755)
    (tmp_path / "hostfile").write_text("".join(f"{name} slots=1\n" for name in NAMES))
    (tmp_path / "env").write_text(f"DS_ACCELERATOR=cpu\nOMP_NUM_THREADS=1\nPATH={hosts.path}\n")
    environment = {
        "FIRST": NAMES[0],
        "HOSTFILE": str(tmp_path / "hostfile"),
        "DS_ENV_FILE": str(tmp_path / "env"),
        "PATH": f"{ssh.parent}:{hosts.path}",
    }
    job = hosts.start(
        NAMES[0],
        ["examples/clusters/deepspeed.sh", *settings(tmp_path / "run", STEPS)],
        environment,
    )
    assert hosts.wait([job]) == [0], hosts.all_said()
    assert processes(tmp_path / "run") == 2
    assert_same_curve(tmp_path / "run", one_process(STEPS))
