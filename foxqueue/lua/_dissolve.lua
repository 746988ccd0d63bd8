-- dissolve: scheduled, blocked, pending -> -, cancelled
-- NEEDS prefix
-- FOUND dropped ZSET, expiry ZSET, failed ZSET, filling ZSET, groups ZSET, notices ZSET
-- FOUND members:<group> ZSET job -> its number, awaited:<group> SET
-- A group that nobody completes goes, with its jobs, which nobody has seen; one for which others wait is cancelled.
local ABANDONED_MS = 600000

local function dissolve(limit)
  local group = redis.call('ZRANGEBYSCORE', named('filling'), '-inf', digits(now_ms - ABANDONED_MS), 'LIMIT', 0, 1)[1]
  if not group then
    return 0
  end
  local members = redis.call('ZRANGE', prefix .. 'members:' .. group, 0, limit - 1)
  if members[1] then
    redis.call('HSET', group_key(group), 'filling', '') -- a late piece does not fit any more
  end
  for _, n in ipairs(members) do
    local job = read_job(n, 'state', 'shape', 'user', 'dependents')
    local waits = job and is_waiting(job[1])
    if waits then
      take_out(n, job[1], job[2])
    end
    if job and job[2] and job[4] then
      -- It stays, for those that know of it, and belongs to no group any more.
      redis.call('HSET', job_key(n), 'shape', string.match(job[2], '^[^@]*'))
      redis.call('HINCRBY', group_key(group), 'total', -1)
      if not waits then
        redis.call('HINCRBY', group_key(group), job[1], -1)
      else
        over(n, 'cancelled', 'cancelled_by_user', 'its sweep was never completed')
        event('dissolve', n, 'from', job[1], 'to', 'cancelled')
      end
    elseif job and job[1] then
      redis.call('ZREM', named('expiry'), n)
      redis.call('ZREM', named('notices'), n)
      redis.call('ZREM', named('dropped'), n)
      redis.call('ZREM', named('failed'), n)
      if waits then
        count_out(job[3])
      end
      erase(n)
    end
    redis.call('ZREM', prefix .. 'members:' .. group, n)
  end
  -- Done as soon as the last is gone: the name is free then, and what comes under it is another group.
  if #members < tonumber(limit) or count(redis.call('HGET', group_key(group), 'total')) <= 0 then
    redis.call('ZREM', named('filling'), group)
    redis.call('DEL', group_key(group), prefix .. 'awaited:' .. group)
    redis.call('ZREM', named('groups'), group)
    event('dissolve', '', 'scope', '@' .. group)
  end
  return #members
end
