-- NEEDS running granted prefix
-- FOUND dropped ZSET, expiry ZSET, failed ZSET, finished ZSET, notices ZSET, shapes HASH, unfinished HASH, unsettled ZSET
-- The only way out of running: the grant ends, the lease goes if it is still this run's, and the fence's
-- word is written down, so that a repeated call gets it again, with other fields as given.
local function ended(n, run_fence, devices, shape_name, word, ...)
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
    undeclare(name)
    freed(name)
  end
  local group = group_of(shape_name)
  if group then
    count_in_group(shape_name, 'running', -1)
    if redis.call('HEXISTS', group_key(group), 'max_concurrent') == 1 and may_start(shape_name) then
      -- There may be room now that there was not, for the group's jobs of any shape.
      for _, of_group in ipairs(redis.call('HKEYS', named('shapes'))) do
        if group_of(of_group) == group and redis.call('EXISTS', prefix .. 'pending:' .. of_group) == 1 then
          wake(of_group, 1)
        end
      end
    end
  end
end

-- What is written of a job that is over, and where it stands then: a failed one is a dead letter and stands in
-- `failed` only, one that never started in `dropped`, other ends in `finished`.
local function over_fields(state, reason, detail)
  return 'state', state, 'reason', reason, 'detail', detail, 'finished_at', digits(now_ms)
end

-- So many failures in a row, for one reason, and the group is paused.
local function note_streak(group, state, reason)
  local key = group_key(group)
  local found = redis.call('HMGET', key, 'max_fails', 'streak', 'streak_reason', 'paused')
  if not found[1] then
    return
  end
  if state == 'succeeded' then
    redis.call('HDEL', key, 'streak', 'streak_reason')
  elseif state == 'failed' then
    local streak = found[3] == reason and count(found[2]) + 1 or 1
    redis.call('HSET', key, 'streak', digits(streak), 'streak_reason', reason)
    if streak >= count(found[1]) and not found[4] then
      local why = digits(streak) .. ' failures in a row (' .. reason .. ')'
      redis.call('HSET', key, 'paused', 'foxqueue: ' .. why)
      event('pause', '', 'scope', '@' .. group, 'by', 'foxqueue', 'reason', why)
    end
  end
end

-- What an end has to do with, in this order.
local LEAVING = { 'user', 'shape', 'dependents', 'notify', 'expires_at', 'started_at' }

-- One job less of a user that has not ended.
local function count_out(owner)
  if owner and owner ~= '' and redis.call('HINCRBY', named('unfinished'), owner, -1) <= 0 then
    redis.call('HDEL', named('unfinished'), owner)
  end
end

local function lay_down(n, state, reason, owner, shape_name, has_dependents, notify, expires_at, started)
  local set = state == 'failed' and state or started and 'finished' or 'dropped'
  redis.call('ZADD', named(set), digits(now_ms), n)
  count_out(owner)
  local group = group_of(shape_name)
  if group then
    redis.call('HINCRBY', group_key(group), state, 1)
    note_streak(group, state, reason)
  end
  if has_dependents then
    redis.call('ZADD', named('unsettled'), 0, n) -- nobody is told yet
  end
  if notify then
    redis.call('ZADD', named('notices'), digits(now_ms), n)
  end
  if expires_at then
    redis.call('ZREM', named('expiry'), n)
  end
end

local function over(n, state, reason, detail)
  redis.call('HSET', job_key(n), over_fields(state, reason, detail))
  lay_down(n, state, reason, unpack(redis.call('HMGET', job_key(n), unpack(LEAVING))))
end

-- A job whose record cannot be read, taken from where it waited.
local function put_aside(n)
  if redis.call('TYPE', job_key(n)).ok ~= 'hash' then
    redis.call('DEL', job_key(n))
  end
  over(n, 'failed', 'bad_payload', 'its record in Redis cannot be read')
  event('fail', n, 'to', 'failed', 'reason', 'bad_payload')
end
