-- NEEDS shapes shapes_version prefix
-- FOUND pending:<shape> ZSET job -> rank
-- The only way into pending. The rank is worked out from the tick: a priority level is a head start in time.
local function rank_of(job_tick, job_priority)
  return digits(tonumber(job_tick) - tonumber(job_priority) * aging_us)
end

local function ready(n, shape_name, rank)
  redis.call('ZADD', prefix .. 'pending:' .. shape_name, rank, n)
  if redis.call('HSETNX', shapes, shape_name, digits(now_ms)) == 1 then
    redis.call('SET', shapes_version, tick()) -- a count would repeat after lost data
    wake_all()
  else
    wake_one(shape_name)
  end
end
