-- NEEDS prefix token
-- FOUND lease_waiting:<device> ZSET token -> rank, turn:<device> STRING
-- Who leaves a line, or gets another device, passes on the turn that it had.
local function leave_line(name)
  redis.call('ZREM', prefix .. 'lease_waiting:' .. name, token)
  local turn = prefix .. 'turn:' .. name
  if string.match(redis.call('GET', turn) or '', '^%w+') == token then
    redis.call('DEL', turn)
    freed(name)
  end
end
