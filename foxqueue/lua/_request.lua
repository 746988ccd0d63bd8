-- NEEDS prefix token
-- FOUND requests:<period> HASH token -> answer already given; field '' says that it has its time to live
-- A user's command that is sent again within two minutes gets the answer it had; kept for six.
local PERIOD_MS = 120000
local period = math.floor(now_ms / PERIOD_MS)
local requests_now = prefix .. 'requests:' .. digits(period)
local mortal = false

local function answered()
  local found = redis.call('HMGET', requests_now, token, '')
  mortal = found[2]
  return found[1] or redis.call('HGET', prefix .. 'requests:' .. digits(period - 1), token)
end

local function answer(text)
  if mortal then
    redis.call('HSET', requests_now, token, text)
  else
    redis.call('HSET', requests_now, token, text, '', '')
    redis.call('PEXPIRE', requests_now, 3 * PERIOD_MS)
  end
  return text
end
