"""Parameters of a sweep: how they are read, which runs they make, and what stands in a run's command."""

from __future__ import annotations

import enum
import io
import json
import os
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foxqueue.errors import InvalidInput
from foxqueue.grid import Axis, Plan, Template, of_file, of_lines, of_option, of_params, of_rows


def plan(*options: str, argv: tuple[str, ...] = ("train", "{lr}"), name: str | None = None) -> Plan:
    return Plan(argv, [of_option(option) for option in options], name)


def commands(made: Plan) -> list[str]:
    return [" ".join(run.argv) for run in made.runs()]


# Templates


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{lr}", "0.1"),
        ("--lr={lr},{bs}", "--lr=0.1,32"),
        ("{lr}{lr}", "0.10.1"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{0.1}"),
        ("{{{{lr}}}}", "{{lr}}"),
        ("{{", "{"),
        ("{{other}}", "{other}"),
        ("a {{ b }} c", "a { b } c"),
        ("{}", "{}"),
        ("{0} {a b} {-} { lr } {a.b} {a:b}", "{0} {a b} {-} { lr } {a.b} {a:b}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": {"b": {lr}}}', '{"a": {"b": 0.1}}'),
        ('{"a":{"b":{}}}', '{"a":{"b":{}}}'),
        ("} }} {", "} }} {"),
        ("awk '{print $1}}'", "awk '{print $1}}'"),
        ("$lr %(lr)s", "$lr %(lr)s"),
        ("", ""),
    ],
)
def test_only_names_are_replaced(text: str, filled: str) -> None:
    assert Template(text, ["lr", "bs"]).fill({"lr": "0.1", "bs": "32"}) == filled


def test_a_value_is_not_read_again() -> None:
    assert Template("{a} {b}", "ab").fill({"a": "{b}{{", "b": "\\1 }}"}) == "{b}{{ \\1 }}"


@pytest.mark.parametrize("text", ["{wd}", "{lr}{wd}", "${HOME}".replace("HOME", "wd"), "x{wd}}}"])
def test_another_name_is_refused_with_the_names_and_the_escape(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"\{wd\} in .* there is lr, bs; write \{\{wd\}\} for the text \{wd\}"):
        Template(text, ["lr", "bs"])


@given(st.text(alphabet="{}ab"))
def test_text_without_names_and_double_braces_stays_what_it_is(text: str) -> None:
    lone = text.replace("{{", "{ ").replace("a", "1").replace("b", " ")
    assert Template(lone, ["lr"]).fill({"lr": "x"}) == lone


@given(st.text(alphabet="{}ab "))
def test_what_is_escaped_by_pairs_comes_back(text: str) -> None:
    balanced = f"{text.count('}') * '{'}{text}"
    escaped = balanced.replace("{", "{{").replace("}", "}}")
    assert Template(escaped, ["a"]).fill({"a": "x"}) == balanced


# Runs


def test_the_runs_are_the_product_and_the_last_parameter_changes_fastest() -> None:
    made = plan("lr=1e-3,1e-4", "bs=32,64", argv=("train", "--lr={lr}", "{bs}"), name="n-{bs}")
    assert (made.total, made.names) == (4, ("lr", "bs"))
    assert commands(made) == [
        "train --lr=1e-3 32",
        "train --lr=1e-3 64",
        "train --lr=1e-4 32",
        "train --lr=1e-4 64",
    ]
    assert [run.name for run in made.runs()] == ["n-32", "n-64"] * 2
    assert next(made.runs()).values == {"lr": "1e-3", "bs": "32"}


