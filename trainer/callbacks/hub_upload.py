"""Uploads a folder to the Hugging Face Hub, as a process of its own beside a training.

A server that does not answer keeps this process only, and the training can end it. ``hub.py``
starts it with a request as JSON on its standard input, and it answers with one line of JSON. The
token is where huggingface_hub looks for it: in the environment, or where ``hf auth login`` stored
it.
"""

import json
import os
import re
import sys
import threading
import time

_MINUTES_ALONE = 10


def upload(request: dict[str, str | bool | None]) -> str:
    """Create the repository where there is none, and upload a folder, if one is given.

    Args:
        request: ``repo``; ``private``; ``folder`` or None; ``branch``, None for the main one; and
            the ``message`` of the commit.

    Returns:
        The address of the commit, or of the repository.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    repo = str(request["repo"])
    # None: public, or as an organization's own default says.
    private = True if request["private"] else None
    address = str(api.create_repo(repo, private=private, exist_ok=True))
    if request["folder"] is None:
        return address

    branch = None if request["branch"] is None else str(request["branch"])
    if branch is not None:
        api.create_branch(repo, branch=branch, exist_ok=True)
    commit = api.upload_folder(
        repo_id=repo,
        folder_path=str(request["folder"]),
        revision=branch,
        commit_message=str(request["message"]),
    )
    return str(commit.commit_url)


def end_with(parent: int) -> None:
    """End this process some minutes after the training has ended without ending it (killed)."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(_MINUTES_ALONE * 60)
    os._exit(1)


def main() -> int:
    sys.path.pop(0)  # the folder of this file, whose modules have names of others
    request = json.load(sys.stdin)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    try:
        answer = {"address": upload(request)}
    except Exception as error:  # (whatever it is, the training is told of it)
        text = re.sub(r"\(Request ID: [^)]*\)", "", str(error))
        text = " ".join(text.split())[:300]
        answer = {"error": f"{type(error).__name__}: {text}"}
    print("\n" + json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
