"""No key without an owner: what may lie in a namespace."""

from __future__ import annotations

import re

from redis import Redis

from foxqueue.keys import Keys

# Each key of a namespace that has no time to live, and the members of its sets of jobs.
KEYS_AND_SETS = """
local prefix, lasting, sets = ARGV[1], {}, {}
for _, key in ipairs(redis.call('KEYS', (string.gsub(prefix, '[{}]', '?')) .. '*')) do
  if redis.call('PTTL', key) == -1 then
    lasting[#lasting + 1] = key
  end
end
local function put(name)
  sets[#sets + 1] = { name, redis.call('ZRANGE', prefix .. name, 0, -1) }
end
for _, name in ipairs({ 'scheduled', 'blocked', 'running', 'finished', 'dropped', 'failed' }) do put(name) end
for _, shape in ipairs(redis.call('HKEYS', prefix .. 'shapes')) do put('pending:' .. shape) end
return { lasting, sets, { redis.call('ZRANGE', prefix .. 'expiry', 0, -1),
  redis.call('ZRANGE', prefix .. 'unsettled', 0, -1), redis.call('HVALS', prefix .. 'unique') } }
"""
OF_A_JOB = re.compile(r"(job|spec|result|value|log|history|blocked_by|dependents):(\d+)")
OF_A_DEVICE = re.compile(r"declared:(.+)")
OF_A_GROUP = re.compile(r"(group|members|awaited):(.+)")


def unexplained(redis: Redis, keys: Keys) -> list[str]:
    """What has no owner in a namespace: each key is on the fixed list, belongs to a job that stands in exactly one
    set, or has a time to live. Empty when all is well."""
    lasting, sets, named = redis.register_script(KEYS_AND_SETS)(args=[keys.prefix])
    where: dict[str, list[str]] = {}
    for name, members in sets:
        for member in members:
            where.setdefault(member.decode(), []).append(name.decode())
    fixed = {getattr(keys, name) for name, kind in vars(Keys).items() if isinstance(kind, property)}
    fixed |= {keys.prefix + name.decode() for name, _ in sets}
    found = []
    for key in map(bytes.decode, lasting):
        job = OF_A_JOB.fullmatch(key.removeprefix(keys.prefix))
        group = OF_A_GROUP.fullmatch(key.removeprefix(keys.prefix))
        if group and redis.zscore(keys.groups, group[2]) is not None:
            continue
        slotted = OF_A_DEVICE.fullmatch(key.removeprefix(keys.prefix))
        if slotted and all(_has_grant(redis, keys, f"{slotted[1]}/{slot.decode()}") for slot in redis.hkeys(key)):
            continue
        if key not in fixed and not (job and len(where.get(job[2], ())) == 1):
            found.append(f"{key} (its job stands in {where.get(job[2], [])})" if job else key)
    there = {key.decode() for key in lasting}
    found += [
        f"job {number} in {names} without a record"
        for number, names in where.items()
        if keys.job(int(number)) not in there
    ]
    found += [
        f"job {number.decode()} in {name}, and is gone"
        for name, numbers in zip(("expiry", "unsettled", "unique"), named, strict=True)
        for number in numbers
        if keys.job(int(number)) not in there
    ]
    return sorted(found)


def _has_grant(redis: Redis, keys: Keys, device: str) -> bool:
    grant = redis.hget(keys.granted, device)
    return grant is not None and not grant.endswith(b" -")
