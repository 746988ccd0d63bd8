-- import: puts a namespace back from a file, in steps: begin, then records in pieces, then end
-- KEYS[1] next STRING
-- KEYS[2] paused HASH
-- KEYS[3] running ZSET
-- KEYS[4] granted HASH
-- KEYS[5] clock STRING
-- KEYS[6] settings HASH
-- KEYS[7] instance STRING
-- KEYS[8] events STREAM
-- ARGV[1] prefix
-- ARGV[2] file 32 hex digits that name it
-- ARGV[3] by who asks
-- ARGV[4] candidate name of this namespace's life, if it has none
-- ARGV[5] step begin, put or end
-- ARGV[6] last_number that the file's namespace had given out
-- ARGV[7] last_known tick of the file's namespace
-- ARGV[8..] records: of begin settings (field, value, …), of end what is paused (scope, text, …), of put records,
-- ARGV each a kind and its words, see the functions below; a list stands behind its length
-- FOUND blocked ZSET, expiry ZSET, failed ZSET, finished ZSET, groups ZSET, notices ZSET, scheduled ZSET
-- FOUND unfinished HASH, unique HASH, unsettled ZSET, workers ZSET
-- FOUND job:<n> HASH, spec:<n> STRING, result:<n> STRING, value:<n> STRING, log:<n> STREAM, history:<n> LIST
-- FOUND blocked_by:<n> HASH, dependents:<n> ZSET, group:<group> HASH, members:<group> ZSET, env:<digest> STRING
-- INCLUDE _clock _aging _settings _begin _event _job _group _device _idle _ready _ended _parents
-- RETURNS {ok, instance}, {done, instance} that file has come whole before, {other, instance} another has come half,
-- RETURNS {no, instance, last number given out} the namespace has had jobs that are not the file's,
-- RETURNS {newer, instance} when the data are of a newer schema
local PAUSED = ': import in progress'
local ENV_MS = 7776000000
local LEASE = { ttl_ms = true, beat_ms = true, margin_ms = true }
if schema > tonumber(SCHEMA) then
  return { 'newer', life }
end
local mark = redis.call('HGET', settings, 'import')
if mark == file .. ' whole' then
  return { 'done', life }
end
if mark and mark ~= file .. ' open' and string.sub(mark, -5) == ' open' then
  return { 'other', life }
end
local had = redis.call('GET', next)
if mark ~= file .. ' open' and (had or step ~= 'begin') then
  return { 'no', life, had or '0' }
end

local at = 0
local function take()
  at = at + 1
  return records[at]
end

local function take_list()
  local list = {}
  for i = 1, tonumber(take()) do
    list[i] = take()
  end
  return list
end

-- From here on nothing is started, and numbers and ticks are past those of the file: what is submitted meanwhile is
-- not in its way.
local function begin()
  redis.call('HSET', settings, 'import', file .. ' open')
  begin_life(candidate)
  redis.call('HSETNX', paused, '*', by .. PAUSED)
  if not had then
    redis.call('SET', next, last_number)
    event('import', '', 'by', by, 'step', 'begin')
  end
  if tonumber(last_known) > last_tick then
    redis.call('SET', clock, last_known)
  end
  local served = redis.call('ZCARD', named('workers')) > 0
  for i = 1, #records, 2 do
    if not (served and LEASE[records[i]]) then -- workers do not learn of another lease
      redis.call('HSET', settings, records[i], records[i + 1])
    end
  end
end

local function put_env()
  local digest, packed = take(), take()
  redis.call('SET', prefix .. 'env:' .. digest, packed, 'PX', ENV_MS)
end

-- What a group is; its jobs are counted one by one.
local function put_group()
  local name, began, fields = take(), take(), take_list()
  redis.call('ZADD', named('groups'), 'NX', began, name)
  for i = 1, #fields, 2 do
    redis.call('HSETNX', group_key(name), fields[i], fields[i + 1])
  end
end

-- What a job waits for, or did. A parent that has ended is told of later, as if it had ended just now; one that is not
-- there is nothing to wait for: its number is returned.
local function tie_again(n, state, edges)
  local gone
  for i = 1, #edges, 2 do
    local parent, edge = edges[i], edges[i + 1]
    local parent_born = string.match(edge, ':(%d*)$')
    local open = state == 'blocked' and string.match(edge, '^%l+:%d*$')
    local found = read_job(parent, 'state', 'born')
    if found and found[1] and found[2] == parent_born then
      redis.call('ZADD', prefix .. 'dependents:' .. parent, n, n)
      redis.call('HSETNX', job_key(parent), 'dependents', '1')
      if open and has_ended(found[1]) then
        redis.call('ZADD', named('unsettled'), 'LT', digits(tonumber(n) - 1), parent)
      end
    elseif open then
      gone = parent
    end
  end
  if #edges > 0 then
    redis.call('HSET', prefix .. 'blocked_by:' .. n, unpack(edges))
  end
  return gone
