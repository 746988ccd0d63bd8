"""A Lua file's header is its signature, and it tells the truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from queue_driver import lua_folder
from servers import RealServer, binaries

from foxqueue import scripts, states
from foxqueue.keys import Keys
from foxqueue.scripts import Scripts, load, names, source

FILES = sorted(path.stem for path in lua_folder().glob("*.lua"))
FRAGMENTS = [name for name in FILES if name.startswith("_")]
TITLED = [
    *names(),
    "_reap",
    "_promote",
    "_purge",
    "_expire",
    "_settle",
    "_dissolve",
]  # these fragments hold a transition each

LUA_WORDS = re.compile(
    "and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|repeat|return|then|true|until|while"
)
LUA_GLOBALS = {"error", "redis", "string", "table", "math", "ipairs", "pairs", "tonumber", "type", "unpack"}
LUA_GLOBALS |= {"KEYS", "ARGV"}
NAMES_OR_USE = re.compile(
    r"""\blocal\s+function\s+(?P<function>\w+)\s*\((?P<parameters>[^)]*)\)
    | \bfunction\s*\((?P<unnamed>[^)]*)\)
    | \blocal\s+(?P<locals>\w+(?:\s*,\s*\w+)*)
    | \bfor\s+(?P<loop>\w+(?:\s*,\s*\w+)*)\s*(?:=|in\b)
    | (?<![\w.:])(?P<use>[A-Za-z_]\w*)""",
    re.VERBOSE,
)


def code(text: str) -> str:
    """Lua without comments and with empty strings."""
    pieces = re.compile(r"--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"")
    return pieces.sub(lambda match: "" if match[0].startswith("--") else "''", text)


def body(name: str) -> str:
    return code(source(name))


def undeclared(text: str) -> set[str]:
    """Names that are used before any ``local``, parameter or loop declares them, fields left out."""
    known, found = set(LUA_GLOBALS), set()
    for match in NAMES_OR_USE.finditer(code(text).replace("...", " ").replace("..", " , ")):
        use = match["use"]
        if use is None:
            known |= set(re.findall(r"\w+", " ".join(filter(None, match.groups()))))
        elif use not in known and not LUA_WORDS.fullmatch(use):
            found.add(use)
    return found


def test_the_search_for_undeclared_names_works() -> None:
    assert undeclared("local a, b = 1, c") == {"c"}
    assert undeclared("local function f(x, ...)\n return x + y.z\nend\nf(w)") == {"y", "w"}
    assert undeclared("for _, v in ipairs(t) do redis.call('GET', v) end") == {"t"}
    assert undeclared("for i = 1, n do local s\n s = i end -- never\n") == {"n"}
    assert undeclared("g = 1") == {"g"}
    assert undeclared("return f(x)\nlocal x") == {"f", "x"}
    assert undeclared("local f = function(q) return q end") == set()


@pytest.fixture(scope="module", params=binaries(), ids=str)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    with RealServer(request.param, tmp_path_factory.mktemp("server")).start() as running:
        client = redis.Redis.from_url(running.url)
        yield client
        client.close()


@pytest.mark.parametrize("name", names())
def test_every_script_compiles_and_is_known_by_our_sha(server: redis.Redis, name: str) -> None:
    assert server.script_load(load(name).text) == load(name).sha


@pytest.mark.parametrize("name", names())
def test_no_script_uses_a_name_that_nobody_declares(name: str) -> None:
    """With it, every name of a body or fragment is in the header, a fragment before it, or the body itself."""
    assert undeclared(load(name).text) == set()


@pytest.mark.parametrize("name", names())
def test_every_name_of_a_header_is_used(name: str) -> None:
    script = load(name)
    uses = code(script.text)
    for slot in (*script.keys, *script.arguments, *([script.rest] if script.rest else [])):
        assert len(re.findall(rf"\b{slot}\b", uses)) > 1, f"{name}.lua declares {slot} and does not use it"


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_needs_what_it_says(name: str) -> None:
    """No more and no less; whatever else it uses comes from other fragments."""
    header = [line for line in source(name).splitlines() if line.startswith("-- NEEDS ")]
    needs = {word for line in header for word in line.removeprefix("-- NEEDS ").split()}
    provided = {word for other in FRAGMENTS for word in re.findall(r"^local (?:function )?(\w+)", source(other), re.M)}
    used = undeclared(source(name))
    assert used - provided <= needs <= used


@pytest.mark.parametrize("name", FILES)
def test_bodies_speak_in_names(name: str) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", body(name))


@pytest.mark.parametrize("name", names())
def test_every_header_says_what_is_returned(name: str) -> None:
    returns = load(name).returns
    assert returns and "instance" in returns


@pytest.mark.parametrize("name", TITLED)
def test_a_title_is_a_transition_of_the_table_or_another_script(name: str) -> None:
    title = source(name).splitlines()[0].removeprefix("-- ")
    verb, _, meaning = title.partition(": ")
    assert verb == name.removeprefix("_")
    if verb in states.OTHER_SCRIPTS:
        assert "->" not in meaning
        return
    before, after = ({state.strip() for state in part.split(",")} for part in meaning.split("->"))
    assert (before, after) == states.TRANSITIONS[verb]


def test_every_transition_has_a_script_and_every_script_a_meaning() -> None:
    titled = {name.removeprefix("_") for name in TITLED}
    assert titled == set(states.TRANSITIONS) | states.OTHER_SCRIPTS


@pytest.mark.parametrize("name", names())
def test_a_full_server_drains_through_every_script_but_three(name: str) -> None:
    """Some end a run with their first write, which removes it from ``running``: that is as good."""
    includes = load(name).includes
    ends = name in ("complete", "fail", "release", "lose")
    assert not ends or "_ended" in includes
    assert (includes[0] == "_drains") == (not ends and name not in ("enqueue", "log", "import"))


@pytest.mark.parametrize("name", FILES)
def test_no_command_that_walks_the_server(name: str) -> None:
    commands = set(re.findall(r"redis\.p?call\('(\w+)'", source(name)))
    assert not commands & {"KEYS", "SCAN", "LREM", "SORT", "FLUSHALL", "FLUSHDB", "HSCAN", "SSCAN", "ZSCAN"}
    assert all(command.isupper() for command in commands)
    assert not re.search(r"redis\.p?call\((?!')", source(name)), "a command that is not spelt out"


NUMERIC = r"(?:now_us|now_ms|\w*_ms|\w*tick\w*|minute|losses|attempts|rank|last|grace|due|limit)"
# These hold text: arguments as they came, and what tick() and digits() gave back.
TEXTUAL = {"tick()", "retry_delay_ms", "delay_ms"}


@pytest.mark.parametrize("name", FILES)
def test_numbers_leave_lua_through_digits_alone(name: str) -> None:
    """Lua's '..', tostring and cjson keep 14 digits, a tick has 16."""
    text = body(name)
    assert not re.search(r"\b(tostring|cjson|cmsgpack)\b", text)
    joined = re.findall(rf"\.\.\s*({NUMERIC})\b(?!\()|(?<![\w.])({NUMERIC})\s*\.\.(?!\.)", text)
    assert {first or second for first, second in joined} - TEXTUAL == set()


