-- enqueue: - -> pending, scheduled, blocked, cancelled
-- KEYS[1] next STRING
-- KEYS[2] running ZSET
-- KEYS[3] granted HASH
-- KEYS[4] shapes HASH
-- KEYS[5] clock STRING
-- KEYS[6] settings HASH
-- KEYS[7] instance STRING
-- KEYS[8] events STREAM
-- KEYS[9] env_blob STRING where the environment is kept
-- ARGV[1] prefix
-- ARGV[2] token of the request, 16 bytes in hex
-- ARGV[3] candidate name of this namespace's life, if it has none
-- ARGV[4] env_digest of the jobs' environment, '' for none
-- ARGV[5] env packed, '' when it should be kept already
-- ARGV[6] user who submits, '' for nobody
-- ARGV[7] sweep id of the sweep whose group this is a piece of, or ''
-- ARGV[8..] jobs seven words each: name, shape with its group, priority 0-9, retries, retry delay in ms, spec packed, more
-- FOUND blocked ZSET, unfinished HASH
-- FOUND job:<n> HASH, spec:<n> STRING, members:<group> ZSET job -> its number
-- INCLUDE _clock _aging _settings _begin _event _job _group _request _idle _ready
-- RETURNS {ok, instance, first number, its born}: the jobs have numbers and ticks in a row; {full, instance, shapes |
-- RETURNS queue | user, limit, current}, {missing, instance} when the environment is not kept: send it;
-- RETURNS {newer, instance} when the data are of a newer schema,
-- RETURNS {exists, instance, number, born} of the unfinished job with this unique key,
-- RETURNS {unknown | stale, instance, number} of a parent, {taken, instance, group} that a sweep fills, or that is there
local earlier = answered()
if earlier then
  local n, born = string.match(earlier, '^(%d+):(%d+)$')
  return { 'ok', life, n, born }
end
if schema > tonumber(SCHEMA) then
  return { 'newer', life }
end
local kept_ms = env_digest ~= '' and redis.call('PTTL', env_blob)
if kept_ms == -2 and env == '' then
  return { 'missing', life }
end

-- At most this many shapes live: a worker looks at the head of each that it fits.
local MAX_SHAPES = 1000
local DAY_MS = 86400000
local ENV_MS = 90 * DAY_MS -- an environment is kept so long from its last use; written down once a day
local WORDS = 7
local NOTHING = {}
local fresh, rows, listed, members, wishes, replaced, own = 0, {}, {}, {}, {}, 0, 0

-- What has no group, no wishes and no limits does without all this.
local limited = max_unfinished < OFF or max_unfinished_user < OFF
local special = limited or expires_ms < OFF
for i = 2, #jobs, WORDS do
  special = special or jobs[i + 5] ~= '' or group_of(jobs[i])
end
local rare
if special then
  -- HERE _device _ended _waiting _parents _settle _cancel _capacity _wishes
  rare = { too_many = too_many, judge_wish = judge_wish, grant_wish = grant_wish,
    join_group = join_group, over = over, replace = replace, settle = settle }
end

for i = 2, #jobs, WORDS do
  local shape, more = jobs[i], jobs[i + 5]
  if not rows[shape] then
    rows[shape], members[shape] = {}, {}
    listed[shape] = redis.call('HEXISTS', shapes, shape) == 1
    fresh = fresh + (listed[shape] and 0 or 1)
    local group = group_of(shape)
    local filling_now = group and redis.call('HGET', group_key(group), 'filling')
    if filling_now and filling_now ~= sweep
        or group and sweep ~= '' and not filling_now and redis.call('EXISTS', group_key(group)) == 1 then
      return { 'taken', life, group }
    end
  end
  if more ~= '' or expires_ms < OFF then
    local wish, refusal = rare.judge_wish(more)
    if refusal then
      return refusal
    end
    wishes[i] = wish
    replaced, own = replaced + (wish.ends and 1 or 0), own + (wish.own and 1 or 0)
  end
