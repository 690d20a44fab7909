"""Helpers shared by the verbs: finding the service, reading manifests, naming kinds, reporting
errors."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import yaml

from queuecontroller.cli.files import Unreadable, path, read_texts
from queuecontroller.cli.main import EXIT_NO, EXIT_UNREACHABLE, EXIT_USAGE
from queuecontroller.server.api.client import (
    Client,
    Endpoint,
    EndpointUnusable,
    Refused,
    Unreachable,
)
from queuecontroller.server.api.wire import Wire, find_descriptors
from queuecontroller.server.config import SYSTEM_SOCKET, user_socket

if TYPE_CHECKING:
    from queuecontroller.kueueapi.manifests.sources import Source

_KINDS: Final = {
    "Workload": ("workloads", "wl", "job", "jobs"),
    "ClusterQueue": ("clusterqueues", "cq"),
    "LocalQueue": ("localqueues", "queue", "queues", "lq"),
    "ResourceFlavor": ("resourceflavors", "flavor", "flavors", "rf"),
    "Cohort": ("cohorts",),
    "Topology": ("topologies",),
    "Namespace": ("namespaces", "ns"),
    "WorkloadPriorityClass": ("workloadpriorityclasses", "wpc"),
    "PriorityClass": ("priorityclasses", "pc"),
    "AdmissionCheck": ("admissionchecks", "ac"),
    "LimitRange": ("limitranges", "limits"),
    "Configuration": ("configurations",),
    "Node": ("nodes", "no"),
}
_BY_WORD: Final = {word: kind for kind, words in _KINDS.items() for word in (kind.lower(), *words)}


class Failed(Exception):
    """Ends the command with this exit status, after these lines on stderr."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Add the options of every verb that calls the service."""
    group = parser.add_argument_group("the service's endpoint")
    group.add_argument(
        "--server",
        metavar="ADDRESS",
        help="unix:/PATH or, with --ca, ADDRESS:PORT (default: $SLUICE_QUEUE_SERVER, then the"
        f" socket of this machine, unix:{SYSTEM_SOCKET})",
    )
    group.add_argument(
        "--ca", type=path, metavar="FILE", help="PEM of the server's CA ($SLUICE_QUEUE_CA)"
    )
    group.add_argument(
        "--certificate",
        type=path,
        metavar="FILE",
        help="client certificate, PEM ($SLUICE_QUEUE_CERTIFICATE)",
    )
    group.add_argument(
        "--key", type=path, metavar="FILE", help="client key, PEM ($SLUICE_QUEUE_KEY)"
    )
    group.add_argument(
        "--token-file",
        type=path,
        metavar="FILE",
        help="file with a Kubernetes token, instead of a certificate ($SLUICE_QUEUE_TOKEN_FILE)",
    )
    group.add_argument(
        "--server-name",
        metavar="NAME",
        help="name in the server's certificate, if not the address ($SLUICE_QUEUE_SERVER_NAME)",
    )


IN_A_POD = (
    "; the controller has no socket in modes kubernetes and beside: the queue is Kueue's objects"
    " (kubectl get clusterqueues,localqueues,workloads -A); nodes and GPUs are on its page"
    " (docs/page.md)"
)


def add_object(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help="workload, cq, lq, flavor, node, …")
    parser.add_argument("name", metavar="NAME", help="or NAMESPACE/NAME")
    add_namespace(parser)


def add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NS", help="namespace (default: default)")


def object_of(options: argparse.Namespace) -> tuple[str, str, str]:
    """The object named on the command line: (kind, namespace, name). Raises Failed."""
    namespace, slash, name = str(options.name).rpartition("/")
    if slash and options.namespace and namespace != options.namespace:
        raise Failed(EXIT_USAGE, f"{options.name} is not in namespace {options.namespace}")
    if not name or (slash and not namespace):
        raise Failed(EXIT_USAGE, f"{options.name!r} is not NAME or NAMESPACE/NAME")
    return kind_of(options.kind), namespace or options.namespace or "default", name


def kind_of(word: str) -> str:
    kind = _BY_WORD.get(word.lower())
    if kind is None:
        known = ", ".join(sorted(words[0] for words in _KINDS.values()))
        raise Failed(EXIT_USAGE, f"unknown kind {word!r}; known: {known}")
    return kind


