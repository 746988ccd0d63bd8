-- settle: blocked -> pending, scheduled, cancelled
-- NEEDS prefix
-- FOUND blocked ZSET, scheduled ZSET, unsettled ZSET
-- A job that comes from its parents stands behind what was there before: its tick is new, or that of its start time.
-- Returns its rank.
local function take_place(n)
  local job = read_job(n, 'priority', 'due_at')
  local due = whole(job[2]) and tonumber(job[2]) > now_ms
  local job_tick = due and digits(tonumber(job[2]) * 1000) or tick()
  local rank = rank_of(job_tick, job[1])
  redis.call('HSET', job_key(n), 'tick', job_tick, 'rank', rank)
  return rank
end

-- Nothing holds a blocked job back any more. It keeps its place, unless it takes one anew.
local function unblock(n, anew)
  redis.call('ZREM', named('blocked'), n)
  local job = read_job(n, 'shape', 'priority', 'due_at', 'rank')
  if not job or not job[1] or not whole(job[2]) or not whole(job[4]) then
    put_aside(n)
    return 'failed'
  end
  local rank = anew and take_place(n) or job[4]
  local due = whole(job[3]) and tonumber(job[3]) > now_ms
  local state = due and 'scheduled' or 'pending'
  redis.call('HSET', job_key(n), 'state', state)
  if due then
    schedule(n, job[3])
  else
    ready(n, job[1], rank)
  end
  return state
end

local function tell(child, n, parent)
  local edges = prefix .. 'blocked_by:' .. child
  local edge = redis.call('HGET', edges, n)
  local condition, parent_born = string.match(edge or '', '^(%l+):(%d*)$')
  local job = condition and read_job(child, 'state', 'held', 'shape')
  local group = job and group_of(job[3])
  if not job or job[1] ~= 'blocked' or (group and redis.call('HEXISTS', group_key(group), 'filling') == 1) then
    return -- it is not blocked any more, or nobody sees it yet: `open` lets it be told again
  end
  if parent_born == parent[2] and meets(condition, parent[1]) then
    redis.call('HSET', edges, n, 'met:' .. edge)
    if redis.call('HINCRBY', job_key(child), 'parents', -1) <= 0 then
      if job[2] then
        take_place(child) -- it is held still
      else
        event('settle', child, 'from', 'blocked', 'to', unblock(child, true), 'parent', n)
      end
    end
    return
  end
  redis.call('ZREM', named('blocked'), child)
  over(child, 'cancelled', 'dependency_failed', why_never(n, parent))
  event('settle', child, 'from', 'blocked', 'to', 'cancelled', 'reason', 'dependency_failed', 'parent', n)
end

-- Dependents of ended jobs hear of it, at most so many; the sweep goes on with the rest.
local function settle(limit)
  local told = 0
  while told < limit do
    local first = redis.call('ZRANGE', named('unsettled'), 0, 0, 'WITHSCORES')
    local n = first[1]
    if not n then
      break
    end
    local parent = read_job(n, unpack(PARENT))
    local children = {}
    if parent and has_ended(parent[1]) then
      children = redis.call('ZRANGEBYSCORE', prefix .. 'dependents:' .. n, '(' .. first[2], '+inf', 'LIMIT', 0,
        limit - told)
    end
    if #children < limit - told then
      redis.call('ZREM', named('unsettled'), n) -- all are told, or it waits or runs again
    else
      redis.call('ZADD', named('unsettled'), children[#children], n)
    end
    for _, child in ipairs(children) do
      tell(child, n, parent)
    end
    told = told + math.max(#children, 1)
  end
  return told
end
