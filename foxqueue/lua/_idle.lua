-- NEEDS prefix
-- FOUND idle:<shape> ZSET worker -> ms since when
-- FOUND idle_shapes:<worker> SET shapes under which it stands
-- FOUND wake:<worker> LIST tokens that wake it
-- FOUND lease_waiting:<device> ZSET token -> rank, declared:<uuid> HASH slot -> MiB
-- An idle worker asks again within a beat at most; an entry older than this is a dead worker's.
local IDLE_MS = 12000
local WAKE_MS = 20000

local function leave_idle(name)
  local key = prefix .. 'idle_shapes:' .. name
  for _, shape_name in ipairs(redis.call('SMEMBERS', key)) do
    redis.call('ZREM', prefix .. 'idle:' .. shape_name, name)
  end
  redis.call('DEL', key)
  redis.call('ZREM', named('idle'), name)
end

local function send_token(name, token_text)
  local key = prefix .. 'wake:' .. name
  redis.call('LPUSH', key, token_text)
  redis.call('PEXPIRE', key, WAKE_MS)
end

-- Wake so many workers that stand idle for the shape, the newest first, and take them off every list.
local function wake(shape_name, how_many)
  local key = prefix .. 'idle:' .. shape_name
  for _ = 1, how_many do
    local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if not newest[1] then
      return
    end
    if tonumber(newest[2]) < now_ms - IDLE_MS then
      redis.call('DEL', key)
      return
    end
    leave_idle(newest[1])
    send_token(newest[1], shape_name)
  end
end

-- A shape nobody has seen: every idle worker looks whether it fits.
local function wake_all()
  for _, name in ipairs(redis.call('ZREVRANGE', named('idle'), 0, 99)) do
    leave_idle(name)
    send_token(name, '*')
  end
end

-- Of a line the first ones are told, for some of them may be dead: they ask.
local function call_line(name)
  for _, token in ipairs(redis.call('ZRANGE', prefix .. 'lease_waiting:' .. name, 0, 2)) do
    send_token(token, name)
  end
end

-- The device may be free now: who waits for it asks.
local function freed(name)
  if redis.call('EXISTS', prefix .. 'idle:' .. name, prefix .. 'lease_waiting:' .. name) > 0 then
    wake(name, 1)
    call_line(name)
  end
end

-- What a slot had declared is free: there may be room on the other slots of its device, or nobody on any.
local MOST_SLOTS = 16
local function undeclare(name)
  if string.find(name, '/', 1, true) then
    local whole_name, slot = string.match(name, '^(.+)/(%d+)$')
    redis.call('HDEL', prefix .. 'declared:' .. (whole_name or ''), slot or '')
    wake(whole_name or '', MOST_SLOTS)
    call_line(whole_name or '')
    for other = 0, MOST_SLOTS - 1 do
      if digits(other) ~= slot then
        call_line((whole_name or '') .. '/' .. digits(other))
      end
    end
  end
end
