"""Ranks that cannot meet say why in one sentence."""

import socket

import pytest

from genwright.errors import UserError
from genwright.parallel import rendezvous
from genwright.parallel.rendezvous import LOCALHOST, Place, arrive, listen, reach_store, serve_store

ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}


def test_the_environment_of_torchrun_says_where_a_rank_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENVIRONMENT, "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    assert Place.from_environment() is None
    for name, value in {**ENVIRONMENT, "MASTER_PORT": "1234"}.items():
        monkeypatch.setenv(name, value)
    assert Place.from_environment() == Place(1, 4, 1, 2, "node0", 1234)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(UserError, match="RANK must be between 0 and WORLD_SIZE - 1, not 4 of 4"):
        Place.from_environment()
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(UserError, match=r"RANK, .* must be numbers"):
        Place.from_environment()


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as other:
        other.bind((LOCALHOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} of 127.0.0.1, where the ranks meet, is in use"):
            listen(LOCALHOST, port)


def test_the_store_is_open_to_this_machine_alone() -> None:
    listener = listen(LOCALHOST, 0)
    assert listener.getsockname()[0] == LOCALHOST
    port = listener.getsockname()[1]
    store = serve_store(listener)
    store.set("key", "value")
    assert reach_store(Place(1, 2, port=port)).get("key") == b"value"


def test_ranks_that_do_not_arrive_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "ARRIVAL", 0.2)
    store = serve_store(listen(LOCALHOST, 0))
    store.set("arrived/2", "")
    with pytest.raises(UserError, match=r"Rank 1, 3 of 4 did not start within 0\.2 s"):
        arrive(store, Place(0, 4), lambda: None)


def test_a_rank_0_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "ARRIVAL", 0.5)
    listener = listen(LOCALHOST, 0)
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(UserError, match=f"Rank 1 could not reach rank 0 at 127.0.0.1:{port} within"):
        reach_store(Place(1, 2, port=port))
