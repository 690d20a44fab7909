"""A small client of the API server for tests: JSON over TLS with the admin's certificate, through whatever way `connect` goes.

Tests look at the cluster many times a second, and kubectl takes a tenth of a second of processor time each; what a user would do
(apply, exec, helm) the tests do with kubectl and helm.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0
TOO_MANY_REQUESTS, TRIES = 429, 20
KINDS = {
    "pods": "/api/v1",
    "nodes": "/api/v1",
    "events": "/api/v1",
    "endpoints": "/api/v1",
    "services": "/api/v1",
    "secrets": "/api/v1",
    "configmaps": "/api/v1",
    "namespaces": "/api/v1",
    "serviceaccounts": "/api/v1",
    "persistentvolumes": "/api/v1",
    "daemonsets": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "statefulsets": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "runtimeclasses": "/apis/node.k8s.io/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
}


class ApiError(OSError):
    """An OSError, since a server that is starting answers so: who waits for something asks again."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """Raises ApiError with the server's status, OSError while there is none. Any thread may use it."""

    def __init__(
        self, host: str, port: int, pki: Path, connect: Callable[[], socket.socket] | None = None
    ) -> None:
        self._host, self._port = host, port
        self.user = ""
        """Name of the user whose rights a request has instead of the administrator's."""
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._connect = connect or (lambda: socket.create_connection((host, port), TIMEOUT_S))
        self._kept = threading.local()

    def call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Any:
        """The document that the server answers, or text where it is none. It is asked again where it says that it will be
        ready in a moment, as every client of it does."""
        for _ in range(TRIES):
            response = self._response(method, path, body, kind)
            data = response.read().decode()
            if response.status != TOO_MANY_REQUESTS:
                break
            time.sleep(1)
        if response.status >= 300:
            raise ApiError(response.status, _message(data))
        if response.headers.get("Content-Type", "").startswith("application/json"):
            return json.loads(data)
        return data

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def warnings(self, method: str, path: str, body: object) -> list[str]:
        """Warnings in the answer's headers, as kubectl shows them."""
        response = self._response(method, path, body, "application/json")
        data = response.read().decode()
        if response.status >= 300:
            raise ApiError(response.status, _message(data))
        return response.headers.get_all("Warning") or []

    def find(self, path: str) -> Any:
        """None if there is no such object."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, plural: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        """`query`: labelSelector, fieldSelector."""
        answer = self.get(f"{path_of(plural, namespace)}?{urllib.parse.urlencode(query)}")
        return list(answer["items"])

    def create(self, plural: str, namespace: str, document: object) -> Any:
        return self.call("POST", path_of(plural, namespace), document)

    def patch(self, path: str, document: object) -> Any:
        return self.call("PATCH", path, document, "application/merge-patch+json")

    def delete(self, path: str, grace_s: int | None = None) -> None:
        """No error if there is none."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.call("DELETE", path, options)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """Events as they come, on a connection of its own, until the server ends it."""
        connection = self._open()
        try:
            mark = "&" if "?" in path else "?"
            connection.request("GET", f"{path}{mark}watch=true")
            response = connection.getresponse()
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def token(self, namespace: str, account: str, audience: str = "", seconds: int = 3600) -> str:
        """A bound token of a service account, as a pod is given."""
        spec: dict[str, Any] = {"expirationSeconds": seconds}
        if audience:
            spec["audiences"] = [audience]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.call("POST", path, {"spec": spec})["status"]["token"])

    def _response(
        self, method: str, path: str, body: object, kind: str
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        if self.user:
            headers["Impersonate-User"] = self.user
        data = None if body is None else json.dumps(body)
        if data is not None:
            headers["Content-Type"] = kind
        connection: http.client.HTTPSConnection | None = getattr(self._kept, "connection", None)
        if connection is not None:
            try:
                connection.request(method, path, data, headers)
                return connection.getresponse()
            except (OSError, http.client.HTTPException):  # the server closed what was kept
                connection.close()
        self._kept.connection = connection = self._open()
        connection.request(method, path, data, headers)
        return connection.getresponse()

    def _open(self) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=self._context
        )
        raw = self._connect()
        connection.sock = self._context.wrap_socket(raw, server_hostname=self._host)
        return connection


def path_of(plural: str, namespace: str = "", name: str = "") -> str:
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{KINDS[plural]}{place}/{plural}" + (f"/{name}" if name else "")


def _message(data: str) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:500]