def test_the_search_for_joined_numbers_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "source", lambda name: "")
    for text in ("local a = 'x' .. now_ms", "local a = next_tick .. ':'", "return tostring(x)"):
        monkeypatch.setitem(globals(), "source", lambda name, text=text: text)
        with pytest.raises(AssertionError):
            test_numbers_leave_lua_through_digits_alone("any")


# --- calls by name ---------------------------------------------------------------------------------------


def test_a_call_binds_names_and_fills_in_the_namespaces_keys() -> None:
    keys = Keys("ns")
    call = Scripts(keys).call("heartbeat", number=7, fence="9")
    assert call.evalsha() == (
        "EVALSHA",
        load("heartbeat").sha,
        "5",
        *(keys.running, keys.granted, keys.clock, keys.settings, keys.instance),
        *(keys.prefix, 7, "9"),
    )


def test_the_rest_is_a_list() -> None:
    calls = Scripts(Keys("ns"))
    given = {
        "worker": "w",
        "question": 1,
        "device": "d",
        "host": "h",
        "boot": "",
        "version": "1",
        "woken": "",
        "waits": 1,
        "declares": "",
        "room": 0,
    }
    assert calls.call("claim", **given, fitting=["g1", "g0"]).parts[-2:] == ("g1", "g0")
    assert calls.call("claim", **given, fitting=[]).parts[-1] == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"number": 7}, "heartbeat needs 'fence'"),
        ({"number": 7, "fence": "9", "fense": "9"}, "heartbeat has no fense"),
        ({"number": 7, "fence": "9", "clocks": "x", "a": 1}, "heartbeat has no a, clocks"),
        ({}, "heartbeat needs 'number'"),
    ],
)
def test_a_wrong_or_missing_name_is_a_type_error(given: dict[str, str | int], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        Scripts(Keys("ns")).call("heartbeat", **given)


HEADERS = {
    "a gap": ("-- x: other\n-- KEYS[2] running\n", "out of order"),
    "after the rest": ("-- x: other\n-- ARGV[1..] all\n-- ARGV[2] more\n", "out of order"),
    "a name twice": ("-- x: other\n-- KEYS[1] running\n-- ARGV[1] running\n", "twice"),
    "a need not met": ("-- x: other\n-- KEYS[1] running\n-- INCLUDE _clock\n", "_clock needs clock"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_an_inconsistent_header_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    header, message = HEADERS[kind]
    original = scripts.source
    monkeypatch.setattr(scripts, "source", lambda name: header if name == "x" else original(name))
    with pytest.raises(ValueError, match=message):
        load("x")
    load.cache_clear()


def test_the_files_are_in_the_package() -> None:
    assert Path(scripts.__file__).with_name("lua") == lua_folder()
    assert set(names()) == {name for name in FILES if not name.startswith("_")}