def test_rows_and_grids_combine(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("lr,bs\n1,2\n3,4\n")
    made = Plan(["{lr}", "{bs}", "{seed}"], [of_option("seed=a,b"), *of_file(str(path))])
    assert commands(made) == ["1 2 a", "3 4 a", "1 2 b", "3 4 b"]


def test_a_program_may_be_a_parameter_and_a_name_may_use_one() -> None:
    assert commands(plan("prog=a,b", argv=("{prog}",))) == ["a", "b"]
    assert [run.name for run in plan("seed=1,2", argv=("true",), name="s{seed}").runs()] == ["s1", "s2"]


def test_a_vast_grid_is_counted_and_begun_without_being_made() -> None:
    axes = [Axis((name,), [(str(at),) for at in range(100)], name) for name in "abcdefghijkl"]
    made = Plan(["{" + "}{".join("abcdefghijkl") + "}"], axes)
    assert made.total == 100**12
    runs = made.runs()
    assert [next(runs).argv for _ in range(2)] == [["000000000000"], ["000000000001"]]


@pytest.mark.parametrize(
    ("options", "argv", "text"),
    [
        ((), ("true",), "sweep of zero runs: give parameters"),
        (("lr=",), ("{lr}",), r"--param lr has no values, which is a sweep of zero runs"),
        (("lr=1", "lr=2"), ("{lr}",), "'lr' is given twice, by --param lr and by --param lr"),
        (("lr=1", "bs=2"), ("{lr}",), r"nothing uses the parameter 'bs'.*write \{bs\}"),
        (("lr=1",), ("{{lr}}",), "nothing uses the parameter 'lr'"),
        (("lr=1",), ("{lr}", "{bs}"), r"\{bs\} in '\{bs\}' is not a parameter.*there is lr"),
        (("l-r=1",), ("{l-r}",), "'l-r' cannot be the name of a parameter: give letters"),
        (("1=1",), ("{1}",), "'1' cannot be the name"),
        ((" lr=1",), ("{lr}",), "' lr' cannot be the name"),
    ],
)
def test_what_makes_no_sweep_is_refused(options: tuple[str, ...], argv: tuple[str, ...], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        plan(*options, argv=argv)


def test_a_name_template_names_a_parameter_too() -> None:
    with pytest.raises(InvalidInput, match=r"\{x\} in 'run-\{x\}' is not a parameter"):
        plan("lr=1", name="run-{x}")


# --param


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x=1", ["1"]),
        ("x=1e-3,1E-4,a b", ["1e-3", "1E-4", "a b"]),
        ("x=a=b,c", ["a=b", "c"]),
        ('x="a,b",c', ["a,b", "c"]),
        ('x="say ""hi"""', ['say "hi"']),
        ('x="one\ntwo",3', ["one\ntwo", "3"]),
        ('x=a"b,c', ['a"b', "c"]),
        ('x=""', [""]),
        ("x=", []),
        ("x={lr}", ["{lr}"]),
        ("x=\udcff", ["\udcff"]),
    ],
)
def test_values_are_one_line_of_csv_and_stay_as_written(text: str, values: list[str]) -> None:
    assert of_option(text) == (("x",), [(value,) for value in values], "--param x")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x=,", "the value '' is empty: .* quote"),
        ("x=1,", "is empty"),
        ("x=a,,b", "is empty"),
        ("x=1, 5", "the value ' 5' begins or ends with a blank: .* like x='1,\" 5\"'"),
        ("x=1 ,5", "begins or ends with a blank"),
        ("x=\t1", "begins or ends with a blank"),
        ("x=1,2,1", "--param x: the value '1' is given twice"),
        ('x="",""', "the value '' is given twice"),
    ],
)
def test_values_that_are_hardly_meant_are_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        of_option(text)


def test_what_is_quoted_is_meant() -> None:
    assert of_option('x=""," a","b, ","""c"" "').rows == [("",), (" a",), ("b, ",), ('"c" ',)]


@pytest.mark.parametrize("text", ["", "lr", "=1", "=", "1,2"])
def test_a_parameter_without_name_or_values_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="write NAME=V1,V2, like lr=1e-3,1e-4"):
        of_option(text)


