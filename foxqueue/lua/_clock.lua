-- NEEDS clock instance
-- The hybrid clock: server time in microseconds, but always later than the last tick given out. Read with it: the
-- random name of this namespace's life. Another name or none means that the data are not those we knew.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local known = redis.call('MGET', clock, instance)
local last_tick = tonumber(known[1] or '0') or 0
local life = known[2] or ''

-- All numbers leave Lua through here: '..', tostring and cjson keep 14 digits, a tick has 16.
local function digits(number)
  return string.format('%d', number)
end

-- The first of so many ticks in a row.
local function ticks(how_many)
  if not known[1] then
    redis.call('GET', clock) -- fails when it is there and no text, which MGET does not tell
  end
  if last_tick > 9000000000000000 then
    error('the clock of the namespace is out of range') -- whole numbers end at 2^53
  end
  local first = math.max(now_us, last_tick + 1)
  last_tick = first + how_many - 1
  redis.call('SET', clock, digits(last_tick))
  return first
end

local function tick()
  return digits(ticks(1))
end
