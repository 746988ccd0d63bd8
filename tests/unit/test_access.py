"""What `--bind` and a record of the server may say."""

from __future__ import annotations

import pytest

from foxqueue.access import Access, is_local, parse_bind, remote_url, server_settings
from foxqueue.errors import InvalidInput
from foxqueue.urls import check_url


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("box:6390", ("box", 6390)),
        ("box.example.org:1", ("box.example.org", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:6390", ("::1", 6390)),
        ("[fd00::1]:6390", ("fd00::1", 6390)),
    ],
)
def test_hosts_and_ports(text: str, found: tuple[str, int]) -> None:
    assert parse_bind(text) == found
    check_url(remote_url(text, "p" * 43), "test")


@pytest.mark.parametrize(
    "text",
    ["", ":", "box", "box:", ":6390", "6390", "::1:6390", "[::1]", "[::1]6390", "[box]:1", "*:1", "[fe80::1%eth0]:1"],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.1:6390"):
        parse_bind(text)


@pytest.mark.parametrize(
    "text",
    ["box:0", "box:65536", "box:-1", "box:6390 ", "box:٣", "a b:1", "box:1\n", "redis://box:1", "user@box:1", "bäx:1"],
)
def test_other_ports_and_letters_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.1:6390|give 1 to 65535"):
        parse_bind(text)


def test_all_addresses_are_told_by_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foxqueue.access.socket.gethostname", lambda: "box")
    assert remote_url("0.0.0.0:6390", "pw") == remote_url("[::]:6390", "pw") == "redis://:pw@box:6390/0"
    assert remote_url("[fd00::1]:6390", "pw") == "redis://:pw@[fd00::1]:6390/0"


def test_loopback_is_told_apart() -> None:
    assert is_local("127.0.0.1:1") and is_local("127.0.1.1:1") and is_local("[::1]:1")
    assert not is_local("10.0.0.1:1") and not is_local("0.0.0.0:1") and not is_local("no-such-host.invalid:1")


def test_settings_of_the_server() -> None:
    assert server_settings(Access(), [], None) == ""
    assert server_settings(Access(group="ml"), [], None) == "unixsocketperm 770\n"
    told = server_settings(Access("ml", "box:6390"), ["10.0.0.1", "fd00::1"], "pw")
    assert told == "unixsocketperm 770\nport 6390\nbind 10.0.0.1 fd00::1\nrequirepass pw\n"


@pytest.mark.parametrize("record", [{}, {"group": 3, "bind": None}, {"group": [], "bind": {}}])
def test_malformed_records_open_nothing(record: dict[str, object]) -> None:
    assert Access.recorded(record) == Access()


def test_records_come_back() -> None:
    for access in (Access(), Access("ml"), Access(None, "box:1"), Access("ml", "box:1")):
        assert Access.recorded(access.to_dict()) == access
    assert str(Access("ml", "box:1")) == "--group ml --bind box:1" and str(Access()) == "private"
