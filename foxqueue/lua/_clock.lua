-- NEEDS clock
-- The hybrid clock: server time in microseconds, but always later than the last tick given out.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)

-- All numbers leave Lua through here: '..', tostring and cjson keep 14 digits, a tick has 16.
local function digits(number)
  return string.format('%d', number)
end

local function tick()
  local last = tonumber(redis.call('GET', clock) or '0') or 0
  local next_tick = digits(math.max(now_us, last + 1))
  redis.call('SET', clock, next_tick)
  return next_tick
end
