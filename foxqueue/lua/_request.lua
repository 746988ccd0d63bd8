-- NEEDS prefix token
-- FOUND requests:<minute> HASH token -> answer already given
-- A user's command that is sent again within a minute gets the answer it had; kept for three.
local minute = math.floor(now_ms / 60000)

local function answered()
  for back = 0, 2 do
    local answer = redis.call('HGET', prefix .. 'requests:' .. digits(minute - back), token)
    if answer then
      return answer
    end
  end
  return nil
end

local function answer(text)
  local key = prefix .. 'requests:' .. digits(minute)
  redis.call('HSET', key, token, text)
  redis.call('PEXPIRE', key, 180000)
  return text
end
