-- claim: pending -> running, failed
-- KEYS[1] claims HASH
-- KEYS[2] granted HASH
-- KEYS[3] running ZSET
-- KEYS[4] scheduled ZSET
-- KEYS[5] failed ZSET
-- KEYS[6] finished ZSET
-- KEYS[7] shapes HASH
-- KEYS[8] shapes_version STRING
-- KEYS[9] idle ZSET
-- KEYS[10] clock STRING
-- KEYS[11] settings HASH
-- KEYS[12] instance STRING
-- KEYS[13] events STREAM
-- ARGV[1] prefix
-- ARGV[2] worker its name, new for each process
-- ARGV[3] question counts the worker's claims; resending keeps it
-- ARGV[4] device uuid
-- ARGV[5] host
-- ARGV[6] version of the shapes that the worker has judged
-- ARGV[7] woken shapes for which it was woken, comma-separated
-- ARGV[8] waits 1 when the worker waits to be woken, 0 when it only looks or leaves
-- ARGV[9..] fitting shapes that the device can take now
-- FOUND job:<n> HASH, spec:<n> STRING
-- INCLUDE _drains _clock _settings _instance _event _job _device _idle _ready _ended _promote
-- RETURNS {ok, instance, number, fence, born, attempts, losses, retry_delay_ms, env digest, spec},
-- RETURNS {empty, instance, ms until the next scheduled job is due or ''}, {taken | stale, instance}
-- RETURNS or {shapes, instance, version, shape...}
local function granted_reply(n, run_fence)
  local job = read_job(n, 'born', 'attempts', 'losses', 'retry_delay_ms', 'env')
  local spec = redis.call('GET', prefix .. 'spec:' .. n)
  return { 'ok', life, n, run_fence, job[1], job[2], job[3], job[4] or '0', job[5] or '', spec }
end

local last = redis.call('HGET', claims, worker)
if last then
  local last_question, n = string.match(last, '^(%d+):(%d*)$')
  if tonumber(question) < tonumber(last_question) then
    return { 'stale', life }
  end
  if question == last_question then
    local job = n ~= '' and read_job(n, 'state', 'fence', 'worker', 'claim')
    if job and job[1] == 'running' and job[3] == worker and job[4] == question then
      return granted_reply(n, job[2])
    end
    return { 'stale', life }
  end
end

redis.call('HSET', claims, worker, question .. ':')
promote(20)

local wake_key = prefix .. 'wake:' .. worker
woken = woken .. ',' .. table.concat(redis.call('LRANGE', wake_key, 0, 99), ',')
redis.call('DEL', wake_key)
leave_idle(worker)

-- What this worker was woken for and leaves, another may take.
local function pass_on()
  for woken_shape in string.gmatch(woken, '[^,]+') do
    if redis.call('EXISTS', prefix .. 'pending:' .. woken_shape) == 1 then
      wake_one(woken_shape)
    end
  end
end

local current = redis.call('GET', shapes_version) or '0'
if current ~= version then
  pass_on()
  return { 'shapes', life, current, unpack(redis.call('HKEYS', shapes)) }
end
if not device_is_free(device) then
  pass_on()
  return { 'taken', life }
end

local function head()
  local best, best_rank, best_shape
  for _, shape in ipairs(fitting) do
    local first = redis.call('ZRANGE', prefix .. 'pending:' .. shape, 0, 0, 'WITHSCORES')
    if first[1] and (not best or tonumber(first[2]) < best_rank) then
      best, best_rank, best_shape = first[1], tonumber(first[2]), shape
    end
  end
  return best, best_shape
end

local function readable(n, shape)
  local job = read_job(n, 'state', 'shape', 'born', 'rank', 'attempts', 'losses', 'retry_delay_ms')
  local sound = job and job[1] == 'pending' and job[2] == shape and whole(job[3]) and whole(job[4])
    and whole(job[5]) and whole(job[6]) and whole(job[7] or '0')
  local spec = redis.pcall('STRLEN', prefix .. 'spec:' .. n)
  return sound and type(spec) == 'number' and spec > 0
end

-- A head that cannot be read is put aside, and the next one is taken.
local n, shape
for _ = 1, 20 do
  n, shape = head()
  if not n or readable(n, shape) then
    break
  end
  redis.call('ZREM', prefix .. 'pending:' .. shape, n)
  if redis.call('TYPE', job_key(n)).ok ~= 'hash' then
    redis.call('DEL', job_key(n))
  end
  over(n, 'failed', 'bad_payload', 'its record in Redis cannot be read')
  event('fail', n, 'reason', 'bad_payload')
  n = nil
end

if not n then
  pass_on()
  if waits == '1' then
    for _, fit in ipairs(fitting) do
      redis.call('ZADD', prefix .. 'idle:' .. fit, digits(now_ms), worker)
      redis.call('PEXPIRE', prefix .. 'idle:' .. fit, 60000)
      redis.call('SADD', prefix .. 'idle_shapes:' .. worker, fit)
    end
    redis.call('PEXPIRE', prefix .. 'idle_shapes:' .. worker, 60000)
    redis.call('ZADD', idle, digits(now_ms), worker)
  end
  local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
  return { 'empty', life, due and digits(math.max(tonumber(due) - now_ms, 0)) or '' }
end

local fence = tick()
local lease_ms = ttl_ms + margin_ms
redis.call('ZREM', prefix .. 'pending:' .. shape, n)
redis.call('HSET', claims, worker, question .. ':' .. n)
redis.call('SET', lease_key(device), fence, 'NX', 'PX', digits(lease_ms))
redis.call('HSET', granted, device, grant_text(fence, n))
redis.call('HSET', job_key(n), 'state', 'running', 'fence', fence, 'claim', question, 'worker', worker, 'host', host,
  'gpus', device, 'started_at', digits(now_ms), 'reason', '', 'detail', '')
redis.call('HINCRBY', job_key(n), 'attempts', 1)
redis.call('ZADD', running, digits(now_ms + lease_ms), n)
event('claim', n, 'worker', worker, 'device', device, 'fence', fence)
pass_on()
return granted_reply(n, fence)
