-- enqueue: - -> pending
-- KEYS[1] next STRING
-- KEYS[2] clock STRING
-- KEYS[3] settings HASH
-- KEYS[4] instance STRING
-- KEYS[5] events STREAM
-- KEYS[6] shapes HASH
-- KEYS[7] shapes_version STRING
-- KEYS[8] idle ZSET
-- KEYS[9] env_blob STRING where the environment is kept
-- ARGV[1] prefix
-- ARGV[2] token of the request, 16 bytes in hex
-- ARGV[3] candidate name of this namespace's life, if it has none
-- ARGV[4] env_digest of the jobs' environment, '' for none
-- ARGV[5] env packed, '' when it should be kept already
-- ARGV[6..] jobs six words each: name, shape, priority 0-9, retries, retry delay in ms, spec packed
-- FOUND job:<n> HASH, spec:<n> STRING
-- INCLUDE _clock _settings _begin _event _job _request _idle _ready
-- RETURNS {ok, instance, first number, its born}: the jobs have numbers and ticks in a row; {full, instance} when
-- RETURNS there are too many shapes, {missing, instance} when the environment is not kept: send it;
-- RETURNS {newer, instance} when the data are of a newer schema
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
local WORDS = 6
local fresh, rows, listed = 0, {}, {}
for i = 2, #jobs, WORDS do
  local shape = jobs[i]
  if not rows[shape] then
    rows[shape] = {}
    listed[shape] = redis.call('HEXISTS', shapes, shape) == 1
    fresh = fresh + (listed[shape] and 0 or 1)
  end
end
if fresh > 0 and redis.call('HLEN', shapes) + fresh > MAX_SHAPES then
  local empty = {}
  for _, old in ipairs(redis.call('HKEYS', shapes)) do
    if not rows[old] and redis.call('EXISTS', prefix .. 'pending:' .. old) == 0 then
      empty[#empty + 1] = old
    end
  end
  if redis.call('HLEN', shapes) + fresh - #empty > MAX_SHAPES then
    return { 'full', life }
  end
  redis.call('HSET', shapes, empty[1], '0') -- refused when memory is full, before anything is gone
  redis.call('HDEL', shapes, unpack(empty))
end

local total = #jobs / WORDS
local first = redis.call('INCRBY', next, total) - total + 1
begin_life(candidate)
if env ~= '' then
  redis.call('SET', env_blob, env, 'PX', ENV_MS)
elseif kept_ms and kept_ms < ENV_MS - DAY_MS then
  redis.call('PEXPIRE', env_blob, ENV_MS)
end
local born = ticks(total)
local specs = {}
for i = 0, total - 1 do
  local at = i * WORDS
  local n, job_tick = digits(first + i), digits(born + i)
  local shape, priority = jobs[at + 2], jobs[at + 3]
  local rank = rank_of(job_tick, priority)
  specs[#specs + 1] = prefix .. 'spec:' .. n
  specs[#specs + 1] = jobs[at + 6]
  redis.call('HSET', job_key(n), 'state', 'pending', 'name', jobs[at + 1], 'shape', shape, 'priority', priority,
    'born', job_tick, 'tick', job_tick, 'rank', rank, 'attempts', '0', 'losses', '0', 'retries', jobs[at + 4],
    'retry_delay_ms', jobs[at + 5], 'env', env_digest)
  local row = rows[shape]
  row[#row + 1] = rank
  row[#row + 1] = n
end
redis.call('MSET', unpack(specs))
for shape, row in pairs(rows) do
  ready_all(shape, row, listed[shape])
end
local n = digits(first)
if total == 1 then
  event('enqueue', n)
else
  event('enqueue', n, 'count', digits(total))
end
answer(n .. ':' .. digits(born))
return { 'ok', life, n, digits(born) }
