"""Options in scripts, and the copies of scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foxqueue.errors import InvalidInput
from foxqueue.foxlines import MAX_BYTES, kept, script


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(content: str | bytes, mode: int = 0o755, name: str = "train.sh") -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    Path(name).chmod(mode)
    return name


def notes(content: str) -> list[str]:
    """The lines that look as if they counted."""
    found = script(write(content))
    return [place.rpartition(" ")[2] for place in found.unread] if found else []


def lines(content: str | bytes) -> list[tuple[int, list[str]]]:
    """The numbers and words of the lines that count."""
    found = script(write(content))
    return [(int(line.place.rpartition(" ")[2]), line.words) for line in found.lines] if found else []


HEAD = "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (HEAD + "#FOX --gpus 0\n# a comment\n\n#FOX -n 'two words' --hold\necho\n#FOX -n late\n",
         [(2, ["--gpus", "0"]), (5, ["-n", "two words", "--hold"])]),
        (HEAD + "#FOX\t--hold\r\n  # indented\n#FOX", [(2, ["--hold"]), (4, [])]),
        (HEAD + "#FOXES\n# FOX --hold\n #FOX --hold\n#fox --hold\n", []),
        (HEAD + "echo\n#FOX --hold\n", []),
        (HEAD, []),
        ("", []),
        (b"\x7fELF\n#FOX --hold\n", []),
        (b"#FOX --hold\n#\0\n", []),
        (HEAD.encode() + b"#FOX -n \xff\n", [(2, ["-n", "\udcff"])]),
        (HEAD + "# x\n" * (MAX_BYTES // 4) + "#FOX --hold\n", []),
    ],
)  # fmt: skip
def test_options_stand_in_the_first_comments(content: str | bytes, expected: object) -> None:
    assert lines(content) == expected


def test_what_cannot_be_read_is_an_ordinary_command() -> None:
    os.mkfifo("pipe")
    Path("directory").mkdir()
    for word in ("absent", "pipe", "directory", "a\0b", "", "x" * 5000, "absent/x"):
        assert script(word) is None


def test_quotes_that_do_not_end_are_told_with_the_line() -> None:
    with pytest.raises(InvalidInput, match=r"train.sh line 3: .*No closing quotation"):
        script(write(HEAD + "#\n#FOX -n 'x\n"))


def test_a_script_is_run_as_it_can_be() -> None:
    text = "#!/usr/bin/env  -S python3 -u \n#FOX --gpus 0\n"
    runs = script(write(text))
    assert runs is not None
    assert runs.command(["a"]) == ["./train.sh", "a"]
    assert runs.command([], elsewhere=True) == [str(Path.cwd() / "train.sh")]
    lies = script(write(text, 0o644))
    assert lies is not None
    assert lies.command(["a"]) == ["/usr/bin/env", "-S python3 -u", "./train.sh", "a"]
    assert lies.command(["a"], copied=True) == ["./train.sh", "a"]
    path = str(Path.cwd() / write(text, name="here.sh"))
    found = script(path)
    assert found is not None
    assert found.command([]) == [path]


def test_lines_that_look_like_options_and_are_none_are_told() -> None:
    text = HEAD + "#fox --hold\n# FOX -n x\n #FOX --hold\n#FOX: --hold\n# a fox\n# fox - red\n#FOX --hold\necho\n"
    assert notes(text) == ["2", "3", "4", "5"]
    assert notes(HEAD + "#FOX --hold\n") == []


def test_a_file_of_here_that_the_word_alone_does_not_start_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    found = script(write(HEAD, 0o644))
    assert found is not None
    assert found.command(["a"]) == ["/bin/sh", "./train.sh", "a"]
    assert found.command([], elsewhere=True) == ["/bin/sh", str(Path.cwd() / "train.sh")]
    found = script(write(HEAD))  # not on PATH, where the word would be looked for
    assert found is not None
    assert found.command([]) == ["./train.sh"]
    assert script("./train.sh") is None
    found = script("./" + write(HEAD, 0o644))
    assert found is not None
    assert found.command([]) == ["/bin/sh", "./train.sh"]
    assert found.command([], elsewhere=True) == ["./train.sh"]  # which may be another one there
    found = script(write("echo\n", 0o644))
    assert found is not None
    with pytest.raises(InvalidInput, match=r"foxqueue submit -- sh train\.sh"):
        found.command([])
    write(HEAD)
    monkeypatch.setenv("PATH", str(Path.cwd()))
    assert script("train.sh") is None  # the word starts it


@pytest.mark.parametrize("content", ["#FOX --hold\n", "# x\n#!/bin/sh\n#FOX --hold\n", "#!\n#FOX --hold\n"])
def test_a_script_that_does_not_say_what_runs_it_is_refused(content: str) -> None:
    found = script(write(content))
    assert found is not None
    with pytest.raises(InvalidInput, match="first line like #!/bin/sh"):
        found.command([])


def test_a_copy_is_the_files_bytes() -> None:
    content = b"#!/bin/sh\n\xff" + b"x" * (MAX_BYTES - 11)
    assert kept(write(content)) == content


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("absent", "cannot be read here .No such file or directory.: give the path of a script"),
        (".", "it is no file"),
        ("a\0b", "null"),
        ("large", "over 1 MiB"),
        ("bare", "#!/bin/sh"),
    ],
)
def test_what_cannot_be_kept_is_refused(word: str, text: str) -> None:
    write(b"#!" + b"x" * MAX_BYTES, name="large")
    write("echo\n", name="bare")
    with pytest.raises(InvalidInput, match=text):
        kept(word)
