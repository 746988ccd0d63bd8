-- NEEDS prefix
-- FOUND idle ZSET, scheduled ZSET, shapes HASH, shapes_version STRING
-- FOUND pending:<shape> ZSET job -> rank
-- The rank is worked out from the tick: a priority level is a head start in time.
local function rank_of(job_tick, job_priority)
  return digits(tonumber(job_tick) - tonumber(job_priority) * aging())
end

-- The only way into pending, for jobs of one shape: rank, job, rank, job, … `known`: the shape is among the known.
local function ready_all(shape_name, rows, known)
  redis.call('ZADD', prefix .. 'pending:' .. shape_name, unpack(rows))
  local new = not known and redis.call('HSETNX', named('shapes'), shape_name, digits(now_ms)) == 1
  if new then
    redis.call('SET', named('shapes_version'), tick()) -- a count would repeat after lost data
  end
  if new then
    wake_all() -- whether or not it may start: who has judged a shape stands under it, and is woken when it may
  elseif may_start(shape_name) then
    wake(shape_name, #rows / 2)
  end
end

local function ready(n, shape_name, rank)
  ready_all(shape_name, { rank, n }, false)
end

-- A job that starts at a time. An idle worker asks again when the next one is due, as far as it knows: sooner now.
local function schedule(n, due)
  local first = redis.call('ZRANGE', named('scheduled'), 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', named('scheduled'), due, n)
  if not first or tonumber(due) < tonumber(first) then
    local newest = redis.call('ZREVRANGE', named('idle'), 0, 0)[1]
    if newest then
      leave_idle(newest)
      send_token(newest, '*')
    end
  end
end
