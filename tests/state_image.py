"""All data of a namespace as plain Python, in one round trip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from queue_driver import Queue

from foxqueue.replies import text
from foxqueue.scripts import Call

# Every key with its kind and content; of the events only the new ones.
DUMP = """
local prefix, found = ARGV[1], {}
for _, key in ipairs(redis.call('KEYS', (string.gsub(prefix, '[{}]', '?')) .. '*')) do
  local kind, name = redis.call('TYPE', key).ok, string.sub(key, #prefix + 1)
  local content
  if kind == 'string' then content = redis.call('GET', key)
  elseif kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then content = redis.call('SMEMBERS', key)
  elseif kind == 'list' then content = redis.call('LRANGE', key, 0, -1)
  elseif name == 'events' then content = redis.call('XRANGE', key, ARGV[2], '+')
  else content = redis.call('XRANGE', key, '-', '+') end
  found[#found + 1] = { name, kind, content }
end
local time = redis.call('TIME')
return { time[1] .. string.sub(1000000 + time[2], 2, 4), found }
"""

Content = Any  # str, dict, set, list or, for a sorted set, dict of scores


@dataclass
class Image:
    """A namespace at one moment.

    Attributes:
        now: the server's time after it was read, ms.
        keys: name without the prefix -> content; answered requests of all minutes stand under ``requests``.
        scores: the sorted sets among them.
        events: new entries of the audit trail.
        last_event: id of the last one ever read.
    """

    now: int
    last_event: str
    keys: dict[str, Content] = field(default_factory=dict)
    events: list[dict[str, str]] = field(default_factory=list)

    def number(self, key: str) -> int:
        """A counter or a time; 0 for none."""
        return int(self.keys.get(key) or 0)


class Camera:
    """Takes images of one namespace.

    Args:
        queue: the namespace.
    """

    def __init__(self, queue: Queue) -> None:
        self._dump = queue.broker.redis.register_script(DUMP)
        self._prefix = queue.broker.keys.prefix
        self._last = "0"

    def take(self) -> Image:
        """Read everything."""
        now, found = self._dump(args=[self._prefix, f"({self._last}"])
        image = Image(int(now), self._last)
        requests: dict[str, str] = {}
        for name, kind, content in found:
            key, value = name.decode(), _read(kind, content)
            if key == "events":
                image.events = [fields for _, fields in value]
                self._last = value[-1][0] if value else self._last
            elif key.startswith("requests:"):
                requests |= value
            else:
                image.keys[key] = value
        requests.pop("", None)  # says that the hash has its time to live
        image.keys["requests"] = requests
        image.last_event = self._last
        return image


def _read(kind: bytes, content: Any) -> Content:
    match kind:
        case b"string":
            return text(content)
        case b"hash":
            return dict(zip(map(text, content[::2]), map(text, content[1::2]), strict=True))
        case b"zset":
            return {text(member): float(score) for member, score in zip(content[::2], content[1::2], strict=True)}
        case b"set":
            return {text(member) for member in content}
        case b"list":
            return [text(member) for member in content]
    return [
        (text(entry), dict(zip(map(text, pairs[::2]), map(text, pairs[1::2]), strict=True))) for entry, pairs in content
    ]


def named(call: Call) -> dict[str, Any]:
    """Arguments of a call by name, as text; the rest of them is a list."""
    script = call.script
    words = [text(part) for part in call.parts[len(script.keys) :]]
    found: dict[str, Any] = dict(zip(script.arguments, words, strict=False))
    if script.rest:
        found[script.rest] = words[len(script.arguments) :]
    return found
