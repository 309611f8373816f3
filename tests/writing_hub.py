"""The fake Hub that can be written to: repositories, branches, large files by content, and commits that are whole.

What it was made after is what ``huggingface_hub`` 2.4 sends with ``HF_HUB_DISABLE_XET``: ``repos/create``, ``branch``,
``validate-yaml``, ``preupload``, the Git LFS batch API with basic transfers, and ``commit`` as lines of JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from tests.fake_hub import Answer, FakeHub, Files, blob_id, is_large

WRITER, READER = "hf_" + "w" * 34, "hf_" + "r" * 34
CUT, LOST = 0, 1
"""Faults: the connection ends in the middle of what is sent, or after all of it was done and before the answer."""


class WritingHub(FakeHub):
    """``faults`` are what the next requests that begin so are answered with: HTTP statuses, ``CUT`` or ``LOST``.

    ``stored`` are the large files that arrived, by sha256; ``received_bytes`` counts what was sent for them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, bytes] = {}
        self.faults: dict[str, list[int]] = {}
        self.received_bytes = 0
        self.default = "public"
        """Who sees what is made without a wish; organisations choose."""
        self.orgs = ["org"]
        """Those that whoever writes is a member of."""
        self.scopes: list[dict[str, Any]] | None = None
        """What a token that is fine-grained may do; ``None``: it may do all that its owner may."""

    @property
    def answers(self) -> type[Answer]:
        return WritingAnswer

    def files(self, repo: str, branch: str = "main") -> Files:
        """What a branch holds now."""
        return self.versions[repo, self.branches[repo][branch]]

    def fault(self, request: str) -> int | None:
        """The fault that is due for a request, which is then over."""
        for start, statuses in self.faults.items():
            if request.startswith(start) and statuses:
                return statuses.pop(0)
        return None


class WritingAnswer(Answer):
    """One request."""

    fake: WritingHub
    lost = False

    def do_PUT(self) -> None:  # noqa: N802  the name that `http.server` calls
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        path = unquote(urlsplit(self.path).path)
        fault = self.fake.fault(f"{self.command} {path}")
        if fault == CUT:
            if self.command == "PUT":
                self.rfile.read(10)
            self._cut()
            return
        if self.command == "PUT":
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault == LOST:
            self.lost = True
        elif fault is not None:
            headers = {"Retry-After": "0" if self.command == "PUT" else "7"} if fault == 429 else {}
            self._send(fault, b'{"error": "a fault"}', {"Content-Type": "application/json", **headers})
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", WRITER, READER):
            said = {
                "X-Error-Message": "Invalid credentials in Authorization header",
                "Content-Type": "application/json",
            }
            self._send(401, b"{}", said)
        elif path == "/api/whoami-v2":
            self._say(self._who("write" if token == WRITER else "read"))
        elif self.command in ("GET", "HEAD") or "/paths-info/" in path:
            super()._answer(body)
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif self.command == "PUT":
            self._store(path.rpartition("/")[2], body)
        elif token != WRITER:
            self._refuse(403 if token else 401, "Forbidden")
        else:
            self.fake.requests.append(f"{self.command} {self.path}")
            self._write(path, body)

    def _who(self, role: str) -> dict[str, Any]:
        orgs = [{"type": "org", "name": name, "roleInOrg": "write"} for name in self.fake.orgs]
        fine = {"role": "fineGrained", "fineGrained": {"global": [], "scoped": self.fake.scopes}}
        token = {"role": role} if self.fake.scopes is None else fine
        return {"type": "user", "name": "jane", "orgs": orgs, "auth": {"accessToken": token}}

    def _cut(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        if self.lost:
            self._cut()
        else:
            super()._send(status, data, headers)

    def _validate(self, content: str) -> None:
        held = yaml.safe_load(content.split("---")[1]) if content.startswith("---") else None
        right = isinstance(held, dict) and isinstance(held.get("license"), str)
        for config in held.get("configs", []) if right else []:
            right = right and {"config_name", "data_files"} <= config.keys()
        errors = [] if right else [{"message": "metadata is wrong"}]
        self._send(200 if right else 400, json.dumps({"errors": errors}).encode(), {"Content-Type": "application/json"})

    def _store(self, oid: str, data: bytes) -> None:
        self.fake.requests.append(f"{self.command} {self.path}")
        if hashlib.sha256(data).hexdigest() != oid:
            self._refuse(400, "WrongContent")
            return
        self.fake.stored[oid] = data
        self.fake.received_bytes += len(data)
        self._say({})

    def _write(self, path: str, body: bytes) -> None:
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path.endswith("/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        else:
            parts = path.removeprefix("/api/").split("/")
            repo, what, branch = "/".join(parts[1:3]), parts[3], "/".join(parts[4:])
            if repo not in self.fake.branches:
                self._refuse(404, "RepoNotFound")
            elif what == "branch":
                if branch in self.fake.branches[repo]:
                    self._refuse(409, "Exists")
                    return
                start = json.loads(body or b"{}").get("startingPoint", self.fake.branches[repo]["main"])
                self.fake.branches[repo][branch] = start
                self._say({})
            elif what == "preupload":
                self._preupload(self.fake.files(repo, branch), json.loads(body))
            elif what == "commit":
                self._commit(repo, branch, [json.loads(line) for line in body.splitlines()])

    def _create(self, wanted: dict[str, Any]) -> None:
        repo = f"{wanted['organization']}/{wanted['name']}"
        if repo in self.fake.branches:
            self._refuse(409, "Exists")
            return
        self.fake.push(repo, {".gitattributes": b"*.parquet filter=lfs"})
        if wanted.get("visibility", self.fake.default) == "private":
            self.fake.private.add(repo)
        self._say({"url": f"https://huggingface.co/datasets/{repo}", "name": repo})

    def _batch(self, wanted: dict[str, Any]) -> None:
        objects: list[dict[str, Any]] = []
        for each in wanted["objects"]:
            href = f"http://{self.headers['Host']}/lfs/{each['oid']}?X-Amz-Signature=signed"
            actions = {} if each["oid"] in self.fake.stored else {"actions": {"upload": {"href": href}}}
            objects.append({**each, **actions})
        self._say({"transfer": "basic", "objects": objects})

    def _preupload(self, held: Files, wanted: dict[str, Any]) -> None:
        found = []
        for each in wanted["files"]:
            name, large = each["path"], is_large(each["path"])
            data = held.get(name)
            oid = None if data is None else hashlib.sha256(data).hexdigest() if large else blob_id(data)
            mode = "lfs" if large else "regular"
            ignored = any(f"/{line}" in f"/{name}" for line in held.get(".gitignore", b"").decode().split())
            found.append({"path": name, "uploadMode": mode, "shouldIgnore": ignored, "oid": oid})
        self._say({"files": found})

    def _commit(self, repo: str, branch: str, lines: list[dict[str, Any]]) -> None:
        files, title = dict(self.fake.files(repo, branch)), ""
        for line in lines:
            kind, value = line["key"], line["value"]
            title = value["summary"] if kind == "header" else title
            if kind == "header" and value.get("parentCommit") != self.fake.branches[repo][branch]:
                self._refuse(412, "PreconditionFailed")
                return
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.fake.stored[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        commit = self.fake.push(repo, files, branch, title)
        self._say({"commitUrl": f"https://huggingface.co/datasets/{repo}/commit/{commit}", "commitOid": commit})
