-- NEEDS user sweep prefix
-- FOUND blocked ZSET, expiry ZSET, filling ZSET, groups ZSET, scheduled ZSET, unique HASH
-- FOUND job:<n> HASH, members:<group> ZSET job -> its number
-- What few jobs ask for, a line `name=value` each: after (`<parent>:<its born or ''>:<condition>`, repeated), delay_ms,
-- at_ms, expires_ms, unique, exists (refuse, return or replace), held, notify.
local function read_wish(text)
  local wish, after = {}, {}
  for name, value in string.gmatch(text, '([%l_]+)=([^\n]*)\n') do
    if name == 'after' then
      after[#after + 1] = value
    else
      wish[name] = value
    end
  end
  return wish, after
end

-- A wish as it stands now, before anything is written: or nil and the answer that refuses it.
local function judge_wish(text)
  local wish, after = read_wish(text)
  local due = wish.at_ms and tonumber(wish.at_ms) or wish.delay_ms and now_ms + tonumber(wish.delay_ms)
  if due and due > now_ms then
    wish.due, wish.tick = digits(due), digits(due * 1000)
  end
  wish.expires_at = wish.expires_ms and digits(now_ms + tonumber(wish.expires_ms))
  wish.edges, wish.open = {}, 0
  local holder = wish.unique and redis.call('HGET', named('unique'), wish.unique)
  if holder then
    local job = read_job(holder, 'state', 'shape', 'worker', 'born', 'unique')
    if job and job[1] and not has_ended(job[1]) and job[5] == wish.unique then
      if wish.exists ~= 'replace' then
        return nil, { 'exists', life, holder, job[4] or '' }
      end
      wish.replaces, wish.replaced, wish.ends = holder, job, is_waiting(job[1])
      if not wish.ends then
        wish.edges[1] = { holder, 'ended', job[4] or '', 'open' } -- its processes are still to go
        wish.open = 1
      end
    end
  end
  for _, line in ipairs(after) do
    local n, parent_born, condition = string.match(line, '^(%d+):(%d*):(%l+)$')
    local parent = read_job(n, unpack(PARENT))
    if not parent or not parent[1] then
      return nil, { 'unknown', life, n }
    end
    if parent_born ~= '' and parent[2] ~= parent_born then
      return nil, { 'stale', life, n }
    end
    local meaning = judged(parent, condition)
    if n == wish.replaces and meaning == 'open' and wish.ends then
      meaning = meets(condition, 'cancelled') and 'met' or 'never'
      parent[1], parent[3] = 'cancelled', 'cancelled_by_user'
    end
    if meaning == 'never' then
      wish.never = wish.never or why_never(n, parent)
    elseif meaning == 'open' then
      wish.open = wish.open + 1
    end
    wish.edges[#wish.edges + 1] = { n, condition, parent[2] or '', meaning }
  end
  return wish
end

local function expires(n, at)
  redis.call('HSET', job_key(n), 'expires_at', at)
  redis.call('ZADD', named('expiry'), at, n)
end

-- Write down what a new job asks for. Returns the state that it begins in, where it stands then.
local function grant_wish(n, wish)
  local state = 'pending'
  if wish.due then
    redis.call('HSET', job_key(n), 'due_at', wish.due)
    state = 'scheduled'
  end
  if #wish.edges > 0 then
    tie(n, wish.edges)
  end
  if wish.held then
    redis.call('HSET', job_key(n), 'held', wish.held)
  end
  if wish.open > 0 or wish.held or wish.never then
    state = 'blocked'
    redis.call('ZADD', named('blocked'), digits(now_ms), n)
  elseif wish.due then
    redis.call('ZADD', named('scheduled'), wish.due, n)
  end
  if wish.expires_at then
    expires(n, wish.expires_at)
  end
  if wish.unique then
    redis.call('HSET', job_key(n), 'unique', wish.unique)
    redis.call('HSET', named('unique'), wish.unique, n)
  end
  if wish.notify then
    redis.call('HSET', job_key(n), 'notify', '0') -- how often its end was tried to be told
  end
  if state ~= 'pending' then
    redis.call('HSET', job_key(n), 'state', state)
  end
  return state
end

-- members: number, number, number, number, … as ZADD wants them.
local function join_group(group, joined)
  redis.call('ZADD', prefix .. 'members:' .. group, unpack(joined))
  redis.call('ZADD', named('groups'), 'NX', digits(now_ms), group)
  redis.call('HSETNX', group_key(group), 'created_at', digits(now_ms))
  redis.call('HSETNX', group_key(group), 'by', user)
  redis.call('HINCRBY', group_key(group), 'total', #joined / 2)
  if sweep ~= '' then
    redis.call('HSET', group_key(group), 'filling', sweep)
    redis.call('HINCRBY', group_key(group), 'filled', #joined / 2)
    redis.call('ZADD', named('filling'), digits(now_ms), group)
  end
end

-- A job whose unique key another has now is cancelled.
local function replace(wish)
  if wish.replaces then
    cancel_one(wish.replaces, wish.replaced, user)
  end
end
