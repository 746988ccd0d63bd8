-- NEEDS prefix
-- FOUND blocked ZSET, scheduled ZSET
-- FOUND pending:<shape> ZSET job -> rank
-- A job that waits leaves its place.
local function take_out(n, state, shape_name)
  if state == 'pending' then
    redis.call('ZREM', prefix .. 'pending:' .. (shape_name or ''), n)
  else
    redis.call('ZREM', state == 'blocked' and named('blocked') or named('scheduled'), n)
  end
end
