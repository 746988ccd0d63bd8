-- NEEDS prefix
-- FOUND lease_waiting:<device> ZSET token -> rank, waiter:<token> HASH, turn:<device> STRING
-- Who waits for a lease stands in the line of each device that would do, ranked as jobs are. When the first may have
-- the device it is called, and for a second nobody behind it is served; one who does not come has to stand again.
local TURN_MS = 1000
local DEAF_MS = 100 -- a call that nobody has heard for so long is one to somebody dead or stopped
local TURN_KEPT_MS = 5000 -- so long it is known who had a turn and did not use it

local function line_of(name)
  return prefix .. 'lease_waiting:' .. name
end

-- Whose turn it is, a token or `jobs`, and whether it is over; nil for nobody's.
local function turn_of(name)
  local who, since = string.match(redis.call('GET', prefix .. 'turn:' .. name) or '', '^(%w+) (%d+)$')
  return who, who and (now_ms - tonumber(since) >= TURN_MS or now_ms < tonumber(since))
end

local function give_turn(name, who)
  redis.call('SET', prefix .. 'turn:' .. name, who .. ' ' .. digits(now_ms), 'PX', TURN_KEPT_MS)
end

-- Whether so many of these devices are free, this one among them.
local function enough(name, devices, needs)
  local free = 1
  for other in string.gmatch(devices, '[^,]+') do
    if free >= needs then
      return true
    end
    if other ~= name and device_is_free(other) then
      free = free + 1
    end
  end
  return free >= needs
end

-- Whether a waiter was called and does not listen. It keeps its place, and others pass it.
local function is_deaf(token)
  local left = redis.call('PTTL', prefix .. 'wake:' .. token)
  return left >= 0 and left <= WAKE_MS - DEAF_MS
end

-- The first in line who lives and can be served now, and its rank.
local passed = 0 -- deaf ones
local function first_waiter(name)
  local who, missed = turn_of(name)
  local behind = 0
  for _ = 1, 200 do
    local first = redis.call('ZRANGE', line_of(name), behind, behind, 'WITHSCORES')
    local token = first[1]
    if not token then
      return nil
    end
    local waiter = redis.call('HMGET', prefix .. 'waiter:' .. token, 'devices', 'needs')
    local wants = string.find(',' .. (waiter[1] or '') .. ',', ',' .. name .. ',', 1, true)
    if not wants or (token == who and missed) then
      redis.call('ZREM', line_of(name), token)
    elseif is_deaf(token) then
      behind, passed = behind + 1, passed + 1
    elseif count(waiter[2]) <= 1 or enough(name, waiter[1], count(waiter[2])) then
      return token, tonumber(first[2])
    else
      behind = behind + 1
    end
  end
end

local function call_waiter(name, token)
  if turn_of(name) == token then
    return
  end
  give_turn(name, token)
  send_token(token, name)
  if passed > 0 then -- others may have died with the deaf: they are called too, so that all are known at once
    for _, other in ipairs(redis.call('ZRANGE', line_of(name), passed, passed + 16)) do
      if other ~= token and redis.call('EXISTS', prefix .. 'wake:' .. other) == 0 then
        send_token(other, name)
      end
    end
  end
end
