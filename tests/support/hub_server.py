"""A stand-in for the Hugging Face Hub: as much of its API as an upload of a folder needs.

It takes no part of Xet, so uploads go the older way, by LFS (``HF_HUB_DISABLE_XET``).
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_StandInStandInStandInStandInStand0"


@dataclass
class Commit:
    """What was pushed at once."""

    repo: str
    branch: str
    message: str
    files: dict[str, bytes]


@dataclass
class Hub:
    """What the server has been sent.

    Args:
        status: of every answer, if it is not to be the right one.
        hangs: whether an address is never answered.
    """

    status: int | None = None
    hangs: Callable[[str], bool] = lambda path: False
    address: str = ""
    created: list[dict[str, Any]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    objects: dict[str, bytes] = field(default_factory=dict)

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables of a process that has this server as its Hub."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def sent(self) -> bytes:
        """Return every byte that was sent, files as they are; not the headers."""
        files = [content for commit in self.commits for content in commit.files.values()]
        return b"\n".join([*(body for _, body in self.requests), *files])

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return status and JSON of an answer."""
        if self.status is not None:
            return self.status, {"error": "the server does not feel well"}
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[:3] == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, self._batch(json.loads(body))
        if method == "PUT" and parts[0] == "lfs":
            self.objects[parts[1]] = body
            return 200, {}
        if parts[:2] == ["api", "models"] and len(parts) == 6:
            repo, what, branch = "/".join(parts[2:4]), parts[4], parts[5]
            if what == "branch":
                return 201, {}
            if what == "preupload":
                return 200, self._modes(json.loads(body))
            if what == "commit":
                return 200, self._commit(repo, branch, body)
        return 404, {"error": f"no such address: {method} {path}"}

    def _create(self, request: dict[str, Any]) -> tuple[int, Any]:
        self.created.append(request)
        url = f"{self.address}/{request['organization']}/{request['name']}"
        status = 200 if len(self.created) == 1 else 409
        return status, {"url": url, "error": "You already created this model repo"}

    def _modes(self, request: dict[str, Any]) -> Any:
        modes = []
        for file in request["files"]:
            mode = "lfs" if file["path"].endswith((".safetensors", ".bin")) else "regular"
            modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        return {"files": modes}

    def _batch(self, request: dict[str, Any]) -> Any:
        objects = []
        for item in request["objects"]:
            upload = {"href": f"{self.address}/lfs/{item['oid']}"}
            objects.append({**item, "actions": {"upload": upload}})
        return {"transfer": "basic", "objects": objects}

    def _commit(self, repo: str, branch: str, body: bytes) -> Any:
        lines = [json.loads(line) for line in body.splitlines()]
        files = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        message = lines[0]["value"]["summary"]
        self.commits.append(Commit(repo, branch, message, files))
        oid = f"{len(self.commits):040}"
        return {
            "commitUrl": f"{self.address}/{repo}/commit/{oid}",
            "commitOid": oid,
            "pullRequestUrl": None,
        }


@contextmanager
def hub_server(hub: Hub | None = None) -> Iterator[Hub]:
    """Serve a stand-in on this machine while the block runs."""
    served = hub or Hub()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                served.requests.append((f"{self.command} {self.path}", body))
            if served.hangs(self.path):
                served.ended.wait()
                self.close_connection = True
                return
            with lock:
                status, answer = served.answer(self.command, self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _do

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.ended.set()
        server.shutdown()
        server.server_close()
