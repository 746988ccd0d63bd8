-- requeue: failed, cancelled -> pending, blocked
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] finished ZSET
-- KEYS[4] failed ZSET
-- KEYS[5] clock STRING
-- KEYS[6] settings HASH
-- KEYS[7] instance STRING
-- KEYS[8] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] number
-- ARGV[4] born of the job meant, or '' for whatever has the number
-- ARGV[5] by who asks
-- FOUND blocked ZSET, expiry ZSET, notices ZSET, unfinished HASH, unique HASH, unsettled ZSET
-- FOUND job:<n> HASH, spec:<n> STRING, env:<digest> STRING, result:<n> STRING, value:<n> STRING
-- INCLUDE _drains _clock _aging _settings _event _job _group _request _meant _device _idle _ready _parents _capacity
-- RETURNS {ok, instance}, {no, instance} for a job that is neither failed nor cancelled, {gone, instance} when its
-- RETURNS environment is no longer kept, {unreadable, instance} when its record cannot be read,
-- RETURNS {missing, instance}, {stale, instance} the number is another job's,
-- RETURNS {exists, instance, number} its unique key is another unfinished job's,
-- RETURNS {never, instance, why} what it depends on can no longer be met,
-- RETURNS {full, instance, queue | user, limit, current}
local job, reply = meant('shape', 'priority', 'env', 'user', 'unique', 'born')
if not job then
  return reply
end
local before = job[1]
if before ~= 'failed' and before ~= 'cancelled' then
  return { answer('no'), life }
end
local spec = redis.pcall('STRLEN', prefix .. 'spec:' .. number)
if not job[2] or not whole(job[3]) or not whole(job[7]) or type(spec) ~= 'number' or spec == 0 then
  return { answer('unreadable'), life }
end
if job[4] and job[4] ~= '' and redis.call('EXISTS', prefix .. 'env:' .. job[4]) == 0 then
  return { answer('gone'), life }
end
local holder = job[6] and redis.call('HGET', named('unique'), job[6])
if holder and holder ~= number then
  local other = read_job(holder, 'state', 'unique')
  if other and other[1] and not has_ended(other[1]) and other[2] == job[6] then
    answer('exists:' .. holder)
    return { 'exists', life, holder }
  end
end

-- What it waited for is judged anew: a dependency that was met by a job that is gone stays met.
local edges, open = {}, 0
local known = redis.call('HGETALL', prefix .. 'blocked_by:' .. number)
for i = 1, #known, 2 do
  local met, edge = string.match(known[i + 1], '^(met:)(.*)$')
  local condition, parent_born = string.match(edge or known[i + 1], '^(%l+):(%d*)$')
  local parent = read_job(known[i], unpack(PARENT))
  local there = parent and parent[1] and parent[2] == parent_born
  local meaning = there and judged(parent, condition) or (met or condition == 'ended') and 'met' or 'never'
  if meaning == 'never' then
    local why = why_never(known[i], there and parent)
    answer('never:' .. why)
    return { 'never', life, why }
  end
  open = open + (meaning == 'open' and 1 or 0)
  edges[#edges + 1] = { known[i], condition, parent_born, meaning, not there or parent[5] }
end
-- Runs of its unique key that others waited for are waited for by this one too.
for _, edge in ipairs(holder and holder ~= number and runs_before(holder) or {}) do
  -- What it waits for already ends its wait once, whatever for.
  if edge[1] ~= number and redis.call('HEXISTS', prefix .. 'blocked_by:' .. number, edge[1]) == 0 then
    edges[#edges + 1] = edge
    open = open + 1
  end
end
local full = too_many(job[5], 1, 1)
if full then
  return full
end

-- It begins anew, at the end of its priority, with the identity that it had. What an old run may still say about
-- itself goes by `settled` and the fence, which stay.
local job_tick = tick()
local rank = rank_of(job_tick, job[3])
redis.call('ZREM', finished, number)
redis.call('ZREM', failed, number)
redis.call('ZREM', named('dropped'), number)
redis.call('ZREM', named('unsettled'), number)
redis.call('ZREM', named('notices'), number)
redis.call('ZREM', named('expiry'), number)
redis.call('HSET', job_key(number), 'state', 'pending', 'reason', '', 'detail', '', 'tick', job_tick, 'rank', rank,
  'attempts', '0', 'losses', '0')
redis.call('HDEL', job_key(number), 'cancel_requested', 'exit_code', 'due_at', 'started_at', 'finished_at', 'worker',
  'host', 'gpus', 'held', 'expires_at', 'poison', 'boot', 'release_requested')
redis.call('UNLINK', prefix .. 'result:' .. number, prefix .. 'value:' .. number)
if job[5] and job[5] ~= '' then
  redis.call('HINCRBY', named('unfinished'), job[5], 1)
end
if job[6] then
  redis.call('HSET', named('unique'), job[6], number)
end
if redis.call('HEXISTS', job_key(number), 'notify') == 1 then
  redis.call('HSET', job_key(number), 'notify', '0')
end
count_in_group(job[2], before, -1)
local to = 'pending'
if #edges > 0 then
  tie(number, edges)
  redis.call('HSET', job_key(number), 'parents', digits(open))
end
if open > 0 then
  to = 'blocked'
  redis.call('HSET', job_key(number), 'state', to)
  redis.call('ZADD', named('blocked'), digits(now_ms), number)
else
  ready(number, job[2], rank)
end
event('requeue', number, 'from', before, 'to', to, 'by', by)
return { answer('ok'), life }
