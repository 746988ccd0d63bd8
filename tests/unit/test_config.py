"""Where the configuration comes from, and that no password is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foxqueue.config import MAX_SOCKET_PATH, load_config, machine_id, server_socket
from foxqueue.connection import Connection
from foxqueue.errors import InvalidInput
from foxqueue.urls import check_url, hide_password

SECRET = "s3cr"


def _environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), **more}


def test_files_are_weaker_than_environment_and_that_than_flags(tmp_path: Path) -> None:
    user = tmp_path / "config" / "foxqueue"
    user.mkdir(parents=True)
    (user / "foxqueue.toml").write_text('namespace = "user"\nurl = "redis://user:1/0"\nhome = "/h"\n')
    (tmp_path / "foxqueue.toml").write_text('namespace = "here"\n')
    environ = _environ(tmp_path)

    found = load_config(environ=environ, cwd=tmp_path)
    assert (found.namespace, found.url, found.home) == ("here", "redis://user:1/0", Path("/h"))

    environ["FOXQUEUE_NAMESPACE"] = "environment"
    assert load_config(environ=environ, cwd=tmp_path).namespace == "environment"

    found = load_config(namespace="flag", environ=environ, cwd=tmp_path)
    assert found.namespace == "flag"
    assert found.sources["namespace"] == "--namespace"
    assert found.sources["url"] == str(user / "foxqueue.toml")


def test_without_anything_it_is_the_xdg_state_directory_and_our_own_server(tmp_path: Path) -> None:
    found = load_config(environ=_environ(tmp_path), cwd=tmp_path)
    assert found.home == tmp_path / ".local" / "state" / "foxqueue"
    assert (found.url, found.namespace, found.password) == (None, "default", None)
    assert found.machine_dir == found.home / machine_id()
    assert load_config(environ=_environ(tmp_path, XDG_STATE_HOME="/s"), cwd=tmp_path).home == Path("/s/foxqueue")


def test_an_empty_variable_is_no_value(tmp_path: Path) -> None:
    assert load_config(environ=_environ(tmp_path, FOXQUEUE_URL=""), cwd=tmp_path).url is None


@pytest.mark.parametrize("text", ['colour = "red"', "namespace = 3", "namespace = ", "\x00"])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "foxqueue.toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"foxqueue\.toml"):
        load_config(environ=_environ(tmp_path), cwd=tmp_path)


@pytest.mark.parametrize("name", ["", "a b", "ä", "a" * 65, "{x}", "a:b"])
def test_other_namespaces_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="namespace"):
        load_config(namespace=name, environ=_environ(tmp_path), cwd=tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://host",
        "redis://",
        "unix://",
        "redis://host:port",
        f"redis://:{SECRET}/t@host:6379/0",
        f"redis://:{SECRET}#t@host:6379/0",
        f"redis://user:{SECRET}@host:notaport/0",
        f"http://user:{SECRET}@host",
        f"redis://:{SECRET}?t@host:6379/0",
        "unix:///x?db=abc",
        "redis://h:1?socket_timeout=abc",
        "rediss://h:1?ssl_cert_reqs=foo",
        "rediss://h:1?ssl_ca_certs=/no/such/file",
        "redis://h:1?ssl_cert_reqs=none",
        "redis://h:1?protocol=4",
        "redis://h:1?db=1&db=2",
        f"redis://h:1?pass={SECRET}",
        f"redis://h:1?password={SECRET}&db=x",
        "redis://\udcff:1",
        "redis://%ff:1",
        "redis://" + "x" * 64,
        "redis://h:6379/abc",
        "redis://h/-1",
        "redis://h/0/1",
        "redis://h:0",
        "redis://h:1#0",
        "unix://relative/x",
        f"unix://user:{SECRET}@relative/x",
        "unix:///" + "x" * 120,
        "unix:///x%00",
    ],
)
def test_a_malformed_url_names_its_source_and_never_its_password(url: str) -> None:
    with pytest.raises(InvalidInput, match="FOXQUEUE_URL") as caught:
        check_url(url, "FOXQUEUE_URL")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host:6379/0",
        f"redis://user:{SECRET}%2F%40%21%2B@host/0",
        f"rediss://user:{SECRET}@[::1]:6379",
        f"unix://user:{SECRET}@/run/redis.sock?db=1",
        f"redis://127.0.0.1:1?password={SECRET}",
        f"redis://127.0.0.1:1/2?db=3&username={SECRET}",
        f"unix:///run/redis.sock?pass%77ord={SECRET}&db=1",
    ],
)
def test_passwords_are_hidden(url: str) -> None:
    check_url(url, "--url")
    shown = hide_password(url)
    assert SECRET not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "url", ["redis://h:1/0?x;password=" + SECRET, "redis://h:1?db=0;password=" + SECRET, f"redis://h#{SECRET}"]
)
def test_what_may_be_part_of_a_password_is_hidden_in_refused_urls_too(url: str) -> None:
    assert SECRET not in hide_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h/",
        "redis://h:1/0?protocol=3&client_name=me",
        "rediss://h?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_ca_certs=/etc/passwd",
        "unix:///run/a%20b.sock",
    ],
)
def test_urls_that_are_understood_are_shown_as_they_are(url: str) -> None:
    check_url(url, "--url")
    if "/etc" not in url:
        assert hide_password(url) == url
    Connection(url).close()


def test_a_password_may_come_apart_from_the_url(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p/@!+ w\n")
    environ = _environ(tmp_path, FOXQUEUE_PASSWORD_FILE=str(file))
    assert load_config(environ=environ, cwd=tmp_path).password == "p/@!+ w"
    environ["FOXQUEUE_PASSWORD"] = "stronger"
    assert load_config(environ=environ, cwd=tmp_path).password == "stronger"


def test_a_password_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"FOXQUEUE_PASSWORD\) is not UTF-8"):
        load_config(environ=_environ(tmp_path, FOXQUEUE_PASSWORD="\udcff"), cwd=tmp_path)


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "foxqueue.toml"
    os.mkfifo(file)
    with pytest.raises(InvalidInput, match="no regular file"):
        load_config(environ=_environ(tmp_path), cwd=tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(InvalidInput, match=r"foxqueue\.toml"):
        load_config(environ=_environ(tmp_path), cwd=tmp_path)
    file.rmdir()
    file.symlink_to(os.devnull)
    assert load_config(environ=_environ(tmp_path), cwd=tmp_path).namespace == "default"


def test_a_current_directory_that_is_gone_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_config(environ=_environ(tmp_path)).namespace == "default"
    with pytest.raises(InvalidInput, match="FOXQUEUE_HOME"):
        load_config(environ=_environ(tmp_path, FOXQUEUE_HOME="relative"))


@pytest.mark.parametrize("name", ["FOXQUEUE_HOME", "FOXQUEUE_PASSWORD_FILE"])
def test_the_home_of_nobody_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name}.*no such user"):
        load_config(environ=_environ(tmp_path, **{name: "~no-such-user/x"}), cwd=tmp_path)


def test_a_missing_password_file_is_told_with_its_setting(tmp_path: Path) -> None:
    environ = _environ(tmp_path, FOXQUEUE_PASSWORD_FILE=str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="FOXQUEUE_PASSWORD_FILE"):
        load_config(environ=environ, cwd=tmp_path)


def test_a_socket_path_always_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    deep = load_config(home=tmp_path / ("d" * 120), environ=_environ(tmp_path), cwd=tmp_path)
    other = load_config(home=tmp_path / ("e" * 120), environ=_environ(tmp_path), cwd=tmp_path)
    assert len(str(server_socket(deep)).encode()) <= MAX_SOCKET_PATH
    assert server_socket(deep) == server_socket(deep) != server_socket(other)