def default_address() -> str:
    """The socket of the machine's controller where it exists, else of this user's own."""
    own = user_socket(os.environ)
    there = SYSTEM_SOCKET.exists() or not own.exists() or os.geteuid() == 0
    return f"unix:{SYSTEM_SOCKET if there else own}"


@contextlib.contextmanager
def connect(options: argparse.Namespace) -> Iterator[Client]:
    """A client of the service. Raises Failed for every error of a call."""
    environment = os.environ
    named = options.server or environment.get("SLUICE_QUEUE_SERVER")
    address = named or default_address()
    endpoint = Endpoint(
        address=address,
        ca=options.ca or environment.get("SLUICE_QUEUE_CA", ""),
        certificate=options.certificate or environment.get("SLUICE_QUEUE_CERTIFICATE", ""),
        key=options.key or environment.get("SLUICE_QUEUE_KEY", ""),
        server_name=options.server_name or environment.get("SLUICE_QUEUE_SERVER_NAME", ""),
        token_file=options.token_file or environment.get("SLUICE_QUEUE_TOKEN_FILE", ""),
    )
    try:
        wire = Wire(find_descriptors())
    except (OSError, ValueError) as error:
        raise Failed(EXIT_UNREACHABLE, str(error)) from None
    client = None
    try:
        client = Client(endpoint, wire)
        yield client
    except EndpointUnusable as error:
        raise Failed(EXIT_USAGE, str(error)) from None
    except Unreachable as error:
        hint = "; is `sluice-queue serve` running there?"
        if not named and "KUBERNETES_SERVICE_HOST" in environment:  # in a pod
            hint = IN_A_POD
        raise Failed(EXIT_UNREACHABLE, f"{error}{hint}") from None
    except Refused as refused:
        usage = refused.code in ("INVALID_ARGUMENT", "UNIMPLEMENTED")
        raise Failed(EXIT_USAGE if usage else EXIT_NO, str(refused)) from None
    except UnicodeEncodeError as error:
        raise Failed(EXIT_USAGE, f"{error.object!r} is not UTF-8") from None
    except ValueError as error:
        raise Failed(EXIT_UNREACHABLE, str(error)) from None
    finally:
        if client is not None:
            client.close()


# -- manifests ------------------------------------------------------------------------------------


def read_manifests(paths: Iterable[str]) -> list[Source]:
    """Every object of files, folders or stdin. Raises Failed with every file and object that
    cannot be read."""
    # Imported here: verbs without manifests would spend a third of their time on these modules.
    from queuecontroller.kueueapi.manifests.documents import misread_of
    from queuecontroller.kueueapi.manifests.sources import sources_of

    try:
        texts = read_texts(paths)
    except Unreadable as error:
        raise Failed(EXIT_USAGE, str(error)) from None
    found, wrong = sources_of(texts)
    if wrong:
        misread = [misread_of(source, problem) for source, problem in wrong]
        raise Failed(EXIT_USAGE, "\n".join(map(str, misread)))
    if not found:
        raise Failed(EXIT_USAGE, f"no objects in {', '.join(paths)}")
    return found


def placed(text: str, sources: Sequence[Source]) -> str:
    """The service's text with `object N: KIND.FIELD: …` replaced by `FILE:LINE: KIND.FIELD: …`."""
    return "\n".join(_placed(line, sources) for line in text.splitlines())


def _placed(line: str, sources: Sequence[Source]) -> str:
    found = re.match(r"object (\d+): (?:[A-Z]\w*\.)?([^:]*)", line)
    if found is None or not 1 <= int(found[1]) <= len(sources):
        return line
    source = sources[int(found[1]) - 1]
    return f"{source.file}:{source.line(found[2])}: {line[found.end(1) + 2 :]}"


# -- output ---------------------------------------------------------------------------------------


def add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=["json", "yaml", *more],
        help="print this instead of text" if not more else f"default: {more[0]}",
    )


def print_object(value: Any, form: str) -> None:
    if form == "json":
        print(json.dumps(value, indent=2))
    else:
        print(yaml.safe_dump(value, sort_keys=False, default_flow_style=False), end="")
