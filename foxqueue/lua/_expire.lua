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
    local group = job and group_of(job[2])
    if group and redis.call('HEXISTS', group_key(group), 'filling') == 1 then
      redis.call('ZADD', named('expiry'), digits(now_ms + 10000), n) -- nobody sees it yet
    elseif job and is_waiting(job[1]) then
      expire_one(n, job[1], job[2])
    end
  end
  return #due
end
