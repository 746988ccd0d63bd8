-- expire: scheduled, blocked, pending -> cancelled
-- FOUND expiry ZSET
local function expire_one(n, state, shape_name)
  take_out(n, state, shape_name)
  over(n, 'cancelled', 'expired', 'it had not started when its time was over')
  event('expire', n, 'from', state, 'to', 'cancelled', 'reason', 'expired')
end

local function expire(limit)
  local due = redis.call('ZRANGEBYSCORE', named('expiry'), '-inf', digits(now_ms), 'LIMIT', 0, limit)
  for _, n in ipairs(due) do
    redis.call('ZREM', named('expiry'), n)
    local job = read_job(n, 'state', 'shape')
    if job and is_waiting(job[1]) then
      expire_one(n, job[1], job[2])
    end
  end
  return #due
end
