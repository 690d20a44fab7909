"""Ports for tests: none is given twice, to this process or to another."""

from __future__ import annotations

import socket

import pytest

from tests.kit import workplace
from tests.kit.workplace import HOST, free_port, free_ports


def test_a_port_that_another_process_was_given_or_listens_on_is_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserved, listened, free = free_ports(3)
    with socket.socket() as listening:
        listening.bind((HOST, listened))
        workplace._RESERVATIONS[-2].close()  # only its socket keeps it from being given
        workplace._RESERVATIONS[-1].close()
        monkeypatch.setattr(workplace, "PORTS", (reserved, listened, free))
        assert free_port() == free
    monkeypatch.setattr(workplace, "PORTS", (reserved, free, listened))
    assert free_port() == listened


def test_the_oldest_reservation_ends_when_there_are_too_many() -> None:
    most = workplace._RESERVATIONS.maxlen
    assert most is not None
    first = free_port()
    name = f"\0sluice-test-port-{first}"
    with socket.socket(socket.AF_UNIX) as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(name)
        free_ports(most)
        other.bind(name)
    assert len(workplace._RESERVATIONS) == most
