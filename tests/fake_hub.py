"""A Hub on the loopback: repositories in memory behind those of its endpoints that reading one calls.

``tests/writing_hub.py`` has those that writing one calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import constants

Files = dict[str, bytes]


def commit_of(files: Files) -> str:
    """The commit of a version of a data set, here a digest of its files."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class FakeHub:
    """Versions of data sets by name; ``requests`` holds what was asked for, as ``"GET /api/…"``."""

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, str]] = {}
        self.versions: dict[tuple[str, str], Files] = {}
        self.gated: set[str] = set()
        self.files_left: int | None = None
        """How many more times it sends a file, or a range of one, before it refuses to."""
        self.requests: list[str] = []
        self.sent_bytes = 0
        self.cut_after: int | None = None
        """After how many bytes it breaks off the next file that is longer."""
        self.private: set[str] = set()
        self.titles: dict[tuple[str, str], str] = {}
        """Of the files of a repository, by path, what was said when they were written last."""

    @property
    def answers(self) -> type[Answer]:
        """What answers a request."""
        return Answer

    def push(self, repo: str, files: Files, branch: str = "main", title: str = "by hand") -> str:
        """Make ``files`` what ``branch`` of ``repo`` holds; returns the commit."""
        commit = commit_of(files)
        before = self.versions.get((repo, self.branches.get(repo, {}).get(branch, "")), {})
        self.titles |= {(repo, path): title for path, data in files.items() if before.get(path) != data}
        self.versions[repo, commit] = files
        self.branches.setdefault(repo, {})[branch] = commit
        return commit

    @contextmanager
    def served(self) -> Iterator[str]:
        """The address it answers at, while it does."""
        hub = self

        class Handler(self.answers):  # type: ignore[misc, name-defined]
            fake = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()


class Answer(BaseHTTPRequestHandler):
    """One request."""

    fake: FakeHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(b"")

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, *words: Any) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.fake.requests.append(f"{self.command} {self.path}")
        path = unquote(urlsplit(self.path).path)
        parts = path.removeprefix("/api").strip("/").split("/")
        # The files of models are found without a word for their kind.
        parts = ["models", *parts] if parts[2:3] == ["resolve"] else parts
        repo = "/".join(parts[1:3])
        if parts[0] not in ("datasets", "models") or repo not in self.fake.branches:
            self._refuse(401, "RepoNotFound")
            return
        what, revision, rest = (parts[3], parts[4], "/".join(parts[5:])) if parts[4:] else ("revision", "main", "")
        commit = self.fake.branches[repo].get(revision, revision)
        files = self.fake.versions.get((repo, commit))
        if files is None:
            self._refuse(404, "RevisionNotFound")
        elif what == "revision":
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            private = repo in self.fake.private
            self._say({"id": repo, "sha": commit, "private": private, "tags": [], "downloads": 0, "siblings": siblings})
        elif what == "tree":
            recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
            self._say(tree(files, rest, recursive))
        elif what == "paths-info":
            asked = wanted(body, self.headers.get("Content-Type", ""))
            everything = tree(files, "", recursive=True)
            self._say([{**each, **self._last(repo, each["path"])} for each in everything if each["path"] in asked])
        elif repo in self.fake.gated:
            self._refuse(401, "GatedRepo")
        elif rest not in files:
            self._refuse(404, "EntryNotFound")
        else:
            self._send_file(files[rest], commit)

    def _last(self, repo: str, path: str) -> dict[str, Any]:
        title = self.fake.titles.get((repo, path))
        said = {"id": "0" * 40, "title": title, "date": "2026-01-01T00:00:00.000Z"}
        return {} if title is None else {"lastCommit": said}

    def _send_file(self, data: bytes, commit: str) -> None:
        if self.fake.files_left is not None:
            if self.fake.files_left == 0:
                self._refuse(403, "TooMuch")
                return
            self.fake.files_left -= 1
        total = len(data)
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None:
            self._send(200, data, headers)
            return
        start, _, end = asked.removeprefix("bytes=").partition("-")
        data = data[int(start) : int(end) + 1 if end else None]
        headers["Content-Range"] = f"bytes {start}-{int(start) + len(data) - 1}/{total}"
        self._send(206, data, headers)

    def _say(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code, "Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        cut = self.fake.cut_after
        if self.command == "GET" and cut is not None and len(data) > cut and "ETag" in headers:
            self.fake.cut_after = None
            self.wfile.write(data[:cut])
            self.close_connection = True
            return
        if self.command != "HEAD":
            self.fake.sent_bytes += len(data)
            self.wfile.write(data)


def files_of(folder: Path, name: str) -> Files:
    """The files of a table, by their path in a data set that holds it as ``name``."""
    return {f"{name}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def model_files(folder: Path, **more: bytes) -> Files:
    """The files of a model or an adapter, as a repository holds them, and ``more``."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} | more


def direct(patch: pytest.MonkeyPatch, address: str, home: Path) -> None:
    """Let the Hub of this process be at ``address``, and its cache in ``home``."""
    patch.setattr(constants, "ENDPOINT", address)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(home))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))


def wanted(body: bytes, kind: str) -> list[str]:
    """The paths that a request for information on paths names."""
    told = json.loads(body) if "json" in kind else parse_qs(body.decode())
    paths = told["paths"]
    return [paths] if isinstance(paths, str) else list(paths)


def tree(files: Files, folder: str, recursive: bool) -> list[dict[str, Any]]:
    """Files and folders below ``folder``, as the Hub lists them."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, dict[str, Any]] = {}
    for name, data in files.items():
        if not name.startswith(prefix):
            continue
        parts = name.removeprefix(prefix).split("/")
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            path = prefix + "/".join(parts[:depth])
            found[path] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
        if recursive or len(parts) == 1:
            found[name] = {"type": "file", "oid": blob_id(data), "size": len(data), "path": name}
            if is_large(name):
                pointer = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                found[name] |= {"oid": blob_id(repr(pointer).encode()), "lfs": pointer}
    return list(found.values())


def blob_id(data: bytes) -> str:
    """Git's name for the content of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(name: str) -> bool:
    """Whether the Hub stores a file apart from the repository, by its content."""
    return name.endswith((".parquet", ".safetensors"))


def child(program: Sequence[str], address: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``program`` with the Hub at ``address``, which must be known before the Hub's library is imported."""
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_UPDATE_DOWNLOAD_COUNTS": "0", **environment}
    named = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    root = str(Path(__file__).resolve().parents[1])
    return subprocess.run(
        program, env={**named, "PYTHONPATH": root, **settings}, capture_output=True, text=True, check=False
    )
