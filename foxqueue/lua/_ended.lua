-- NEEDS running granted finished failed
-- The only way out of running: the grant ends, the lease goes if it is still this run's, and the fence's
-- word is written down, so that a repeated call gets it again, with other fields as given.
local function ended(n, run_fence, devices, word, ...)
  redis.call('ZREM', running, n)
  redis.call('HSET', job_key(n), 'settled', run_fence, 'settled_as', word, ...)
  for name in string.gmatch(devices or '', '[^,]+') do
    local grant = redis.call('HGET', granted, name)
    if grant == grant_text(run_fence, n) or grant == released_text(run_fence, n) then
      redis.call('HSET', granted, name, run_fence .. ' -')
    end
    if lease_value(name) == run_fence then
      redis.call('DEL', lease_key(name))
    end
  end
end

-- What is written of a job that is over, and where it stands then: a failed one is a dead letter and stands in
-- `failed` only, other ends in `finished`.
local function over_fields(state, reason, detail)
  return 'state', state, 'reason', reason, 'detail', detail, 'finished_at', digits(now_ms)
end

local function lay_down(n, state)
  redis.call('ZADD', state == 'failed' and failed or finished, digits(now_ms), n)
end

local function over(n, state, reason, detail)
  redis.call('HSET', job_key(n), over_fields(state, reason, detail))
  lay_down(n, state)
end
