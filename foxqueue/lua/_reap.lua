-- reap: running -> pending, failed, cancelled
-- NEEDS looked grace_until running
-- Reaping keeps its own time. If nobody looked for half a lease, or the clock went back, everybody was away:
-- then nothing is taken until every live worker has had the time to beat again.
local function look()
  local last = tonumber(redis.call('GET', looked) or '0') or 0
  local gap = now_ms - last
  local lease_ms = ttl_ms + margin_ms
  redis.call('SET', looked, digits(now_ms))
  local grace = tonumber(redis.call('GET', grace_until) or '0') or 0
  if gap > ttl_ms / 2 or gap < 0 or grace > now_ms + lease_ms then
    grace = now_ms + lease_ms
    redis.call('SET', grace_until, digits(grace))
  end
  return now_ms >= grace
end

local function reap(limit)
  local overdue = redis.call('ZRANGEBYSCORE', running, '-inf', '(' .. digits(now_ms), 'LIMIT', 0, limit)
  for _, n in ipairs(overdue) do
    local job = read_job(n, unpack(LOST_FIELDS))
    if job and job[1] == 'running' then
      lost(n, job, 'reap', '')
    else
      redis.call('ZREM', running, n)
    end
  end
  return #overdue
end

-- A score far ahead comes from a clock that was set back since.
local function clamp(limit)
  local lease_ms = ttl_ms + margin_ms
  local ahead = redis.call('ZRANGEBYSCORE', running, '(' .. digits(now_ms + 2 * lease_ms), '+inf', 'LIMIT', 0, limit)
  for _, n in ipairs(ahead) do
    redis.call('ZADD', running, 'XX', digits(now_ms + lease_ms), n)
  end
end
