-- NEEDS user sweep prefix
-- FOUND blocked ZSET, expiry ZSET, filling ZSET, groups ZSET, scheduled ZSET, unique HASH
-- FOUND job:<n> HASH, members:<group> ZSET job -> its number, awaited:<group> SET
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

-- What a wish adds to the job's own fields. `notify` counts how often its end was tried to be told.
local function fields_of(wish)
  local fields = {}
  local function add(name, value)
    if value then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  add('due_at', wish.due)
  add('expires_at', wish.expires_at)
  add('held', wish.held)
  add('unique', wish.unique)
  add('notify', wish.notify and '0')
  add('parents', #wish.edges > 0 and digits(wish.open))
  return fields
end

-- A unique key is that of one job at a time, down to its last process.
local function judge_unique(wish)
  local holder = redis.call('HGET', named('unique'), wish.unique)
  local job = holder and read_job(holder, 'state', 'shape', 'worker', 'born', 'unique', 'dependents', 'user')
  if not job or not job[1] or job[5] ~= wish.unique then
    return
  end
  if not has_ended(job[1]) then
    if wish.exists ~= 'replace' then
      return { 'exists', life, holder, job[4] or '' }
    end
    wish.replaces, wish.replaced, wish.ends = holder, job, is_waiting(job[1])
    wish.own = wish.ends and job[7] == user
    if not wish.ends then
      wish.edges[1] = { holder, 'ended', job[4] or '', 'open', job[6] }
      wish.open = 1
    end
  end
  for _, edge in ipairs(runs_before(holder)) do
    wish.edges[#wish.edges + 1] = edge
    wish.open = wish.open + 1
  end
end

-- A wish as it stands now, before anything is written: or nil and the answer that refuses it.
local function judge_wish(text)
  local wish, after = read_wish(text)
  local due = wish.at_ms and tonumber(wish.at_ms) or wish.delay_ms and now_ms + tonumber(wish.delay_ms)
  if due and due > now_ms then
    wish.due, wish.tick = digits(due), digits(due * 1000)
  end
  if wish.expires_ms == 'off' then
    wish.expires_at = nil
  elseif wish.expires_ms then
    wish.expires_at = digits(now_ms + tonumber(wish.expires_ms))
  elseif expires_ms < OFF then
    wish.expires_at = digits(math.max(due or 0, now_ms) + expires_ms) -- the namespace's own, from its start time
  end
  wish.edges, wish.open = {}, 0
  local refusal = wish.unique and judge_unique(wish)
  if refusal then
    return nil, refusal
  end
  local of_key = #wish.edges -- one more for the same parent takes the place of such an edge
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
    if meaning == 'never' and sweep ~= '' then
      meaning = 'open' -- told when the group is shown: nobody sees an end of what nobody sees
    end
    if meaning == 'never' then
      wish.never = wish.never or why_never(n, parent)
    end
    local at = #wish.edges + 1
    for i = 1, of_key do
      at = wish.edges[i][1] == n and i or at
    end
    wish.open = wish.open + (meaning == 'open' and not wish.edges[at] and 1 or 0)
    wish.edges[at] = { n, condition, parent[2] or '', meaning, parent[5] }
  end
  wish.state = (wish.open > 0 or wish.held or wish.never) and 'blocked' or wish.due and 'scheduled' or 'pending'
  wish.fields = fields_of(wish)
  return wish
end

-- Where a new job stands that waits for something, and who is to know of it.
local function grant_wish(n, wish, shape_name)
  if #wish.edges > 0 then
    tie(n, wish.edges)
    for _, edge in ipairs(sweep ~= '' and wish.edges or {}) do
      redis.call('SADD', prefix .. 'awaited:' .. group_of(shape_name), edge[1])
    end
  end
  if wish.state == 'blocked' then
    redis.call('ZADD', named('blocked'), digits(now_ms), n)
  elseif wish.state == 'scheduled' then
    schedule(n, wish.due)
  end
  if wish.expires_at then
    redis.call('ZADD', named('expiry'), wish.expires_at, n)
  end
  if wish.unique then
    redis.call('HSET', named('unique'), wish.unique, n)
  end
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
    cancel_one(wish.replaces, wish.replaced, user ~= '' and user or 'a newer job')
  end
end