@pytest.mark.parametrize("text", ['x="a', 'x="a"b', "x=a\nb"])
def test_malformed_csv_is_refused_with_how_to_quote(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be read .* quote .* like x='\"a,b\",c'"):
        of_option(text)


# --param-file


def read(tmp_path: Path, name: str, content: str | bytes) -> list[Axis]:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [Axis(axis.names, list(axis.rows), "") for axis in of_file(str(path))]


@pytest.mark.parametrize(
    "content",
    [
        "lr,bs\n1e-3,32\n1e-4,64\n",
        "lr,bs\r\n1e-3,32\r\n1e-4,64",
        "\ufefflr,bs\n\n1e-3,32\n\n1e-4,64\n\n",
        '"lr","bs"\n"1e-3",32\n1e-4,"64"\n',
    ],
)
def test_csv_has_a_header_and_a_run_a_row(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, "p.CSV", content) == [Axis(("lr", "bs"), [("1e-3", "32"), ("1e-4", "64")], "")]


def test_csv_keeps_what_is_quoted_and_what_is_no_text(tmp_path: Path) -> None:
    found = read(tmp_path, "p.csv", b'a,b\n"x, ""y""\nz",\xff \x0b\n')
    assert found == [Axis(("a", "b"), [('x, "y"\nz', "\udcff \x0b")], "")]


@pytest.mark.parametrize(
    "content",
    [
        '[{"lr": 1e-3, "on": true}, {"on": "x", "lr": "0.10"}]',
        '\ufeff[{"lr": 1e-3, "on": true}, {"lr": 0.10, "on": "x"}]',
    ],
)
def test_a_json_list_is_rows_and_numbers_stay_as_written(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, "p.json", content) == [Axis(("lr", "on"), [("1e-3", "true"), ("0.10", "x")], "")]


def test_a_json_object_is_a_grid(tmp_path: Path) -> None:
    found = read(tmp_path, "p.json", '{"lr": [1E-3, 1.50], "n": [12345678901234567890], "on": [false], "x": [NaN]}')
    assert found == [
        Axis(("lr",), [("1E-3",), ("1.50",)], ""),
        Axis(("n",), [("12345678901234567890",)], ""),
        Axis(("on",), [("false",)], ""),
        Axis(("x",), [("NaN",)], ""),
    ]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("p.txt", "", "neither .csv nor .json"),
        ("p.csv", "", "is empty: give a header"),
        ("p.csv", "a,b\n1,2\n3\n", "line 3: 1 values, but the header has 2 names"),
        ("p.csv", 'a,b\n1,"2\n', "line 2: unexpected end"),
        ("p.json", "", "is not JSON"),
        ("p.json", "{'a': 1}", "is not JSON"),
        ("p.json", "[" * 100_000, "is not JSON"),
        ("p.json", "3", "neither rows"),
        ("p.json", '{"lr": 0.1}', "lr must be a list of values"),
        ("p.json", '{"lr": "12"}', "lr must be a list of values"),
        ("p.json", '{"lr": [null]}', "lr is null: give text, a number, true or false"),
        ("p.json", '{"lr": [[1]]}', r'lr is \["1"\]: give text'),
        ("p.json", '[{"lr": {}}]', r"\[0\]: lr is \{\}"),
        ("p.json", '[{"lr": 1}, 2]', r"\[1\] must map names to values"),
        ("p.json", "[{}]", r"\[0\] must map names to values"),
        ("p.json", '[{"lr": 1}, {"bs": 2}]', r"\[1\] has bs, the first one lr"),
        ("p.json", '[{"lr": 1}, {"lr": 1, "bs": 2}]', r"\[1\] has lr, bs, the first one lr"),
        ("p.json", '{"lr": [1], "lr": [2]}', "'lr' stands twice in one object"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(tmp_path: Path, name: str, content: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        read(tmp_path, name, content)


@pytest.mark.parametrize("content", ["[]", "{}", '{"lr": []}'])
def test_a_file_without_runs_is_a_sweep_of_zero(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match="a sweep of zero runs"):
        Plan(["x"], of_file(str(path)))


@pytest.mark.parametrize("header", ["lr,lr", "lr, bs", "lr,", "learning rate"])
def test_a_header_that_names_no_parameters_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(f"{header}\n" + ",".join("1" * (header.count(",") + 1)) + "\n")
    with pytest.raises(InvalidInput, match=r"given twice|cannot be the name"):
        Plan(["{lr}"], of_file(str(path)))


# --each-line


def test_each_line_that_is_not_blank_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes("\ufeffa b \r\n\n \t\n{x}\u2028y\n".encode() + b"\xff\n z")
    assert of_lines(str(path)) == (
        ("line",),
        [("a b ",), ("{x}\u2028y",), ("\udcff",), (" z",)],
        f"--each-line {path}",
    )


def test_lines_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"1\n2\n")))
    assert [row for (row,) in of_lines("-").rows] == ["1", "2"]
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidInput, match="cannot be read"):
        of_lines("-")


@pytest.mark.parametrize("path", ["nowhere", ".", "a\0b", ""])
def test_what_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"--each-line .*cannot be read"):
        of_lines(path)


# Python


Kind = enum.Enum("Kind", {"A": "a"}, type=str)


def test_values_of_python_become_text() -> None:
    values = ["x", 1, 1e-4, True, Fraction(1, 2), Path("/a"), b"\xff", Kind.A]
    (axis,) = of_params({"x": values})
    assert [value for (value,) in axis.rows] == ["x", "1", "0.0001", "True", "1/2", "/a", "\udcff", "a"]
    assert [axis.rows for axis in of_params({"x": range(2), "y": (0.5,)})] == [[("0",), ("1",)], [("0.5",)]]


def test_rows_of_python_may_come_one_by_one() -> None:
    (axis,) = of_rows({"b": at, "a": -at} if at % 2 else {"a": -at, "b": at} for at in range(3))
    assert (axis.names, axis.rows) == (("a", "b"), [("0", "0"), ("-1", "1"), ("-2", "2")])


@pytest.mark.parametrize(
    ("read", "given", "text"),
    [
        (of_params, {"lr": [0.1, "0.1"]}, "params: lr: the value '0.1' is given twice"),
        (of_params, [1], "params must map names to lists"),
        (of_params, {"lr": "0.1,0.2"}, "lr must be a list of values"),
        (of_params, {"lr": 0.1}, "lr must be a list of values"),
        (of_params, {"lr": [None]}, "lr is None: give text, a number or a path"),
        (of_params, {"lr": [[1, 2]]}, r"lr is \[1, 2\]"),
        (of_params, {1: [1]}, "1 cannot be the name of a parameter: give text"),
        (of_rows, {"lr": [1]}, "rows must be a list of mappings"),
        (of_rows, "x", "rows must be a list of mappings"),
        (of_rows, 3, "rows must be a list of mappings"),
        (of_rows, [{"lr": 1}, None], r"rows\[1\] must map names to values"),
        (of_rows, [{"lr": 1}, {"lr": 1, 2: 3}], r"rows\[1\]: 2 cannot be the name"),
        (of_rows, [{"lr": object}], r"rows\[0\]: lr is <class"),
    ],
)
def test_other_values_of_python_are_refused(read: Any, given: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        read(given)


def test_what_json_writes_of_a_grid_is_read_back(tmp_path: Path) -> None:
    values = [0.1, 1e-300, -5, 2**70]
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"x": values}))
    assert [float(value) for (value,) in of_file(os.fspath(path))[0].rows] == values
