-- dissolve: scheduled, blocked, pending -> -, cancelled
-- NEEDS prefix
-- FOUND expiry ZSET, filling ZSET, groups ZSET, unfinished HASH
-- FOUND members:<group> ZSET job -> its number
-- A group that nobody completes goes, with its jobs, which nobody has seen; one for which others wait is cancelled.
local ABANDONED_MS = 600000

local function dissolve(limit)
  local group = redis.call('ZRANGEBYSCORE', named('filling'), '-inf', digits(now_ms - ABANDONED_MS), 'LIMIT', 0, 1)[1]
  if not group then
    return 0
  end
  local members = redis.call('ZRANGE', prefix .. 'members:' .. group, 0, limit - 1)
  for _, n in ipairs(members) do
    local job = read_job(n, 'state', 'shape', 'user', 'dependents')
    if job and is_waiting(job[1]) then
      take_out(n, job[1], job[2])
      if job[4] then
        over(n, 'cancelled', 'cancelled_by_user', 'its sweep was never completed')
        event('dissolve', n, 'from', job[1], 'to', 'cancelled')
      else
        redis.call('ZREM', named('expiry'), n)
        if job[3] and redis.call('HINCRBY', named('unfinished'), job[3], -1) <= 0 then
          redis.call('HDEL', named('unfinished'), job[3])
        end
        erase(n)
      end
    end
    redis.call('ZREM', prefix .. 'members:' .. group, n)
  end
  if #members < tonumber(limit) then
    redis.call('ZREM', named('filling'), group)
    redis.call('DEL', group_key(group))
    redis.call('ZREM', named('groups'), group)
    event('dissolve', '', 'scope', '@' .. group)
  end
  return #members
end