end
local total = #jobs / WORDS
local full = limited and rare.too_many(user, total - replaced, total - own)
if full then
  return full
end
if fresh > 0 and redis.call('HLEN', shapes) + fresh > MAX_SHAPES then
  local empty = {}
  for _, old in ipairs(redis.call('HKEYS', shapes)) do
    if not rows[old] and redis.call('EXISTS', prefix .. 'pending:' .. old) == 0 then
      empty[#empty + 1] = old
    end
  end
  if redis.call('HLEN', shapes) + fresh - #empty > MAX_SHAPES then
    return { 'full', life, 'shapes', digits(MAX_SHAPES), digits(MAX_SHAPES) }
  end
  redis.call('HSET', shapes, empty[1], '0') -- refused when memory is full, before anything is gone
  redis.call('HDEL', shapes, unpack(empty))
end

local first = redis.call('INCRBY', next, total) - total + 1
begin_life(candidate)
if env ~= '' then
  redis.call('SET', env_blob, env, 'PX', ENV_MS)
elseif kept_ms and kept_ms < ENV_MS - DAY_MS then
  redis.call('PEXPIRE', env_blob, ENV_MS)
end
local born = ticks(total)
local specs, never, to, alike = {}, {}, 'pending', true
for i = 0, total - 1 do
  local at = i * WORDS
  local n, job_tick = digits(first + i), digits(born + i)
  local shape, priority, wish = jobs[at + 2], jobs[at + 3], wishes[at + 2]
  local rank = rank_of(wish and wish.tick or job_tick, priority)
  specs[#specs + 1] = prefix .. 'spec:' .. n
  specs[#specs + 1] = jobs[at + 6]
  redis.call('HSET', job_key(n), 'state', wish and wish.state or 'pending', 'name', jobs[at + 1], 'shape', shape,
    'priority', priority, 'born', job_tick, 'tick', wish and wish.tick or job_tick, 'rank', rank, 'attempts', '0',
    'losses', '0', 'retries', jobs[at + 4], 'retry_delay_ms', jobs[at + 5], 'env', env_digest, 'user', user,
    unpack(wish and wish.fields or NOTHING))
  local state = wish and wish.state or 'pending'
  alike, to = alike and (i == 0 or to == state), state
  if wish then
    rare.grant_wish(n, wish, shape)
    if wish.never then
      never[#never + 1] = { n, wish.never }
    end
  end
  if to == 'pending' then
    local row = rows[shape]
    row[#row + 1] = rank
    row[#row + 1] = n
  end
  if group_of(shape) then
    local joined = members[shape]
    joined[#joined + 1] = n
    joined[#joined + 1] = n
  end
end
redis.call('MSET', unpack(specs))
if user ~= '' then
  redis.call('HINCRBY', named('unfinished'), user, total)
end
for shape, joined in pairs(members) do
  if joined[1] then
    rare.join_group(group_of(shape), joined)
  end
end
for shape, row in pairs(rows) do
  if row[1] then
    ready_all(shape, row, listed[shape])
  end
end
local n = digits(first)
if total == 1 and to == 'pending' then
  event('enqueue', n, 'by', user)
elseif alike then
  event('enqueue', n, 'by', user, 'to', to, 'count', digits(total))
else
  for i = 0, total - 1 do
    local wish = wishes[i * WORDS + 2]
    event('enqueue', digits(first + i), 'by', user, 'to', wish and wish.state or 'pending')
  end
end
for _, child in ipairs(never) do
  redis.call('ZREM', named('blocked'), child[1])
  rare.over(child[1], 'cancelled', 'dependency_failed', child[2])
  event('settle', child[1], 'from', 'blocked', 'to', 'cancelled', 'reason', 'dependency_failed')
end
local ends = #never > 0
for _, wish in pairs(wishes) do
  rare.replace(wish)
  ends = ends or wish.replaces
end
if ends then
  rare.settle(100)
end
answer(n .. ':' .. digits(born))
return { 'ok', life, n, digits(born) }
