"""An API server for tests: objects in memory, lists, watches, merge patches, over real HTTP.

It behaves: resource versions grow, a watch from a version that was compacted away answers 410, field
selectors select, streaming lists end with their bookmark. What a real one does besides (admission,
defaults, access) is not here; tests/peers and tests/cluster have the real one.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

Document = dict[str, Any]
_OF_A_SET = re.compile(r"(\S+) in \((.*)\)")


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    out = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


class ApiServer:
    def __init__(self, streaming: bool = True, token: str = "") -> None:
        self.streaming = streaming
        self.token = token
        """Not empty: who has another is refused with 401."""
        self.objects: dict[tuple[str, str], Document] = {}
        """Objects by collection (/api/v1/pods) and namespace/name."""
        self.events: list[tuple[int, str, str, Document]] = []
        """Version, collection, type, object."""
        self.version = 100
        self.compacted = 0
        """Watches from this version and before are answered 410."""
        self.requests: list[tuple[str, str]] = []
        """Method and path of all that were made."""
        self.refuse: Callable[[str, str], tuple[int, str] | None] = lambda method, path: None
        """Status and reason for a request that is to be refused."""
        self.reviews: dict[str, Document] = {}
        """Status of a TokenReview by token."""
        self._news = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._cuts: set[asyncio.Task[Any]] = set()
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{port}"

    async def close(self) -> None:
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()

    def cut(self) -> None:
        """Every watch that is open breaks."""
        for task in list(self._cuts):
            task.cancel()

    # --- what a test does ---------------------------------------------------------------------

    def put(self, collection: str, document: Document, kind: str = "") -> Document:
        """A new object, or a new state of one."""
        document = copy.deepcopy(document)
        head = document.setdefault("metadata", {})
        head.setdefault("uid", str(uuid.uuid4()))
        key = (collection, _key(document))
        kind = kind or ("MODIFIED" if key in self.objects else "ADDED")
        self.version += 1
        head["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = document
        self.events.append((self.version, collection, kind, copy.deepcopy(document)))
        self._news.set()
        self._news = asyncio.Event()
        return document

    def get(self, collection: str, key: str) -> Document:
        return self.objects[collection, key]

    def remove(self, collection: str, key: str) -> None:
        self.put(collection, self.objects[collection, key], "DELETED")

    def compact(self) -> None:
        self.compacted = self.version
        self.events.clear()

    # --- HTTP ---------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.requests.append((request.method, path))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        refused = self.refuse(request.method, path)
        if refused is not None:
            return _status(refused[0], refused[1], "refused by the test")
        collection, namespace, name, sub = _parse(path)
        if collection.endswith("/tokenreviews"):
            document = await request.json()
            status = self.reviews.get(document["spec"]["token"], {"authenticated": False})
            return web.json_response({**document, "status": status}, status=201)
        if request.method == "POST":
            document = await request.json()
            if namespace:
                document["metadata"].setdefault("namespace", namespace)
            head = document["metadata"]
            if "name" not in head:
                head["name"] = head["generateName"] + uuid.uuid4().hex[:5]
            if (collection, _key(document)) in self.objects:
                return _status(409, "AlreadyExists", f"{_key(document)} already exists")
            return web.json_response(self.put(collection, document), status=201)
        if not name:
            if request.query.get("watch") == "true":
                return await self._watch(request, collection, namespace)
            return self._list(request, collection, namespace)
        key = (collection, f"{namespace}/{name}" if namespace else name)
        if key not in self.objects:
            return _status(404, "NotFound", f"{key[1]} not found")
        if request.method == "PUT" and not sub:
            document = await request.json()
            known = self.objects[key]["metadata"]["resourceVersion"]
            if document["metadata"].get("resourceVersion", known) != known:
                return _status(409, "Conflict", "the object has been modified")
            return web.json_response(self.put(collection, document))
        if request.method == "PATCH":
            return self._patch(key, await request.json(), sub, request.content_type)
        if request.method == "DELETE":
            document = self.objects[key]
            self.remove(*key)
            return web.json_response(document)
        return web.json_response(self.objects[key])

    def _patch(self, key: tuple[str, str], patch: Document, sub: str, kind: str) -> web.Response:
        if kind != "application/merge-patch+json":
            return _status(415, "UnsupportedMediaType", kind)
        old = self.objects[key]
        wanted = patch.get("metadata", {}).pop("resourceVersion", None)
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified")
        # Of a status, the real one takes annotations and labels too: the kubelet's go that way.
        kept = {part: patch.get(part, {}) for part in ("status", "metadata")}
        new = merged(old, kept if sub else patch)
        if not sub and "status" in old:
            new["status"] = old["status"]
        return web.json_response(old if new == old else self.put(key[0], new))

    def _selected(self, request: web.Request, document: Document, namespace: str) -> bool:
        if namespace and document["metadata"].get("namespace") != namespace:
            return False
        for part in filter(None, request.query.get("fieldSelector", "").split(",")):
            field, _, value = part.partition("=")
            found: Any = document
            for step in field.split("."):
                found = found.get(step, {})
            if found != value:
                return False
        labels = document["metadata"].get("labels") or {}
        if text := request.query.get("labelSelector", ""):
            chosen = _OF_A_SET.fullmatch(text)
            assert chosen is not None, f"of label selectors only `KEY in (...)` is here: {text}"
            return labels.get(chosen[1]) in chosen[2].split(",")
        return True

    def _all(self, request: web.Request, collection: str, namespace: str) -> list[Document]:
        return [
            one
            for (where, _), one in sorted(self.objects.items())
            if where == collection and self._selected(request, one, namespace)
        ]

    def _list(self, request: web.Request, collection: str, namespace: str) -> web.Response:
        items = self._all(request, collection, namespace)
        start = int(request.query.get("continue", "0").partition("@")[0])
        limit = int(request.query.get("limit", "0"))
        if request.query.get("resourceVersion") == "0":
            limit = 0  # out of the cache, in one
        head: Document = {"resourceVersion": str(self.version)}
        if limit and start + limit < len(items):
            head["continue"] = f"{start + limit}@{self.version}"
        items = items[start : start + limit] if limit else items[start:]
        return web.json_response({"kind": "List", "metadata": head, "items": items})

    async def _watch(
        self, request: web.Request, collection: str, namespace: str
    ) -> web.StreamResponse:
        streams = request.query.get("sendInitialEvents") == "true"
        if streams and not self.streaming:
            return _status(422, "Invalid", "sendInitialEvents is forbidden")
        since = int(request.query.get("resourceVersion") or self.version)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if since < self.compacted and not streams:
            await _send(response, "ERROR", {"kind": "Status", "code": 410, "message": "too old"})
            return response
        task = asyncio.current_task()
        assert task is not None
        self._cuts.add(task)
        try:
            if streams:
                for one in self._all(request, collection, namespace):
                    await _send(response, "ADDED", one)
                since = self.version
                await _send(
                    response, "BOOKMARK", _bookmark(since, {"k8s.io/initial-events-end": "true"})
                )
            while True:
                news = self._news
                for version, where, kind, document in list(self.events):
                    if version <= since or where != collection:
                        continue
                    if self._selected(request, document, namespace):
                        await _send(response, kind, document)
                since = self.version
                await news.wait()
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self._cuts.discard(task)


async def _send(response: web.StreamResponse, kind: str, document: Document) -> None:
    await response.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")


def _bookmark(version: int, annotations: Mapping[str, str]) -> Document:
    return {"metadata": {"resourceVersion": str(version), "annotations": dict(annotations)}}


def _key(document: Document) -> str:
    head = document["metadata"]
    return f"{head['namespace']}/{head['name']}" if head.get("namespace") else str(head["name"])


def _parse(path: str) -> tuple[str, str, str, str]:
    """Collection, namespace, name, subresource."""
    parts = path.strip("/").split("/")
    root = 2 if parts[0] == "api" else 3
    base, rest = parts[:root], parts[root:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    collection = "/" + "/".join([*base, *rest[:1]])
    return collection, namespace, "".join(rest[1:2]), "".join(rest[2:3])


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)
