"""What reaches a terminal, a pipe and a log."""

from __future__ import annotations

import io
import json
import logging

import pytest
from pretend import quiet_logs

from foxqueue import logs
from foxqueue.cli import output
from foxqueue.errors import InvalidInput


def test_nothing_in_a_text_can_move_the_cursor() -> None:
    assert output.safe("a\x1b[2J\n\x9b\x00\x7fb\tc\r") == "a\\x1b[2J\\n\\x9b\\x00\\x7fb\\tc\\r"
    assert output.safe("right‮left") == "right\\u202eleft"
    assert output.safe("\udcff") == "\\xff"
    assert output.safe(f"{'/no' + chr(0xDCFF)!r} is shown") == "'/no\\xff' is shown"
    assert output.safe("größe 🙂 日本") == "größe 🙂 日本"


def test_the_last_lines_are_what_a_terminal_would_have_left() -> None:
    log = b"one\r\n10%\r50%\r100%\n\x1b[31mred\x1b[0m \x1b]0;title\x07tab\there\n\xff\n\x1b[2J"
    assert output.last_lines(log, 20) == ["one", "100%", "red tab    here", "�", ""]
    assert output.last_lines(b"\n".join(b"%d" % n for n in range(100)) + b"\n", 3) == ["97", "98", "99"]
    assert output.last_lines(b"", 20) == []
    assert output.last_lines(b"10%\r20%\r", 20) == ["20%"]


def test_a_table_in_a_pipe_is_aligned_and_cut_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["JOB", "NAME", "WHY"], [[1, "日本", None], [23, "x" * 100, "y\nz"]], right=("JOB",))
    assert capsys.readouterr().out.splitlines() == [
        "JOB  " + "NAME".ljust(100) + "  WHY",
        "  1  " + "日本".ljust(98) + "  -",
        " 23  " + "x" * 100 + "  y\\nz",
    ]


def test_a_table_on_a_narrow_terminal_gives_way_in_its_long_texts() -> None:
    headers = ["JOB", "NAME", "STATE", "WHY"]
    rows = [["12", "n" * 40, "succeeded", "w" * 80]]
    widths = output._fitted(headers, rows, 60)
    assert sum(widths) + 2 * 3 == 60
    assert (widths[0], widths[2]) == (3, 9)
    assert output._fitted(headers, rows, 500) == [3, 40, 9, 80]
    assert min(output._fitted(headers, rows, 1)) == 3


@pytest.mark.parametrize("width", [20, 30, 40, 80])
def test_a_table_on_a_very_narrow_terminal_keeps_the_number(width: int) -> None:
    headers = ["JOB", "NAME", "STATE", "PRIO", "USER", "DEVICE", "TIME", "WHY"]
    rows = [["123456", "n" * 40, "succeeded", "5", "ann", "SIM-12345678", "1h02m", "w" * 80]]
    kept, cells = output._without_some(headers, rows, width)
    widths = output._fitted(kept, cells, width)
    assert (kept[0], widths[0]) == ("JOB", 6)
    assert "STATE" in kept
    assert sum(widths) + 2 * (len(widths) - 1) <= width
    assert [len(row) for row in cells] == [len(kept)]
    assert (len(kept) == len(headers)) == (width == 80)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ("warning", "text")),
        ({"FOXQUEUE_LOG": "DEBUG"}, ("debug", "text")),
        ({"FOXQUEUE_LOG": "info,json"}, ("info", "json")),
        ({"FOXQUEUE_LOG": ",json"}, ("warning", "json")),
        ({"FOXQUEUE_LOG_FORMAT": "json"}, ("warning", "json")),
        ({"FOXQUEUE_LOG": "error,text", "FOXQUEUE_LOG_FORMAT": "json"}, ("error", "text")),
    ],
)
def test_the_log_is_set_up_from_the_environment(environ: dict[str, str], found: tuple[str, str]) -> None:
    assert logs.read(environ) == found


@pytest.mark.parametrize(
    "environ", [{"FOXQUEUE_LOG": "loud"}, {"FOXQUEUE_LOG": "info,xml"}, {"FOXQUEUE_LOG_FORMAT": "x"}]
)
def test_other_words_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"debug, info|text or json"):
        logs.read(environ)


def test_a_json_log_is_an_object_a_line() -> None:
    stream = io.StringIO()
    with quiet_logs():
        logs.configure({"FOXQUEUE_LOG": "info,json"}, stream=stream)
        logging.getLogger("foxqueue.test").info("one %s\nline", "text")
        logging.getLogger("foxqueue.test").debug("not this")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["logger"], line["message"]) for line in lines] == [
        ("info", "foxqueue.test", "one text\nline")
    ]
    assert lines[0]["time"].endswith("Z")
