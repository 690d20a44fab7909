"""The slices of a node's pool under concurrent writers: what the scheduler may take for a whole generation is what one of them
wanted, never a mixture, and in the end it is what is wanted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.core.dra.pool import Body, Delete, Put, Seen, bodies, plan, read_slice

NODE = "node-1"


class Server:
    """As the API server does it: every write has a new version, and one that was decided upon an older one is refused."""

    def __init__(self) -> None:
        self.slices: dict[str, dict] = {}  # type: ignore[type-arg]
        self.version = 0

    def seen(self) -> dict[str, Seen]:
        return {name: read_slice(one) for name, one in self.slices.items()}

    def write(self, write: Put | Delete) -> str | None:
        """The new version; None: refused."""
        known = self.slices.get(write.name)
        self.version += 1
        if isinstance(write, Delete):
            if known is None or known["metadata"]["uid"] != write.uid:
                return None
            del self.slices[write.name]
            return ""
        if (known["metadata"]["resourceVersion"] if known else "") != write.version:
            return None
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}"
        head = {"name": write.name, "resourceVersion": str(self.version), "uid": uid}
        self.slices[write.name] = {**write.document, "metadata": head}
        return str(self.version)

    def whole(self) -> tuple[int, tuple[Body, ...]] | None:
        """The scheduler's view: the highest generation, if all of it is there."""
        seen = list(self.seen().values())
        newest = max((one.generation for one in seen), default=0)
        of_it = sorted((one for one in seen if one.generation == newest), key=lambda one: one.name)
        if not of_it or len(of_it) != of_it[0].count:
            return None
        return newest, tuple(one.body for one in of_it)


def wanted(number: int, devices: int) -> tuple[Body, ...]:
    return bodies([{"name": f"gpu-{n:03}", "of": number} for n in range(devices)])


class Writer:
    def __init__(self) -> None:
        self.sent: dict[str, tuple[str, str]] = {}
        self.plan: list[Put | Delete] = []
        self.wants: tuple[Body, ...] = ()

    def decide(self, server: Server) -> None:
        self.plan = plan(NODE, "uid", self.wants, server.seen(), self.sent)

    def step(self, server: Server) -> None:
        """One write of what was decided, however long ago."""
        if self.plan:
            write = self.plan.pop(0)
            version = server.write(write)
            if version is None:
                self.plan = []
            elif isinstance(write, Put):
                self.sent[write.name] = (write.digest, version)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 1), st.integers(0, 200)),
        st.tuples(st.just("decide"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("step"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("wipe"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_generation_is_a_mixture_and_the_last_word_stands(
    steps: list[tuple[str, int, int]],
) -> None:
    server, writers = Server(), [Writer(), Writer()]
    meanings: list[tuple[Body, ...]] = []
    shown: dict[tuple[int, int], tuple[Body, ...]] = {}
    wipes = 0

    def look() -> None:
        found = server.whole()
        if found is None:
            return
        generation, body = found
        assert any(repr(body) == repr(one) for one in meanings), (
            "what was never published is not shown"
        )
        before = shown.setdefault((wipes, generation), body)
        assert repr(before) == repr(body), "a generation has one content"

    for number, (what, who, amount) in enumerate(steps):
        writer = writers[who % 2]
        if what == "want":
            writer.wants = wanted(number, amount)
            meanings.append(writer.wants)
        elif what == "decide":
            writer.decide(server)
        elif what == "step":
            writer.step(server)
        elif what == "restart":
            writer.sent, writer.plan = {}, []
        elif server.slices:  # the kubelet removes what its driver left, or a user removes one
            wipes += 1
            for name in sorted(server.slices)[: who or None]:
                del server.slices[name]
        look()
    for writer in writers[:1]:  # the other one is gone for good
        for _ in range(2):
            writer.decide(server)
            while writer.plan:
                writer.step(server)
                look()
        writer.decide(server)
        assert not writer.plan, "it comes to rest"
        found = server.whole()
        assert (found[1] if found else ()) == writer.wants
        generations = {one.generation for one in server.seen().values()}
        assert len(generations) <= 1
