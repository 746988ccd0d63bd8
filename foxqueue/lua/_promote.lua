-- promote: scheduled -> pending, failed
-- NEEDS scheduled
-- Jobs whose time has come, at most `limit`. Their rank is known since their time was set: a retry keeps its tick, a
-- delayed job has that of its due time.
local function promote(limit)
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', digits(now_ms), 'LIMIT', 0, limit)
  for _, n in ipairs(due) do
    redis.call('ZREM', scheduled, n)
    local job = read_job(n, 'state', 'shape', 'rank')
    if job and job[1] == 'scheduled' and job[2] and tonumber(job[3]) then
      redis.call('HSET', job_key(n), 'state', 'pending')
      ready(n, job[2], job[3])
      event('promote', n)
    else
      put_aside(n)
    end
  end
  return #due
end