end

-- Where a job stands. since: when it is due, was blocked, or ended.
local function place(n, state, since, shape_name, rank, expires_at, started)
  if state == 'pending' then
    ready(n, shape_name, rank)
  elseif state == 'scheduled' then
    redis.call('ZADD', named('scheduled'), since, n)
  elseif state == 'blocked' then
    redis.call('ZADD', named('blocked'), since, n)
  else
    redis.call('ZADD', named(state == 'failed' and state or started and 'finished' or 'dropped'), since, n)
  end
  if expires_at and is_waiting(state) then
    redis.call('ZADD', named('expiry'), expires_at, n)
  end
end

-- What counts a job.
local function count_in(n, state, owner, shape_name, key)
  if owner and owner ~= '' and is_waiting(state) then
    redis.call('HINCRBY', named('unfinished'), owner, 1)
  end
  local group = group_of(shape_name)
  if group then
    redis.call('ZADD', prefix .. 'members:' .. group, n, n)
    redis.call('ZADD', named('groups'), 'NX', digits(now_ms), group) -- it may have been purged just now
    count_in_group(shape_name, 'total', 1)
    if has_ended(state) then
      count_in_group(shape_name, state, 1)
    end
  end
  local holder = key and redis.call('HGET', named('unique'), key)
  local holding = holder and read_job(holder, 'state')
  if key and not (holding and is_waiting(holding[1])) then
    redis.call('HSET', named('unique'), key, n) -- else that of another unfinished one
  end
end

local function keep_output(n, pieces, runs)
  for i = 1, #pieces, 2 do
    redis.pcall('XADD', prefix .. 'log:' .. n, pieces[i], 'data', pieces[i + 1]) -- refused out of order
  end
  if #runs > 0 then
    redis.call('RPUSH', prefix .. 'history:' .. n, unpack(runs))
  end
end

local function put_job()
  local n, state, since, notice = take(), take(), take(), take()
  local fields, spec, result, value = take_list(), take(), take(), take()
  local pieces, runs, edges = take_list(), take_list(), take_list()
  if redis.call('EXISTS', job_key(n)) == 1 then
    return -- by an earlier copy of this call, or of this import
  end
  redis.call('HSET', job_key(n), unpack(fields))
  for key, text in pairs({ [prefix .. 'spec:' .. n] = spec, [prefix .. 'result:' .. n] = result,
    [prefix .. 'value:' .. n] = value }) do
    if text ~= '' then
      redis.call('SET', key, text)
    end
  end
  keep_output(n, pieces, runs)
  local job = read_job(n, 'user', 'shape', 'rank', 'expires_at', 'unique', 'started_at')
  count_in(n, state, job[1], job[2], job[5])
  place(n, state, since, job[2], job[3], job[4], job[6])
  if notice ~= '' then
    redis.call('ZADD', named('notices'), notice, n)
  end
  local gone = tie_again(n, state, edges)
  if gone then
    redis.call('ZREM', named('blocked'), n)
    over(n, 'cancelled', 'dependency_failed', why_never(gone))
    event('settle', n, 'from', 'blocked', 'to', 'cancelled', 'reason', 'dependency_failed', 'parent', gone)
  end
end

local function finish()
  local text = redis.call('HGET', paused, '*')
  if text and string.sub(text, -#PAUSED) == PAUSED then
    redis.call('HDEL', paused, '*')
  end
  for i = 1, #records, 2 do
    redis.call('HSETNX', paused, records[i], records[i + 1])
  end
  redis.call('HSET', settings, 'import', file .. ' whole')
  event('import', '', 'by', by, 'step', 'end')
  if redis.call('HEXISTS', paused, '*') == 0 then
    wake_all()
  end
end

local PUT = { group = put_group, job = put_job }
PUT.env = put_env
if step == 'begin' then
  begin()
elseif step == 'end' then
  finish()
else
  while at < #records do
    PUT[take()]()
  end
end
return { 'ok', life }
