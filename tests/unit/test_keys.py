"""Keys: one namespace, one hash tag, each kind its own key."""

from __future__ import annotations

import re

import pytest
from queue_driver import lua_folder

from foxqueue.errors import InvalidInput
from foxqueue.keys import Keys

FIXED = [name for name, kind in vars(Keys).items() if isinstance(kind, property) and name != "prefix"]
PARTS = {
    "job": 7,
    "spec": 7,
    "result": 7,
    "value": 7,
    "log": 7,
    "blocked_by": 7,
    "dependents": 7,
    "history": 7,
    "group": "sweep-1",
    "members": "sweep-1",
    "awaited": "sweep-1",
    "env": "ab",
    "pending": "g1",
    "lease": "GPU-1",
    "idle_for": "g1",
}
PARTS |= {"idle_shapes": "w1", "wake": "w1", "requests": 29}
PARTS |= {"lease_waiting": "GPU-1", "turn": "GPU-1", "declared": "GPU-1", "waiter": "ab"}


def every_key(namespace: str) -> list[str]:
    keys = Keys(namespace)
    return [getattr(keys, name) for name in FIXED] + [getattr(keys, name)(part) for name, part in PARTS.items()]


def test_every_key_is_its_own_and_shares_the_hash_tag() -> None:
    found = every_key("team.a_b-1")
    assert len(found) == len(set(found)) > 25
    assert all(key.startswith("foxqueue:{team.a_b-1}:") for key in found)


def test_every_kind_of_key_is_tested_here() -> None:
    methods = {name for name, kind in vars(Keys).items() if callable(kind) and not name.startswith("_")}
    assert methods == set(PARTS)


def test_namespaces_share_no_key() -> None:
    assert not set(every_key("a")) & set(every_key("ab"))


@pytest.mark.parametrize("namespace", ["a", "A-Z_0.9", "x" * 64, "default"])
def test_usable_namespaces(namespace: str) -> None:
    assert Keys(namespace).prefix == f"foxqueue:{{{namespace}}}:"


@pytest.mark.parametrize("namespace", ["", "x" * 65, "a b", "a:b", "a{b}", "a}", "*", "ü", "a\n", "a/b"])
def test_other_namespaces_are_refused_with_what_is_allowed(namespace: str) -> None:
    with pytest.raises(InvalidInput, match="1 to 64 letters") as caught:
        Keys(namespace)
    assert caught.value.exit_code == 2


def test_scripts_build_the_same_keys() -> None:
    """What a Lua file puts together from the prefix is spelt as here."""
    known = {re.sub(r"(GPU-1|g1|w1|ab|sweep-1|7|29)$", "", key.removeprefix("foxqueue:{n}:")) for key in every_key("n")}
    built = set()
    for path in lua_folder().glob("*.lua"):
        built |= set(re.findall(r"prefix \.\. '([^']+)'", path.read_text()))
    assert built
    assert built <= known
