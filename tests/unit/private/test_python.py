"""Private attributes of the standard library: a release of Python that removes one is named here."""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.process
import platform
import time

from trainer.private.python import arguments_of, child_processes

PYTHON = f"Python {platform.python_version()}"


def test_the_arguments_of_a_parser() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    alone = parser.add_argument("--alone")
    group = parser.add_argument_group("group")
    within = group.add_argument("--within")
    assert hasattr(parser, "_actions"), f"{PYTHON} has no ArgumentParser._actions in argparse"
    assert arguments_of(parser) == [alone, within]


def test_processes_of_multiprocessing_are_listed() -> None:
    assert hasattr(multiprocessing.process, "_children"), (
        f"{PYTHON} has no multiprocessing.process._children"
    )
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        assert process in child_processes()
    finally:
        process.terminate()
        process.join()
    assert process not in child_processes()
