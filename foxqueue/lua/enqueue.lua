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
-- ARGV[4] name
-- ARGV[5] shape
-- ARGV[6] priority 0-9
-- ARGV[7] retries
-- ARGV[8] retry_delay_ms
-- ARGV[9] env_digest
-- ARGV[10] env packed
-- ARGV[11] spec packed
-- FOUND job:<n> HASH, spec:<n> STRING
-- INCLUDE _clock _settings _instance _event _job _request _idle _ready
-- RETURNS {ok, instance, number, born} or {full, instance} when there are too many shapes
local earlier = answered()
if earlier then
  local n, born = string.match(earlier, '^(%d+):(%d+)$')
  return { 'ok', life, n, born }
end

-- At most this many shapes live: a worker looks at the head of each that it fits.
local MAX_SHAPES = 1000
if redis.call('HEXISTS', shapes, shape) == 0 and redis.call('HLEN', shapes) >= MAX_SHAPES then
  local empty = {}
  for _, known in ipairs(redis.call('HKEYS', shapes)) do
    if redis.call('EXISTS', prefix .. 'pending:' .. known) == 0 then
      empty[#empty + 1] = known
    end
  end
  if #empty == 0 then
    return { 'full', life }
  end
  redis.call('HSET', shapes, empty[1], '0') -- refused when memory is full, before anything is gone
  redis.call('HDEL', shapes, unpack(empty))
end

local n = digits(redis.call('INCR', next))
local born = tick()
local rank = rank_of(born, priority)
begin_life(candidate)
if env_digest ~= '' then
  redis.call('SET', env_blob, env, 'PX', 7776000000) -- 90 days from its last use
end
redis.call('SET', prefix .. 'spec:' .. n, spec)
redis.call('HSET', job_key(n), 'state', 'pending', 'name', name, 'shape', shape, 'priority', priority,
  'born', born, 'tick', born, 'rank', rank, 'attempts', '0', 'losses', '0', 'retries', retries,
  'retry_delay_ms', retry_delay_ms, 'env', env_digest, 'submitted_at', digits(now_ms))
ready(n, shape, rank)
event('enqueue', n)
answer(n .. ':' .. born)
return { 'ok', life, n, born }
