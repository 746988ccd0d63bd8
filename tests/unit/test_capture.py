"""What of the submitter's environment goes along with a job."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from foxqueue.capture import capture, check_env, current_umask, explicit, is_secret, locale_is_pythons
from foxqueue.errors import InvalidInput

SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "HF_TOKEN",
    "GITHUBTOKEN",
    "github_token",
    "WANDB_API_KEY",
    "apiKey",
    "OPENAI_APIKEY",
    "PGPASSWORD",
    "DB_PASSWD",
    "DB_PASS",
    "MYSQL_PWD",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "SSH_PRIVATE_KEY",
    "GITHUB_PAT",
    "SESSION_COOKIE",
    "HTTP_AUTH",
    "REDISCLI_AUTH",
    "NPM_CONFIG__AUTH",
    "OAUTH2_X",
    "AUTHORIZATION",
    "MY_KEY",
    "KEY",
    "SIGNING_KEYS",
    "GPG_PASSPHRASE",
    "client-secret",
)
HARMLESS = (
    "PATH",
    "PYTHONPATH",
    "XAUTHORITY",
    "SSH_AUTH_SOCK",
    "GIT_AUTHOR_NAME",
    "TOKENIZERS_PARALLELISM",
    "KEYBOARD",
    "MONKEY",
    "PWD",
    "CONDA_PREFIX",
    "VIRTUAL_ENV",
    "COMPASS",
    "PATTERN",
    "KEYTIMEOUT",
    "BYPASS_CACHE",
)


@pytest.mark.parametrize("name", SECRETS)
def test_names_that_look_like_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_names_that_only_resemble_them(name: str) -> None:
    assert not is_secret(name)


def test_the_environment_goes_along_without_devices_secrets_and_our_own() -> None:
    environ = {
        "PATH": "/venv/bin:/bin",
        "VIRTUAL_ENV": "/venv",
        "PWD": "/elsewhere",
        "OLDPWD": "/old",
        "SHLVL": "3",
        "_": "/bin/fox",
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_HOME": "/usr/local/cuda",
        "FOXQUEUE_URL": "redis://:secret@host",
        "HF_TOKEN": "hf_x",
        "ODD": "b\udcff",
    }
    found = capture(environ)
    assert found.env == {"PATH": "/venv/bin:/bin", "VIRTUAL_ENV": "/venv", "ODD": "b\udcff"}
    assert found.left_out == ("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "HF_TOKEN")


def test_names_and_pairs_are_read_the_last_one_counts() -> None:
    environ = {"HF_TOKEN": "hf_x"}
    assert explicit(["HF_TOKEN", "A=1", "B=x=y", "C=", "A=2"], environ) == {
        "HF_TOKEN": "hf_x",
        "A": "2",
        "B": "x=y",
        "C": "",
    }


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("NOT_SET", "not set here"),
        ("=x", "malformed"),
        ("", "malformed"),
        ("A=\0", "malformed"),
        ("CUDA_VISIBLE_DEVICES=0", "--visible"),
        ("CUDA_VISIBLE_DEVICES", "--visible"),
        ("CUDA_DEVICE_ORDER=FASTEST_FIRST", "--visible"),
        ("FOXQUEUE_JOB_ID=1", "another name"),
    ],
)
def test_what_cannot_be_passed_is_refused_with_the_cure(pair: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        explicit([pair], {})


def test_the_umask_is_read_without_changing_it() -> None:
    code = "import os; os.umask(0o027); from foxqueue.capture import current_umask as c; print(c(), os.umask(0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == [str(0o027), str(0o027)]
    assert 0 <= current_umask() <= 0o777


def test_a_umask_that_changes_all_the_time_is_never_disturbed() -> None:
    """Threads set it, read it back and make files, while others ask for it."""
    code = """if True:
        import os, sys, threading
        from foxqueue.capture import current_umask
        sys.setswitchinterval(1e-6)
        os.umask(0o022)
        done, wrong = threading.Event(), []

        def ask():
            while not done.is_set():
                if current_umask() not in (0o022, 0o027):
                    wrong.append("answer")

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for one in askers:
            one.start()
        last = 0o022
        for turn in range(200_000):
            mask = (0o022, 0o027)[turn % 2]
            if os.umask(mask) != last:
                wrong.append("changed")
            if turn % 7 == 0 and current_umask() != mask:
                wrong.append("old")
            last = mask
        done.set()
        for one in askers:
            one.join()
        print(wrong[:9])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("first", "added"),
    [
        ({"PATH": "/bin"}, True),
        ({"PATH": "/bin", "LANG": "C"}, True),
        ({"PATH": "/bin", "LC_CTYPE": "C.UTF-8"}, False),
        ({"PATH": "/bin", "LANG": "de_DE.UTF-8"}, False),
        ({"PATH": "/bin", "LC_ALL": "C"}, False),
        ({"PATH": "/bin", "PYTHONCOERCECLOCALE": "0"}, False),
        ({}, False),
        ({"python -m title": ""}, False),
    ],
)
def test_a_locale_that_python_set_is_told_from_the_submitters(first: dict[str, str], added: bool) -> None:
    assert locale_is_pythons({"PATH": "/bin", "LC_CTYPE": "C.UTF-8"}, first) is added


@pytest.mark.parametrize(("given", "goes_along"), [({}, False), ({"LC_CTYPE": "C.UTF-8"}, True)])
def test_a_locale_that_python_set_does_not_go_along(given: dict[str, str], goes_along: bool) -> None:
    code = "import os; from foxqueue.capture import capture as c; print('LC_CTYPE' in c(os.environ).env)"
    environ = {"PATH": os.environ["PATH"], **given}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=30)
    assert done.stdout == f"{goes_along}\n"


@pytest.mark.parametrize(("text", "fits"), [("x" * 131_069, True), ("x" * 131_070, False), ("ü" * 65_535, False)])
def test_a_variable_that_no_program_can_be_started_with_is_refused(text: str, fits: bool) -> None:
    if fits:
        assert capture({"A": text}).env == {"A": text}
        check_env({"A": text})
        return
    for refused in (lambda: capture({"A": text}), lambda: check_env({"A": text})):
        with pytest.raises(InvalidInput, match=r"variable 'A' has 131,07[0-9] bytes, and Linux starts no program"):
            refused()


def test_bytes_that_are_no_text_count_once() -> None:
    check_env({"A": "\udcff" * 131_069})
