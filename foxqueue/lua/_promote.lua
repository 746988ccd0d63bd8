-- promote: scheduled -> pending, failed
-- NEEDS scheduled
-- Jobs whose time has come, at most `limit`. A retry keeps its tick, so its rank is unchanged.
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
      over(n, 'failed', 'bad_payload', 'its record in Redis cannot be read')
      event('fail', n, 'reason', 'bad_payload')
    end
  end
  return #due
end
