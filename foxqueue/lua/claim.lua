-- claim: pending -> running, failed
-- KEYS[1] claims HASH
-- KEYS[2] paused HASH
-- KEYS[3] running ZSET
-- KEYS[4] granted HASH
-- KEYS[5] scheduled ZSET
-- KEYS[6] shapes HASH
-- KEYS[7] shapes_version STRING
-- KEYS[8] idle ZSET
-- KEYS[9] clock STRING
-- KEYS[10] settings HASH
-- KEYS[11] instance STRING
-- KEYS[12] events STREAM
-- ARGV[1] prefix
-- ARGV[2] worker its name, new for each process
-- ARGV[3] question counts the worker's claims; resending keeps it
-- ARGV[4] device uuid
-- ARGV[5] host
-- ARGV[6] boot id of the host, '' when unknown
-- ARGV[7] version of the shapes that the worker has judged
-- ARGV[8] woken shapes for which it was woken, comma-separated
-- ARGV[9] waits 1 when the worker waits to be woken, 0 when it only looks or leaves
-- ARGV[10] declares MiB that a job of each fitting shape declares, comma-separated; '' but for slots
-- ARGV[11] room MiB of the whole device, for slots
-- ARGV[12..] fitting shapes that the device can take now
-- FOUND expiry ZSET
-- FOUND lease_waiting:<device> ZSET token -> rank, turn:<device> STRING
-- FOUND job:<n> HASH, spec:<n> STRING
-- INCLUDE _drains _clock _aging _settings _event _job _group _device _idle
-- RETURNS {ok, instance, number, fence, born, attempts, losses, retry_delay_ms, env digest, spec,
-- RETURNS shape},
-- RETURNS {empty, instance, ms until the next scheduled job is due or ''}, {taken | stale, instance},
-- RETURNS {yield, instance} when who waits for a lease of the device ranks before all jobs, and has been called,
-- RETURNS {newer, instance} when the data are of a newer schema
-- RETURNS or {shapes, instance, version, shape...}
-- What a worker needs of a job, in this order.
local FIELDS = { 'state', 'shape', 'born', 'rank', 'attempts', 'losses', 'retry_delay_ms', 'env', 'fence', 'worker',
  'claim', 'expires_at', 'release_requested' }

local function granted_reply(n, run_fence, job, attempts, spec)
  return { 'ok', life, n, run_fence, job[3], attempts, job[6], job[7] or '0', job[8] or '', spec, job[2] }
end

local last = redis.call('HGET', claims, worker)
if last then
  local last_question, n = string.match(last, '^(%d+):(%d*)$')
  if tonumber(question) < tonumber(last_question) then
    return { 'stale', life }
  end
  if question == last_question then
    local job = n ~= '' and read_job(n, unpack(FIELDS))
    if job and job[1] == 'running' and job[10] == worker and job[11] == question then
      return granted_reply(n, job[9], job, job[5], redis.call('GET', prefix .. 'spec:' .. n))
    end
    return { 'stale', life }
  end
end

if schema > tonumber(SCHEMA) then
  return { 'newer', life } -- another version has changed the data since this worker began
end
local function rarely()
  -- HERE _ready _ended _waiting _parents _settle _promote _expire
  return { promote = promote, put_aside = put_aside, expire_one = expire_one, settle = settle }
end

local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
if due and tonumber(due) <= now_ms then
  rarely().promote(20)
  due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
end

local wake_key = prefix .. 'wake:' .. worker
local stood = redis.call('ZREM', idle, worker) -- under no shape, perhaps
if stood == 1 or redis.call('EXISTS', wake_key, prefix .. 'idle_shapes:' .. worker) > 0 then
  woken = woken .. ',' .. table.concat(redis.call('LRANGE', wake_key, 0, 99), ',')
  redis.call('DEL', wake_key)
  leave_idle(worker)
end

local pauses = redis.call('HMGET', paused, '*', device)

-- The question is answered: what this worker was woken for and leaves, another may take, if it may start at all.
local function answered_with(n)
  redis.call('HSET', claims, worker, question .. ':' .. n)
  for woken_shape in string.gmatch(woken, '[^,]+') do
    if not pauses[1] and redis.call('EXISTS', prefix .. 'pending:' .. woken_shape) == 1 and may_start(woken_shape) then
      wake(woken_shape, 1)
    end
  end
end

-- It is woken for jobs of these shapes; for a device, when that is free.
local function stand_idle(names)
  if waits ~= '1' then
    return
  end
  for _, name in ipairs(names) do
    redis.call('ZADD', prefix .. 'idle:' .. name, digits(now_ms), worker)
    redis.call('PEXPIRE', prefix .. 'idle:' .. name, 60000)
    redis.call('SADD', prefix .. 'idle_shapes:' .. worker, name)
  end
  redis.call('PEXPIRE', prefix .. 'idle_shapes:' .. worker, 60000)
  redis.call('ZADD', idle, digits(now_ms), worker)
end

local function empty()
  return { 'empty', life, due and digits(math.max(tonumber(due) - now_ms, 0)) or '' }
end

local current = redis.call('GET', shapes_version) or '0'
if current ~= version then
  answered_with('')
  return { 'shapes', life, current, unpack(redis.call('HKEYS', shapes)) }
end
if pauses[1] or pauses[2] then
  answered_with('')
  stand_idle(pauses[1] and fitting or {})
  return empty()
end
local plain = is_plain(device)
local function closely()
  -- HERE _slots _line
  return { device_is_free = device_is_free, declared_mib = declared_mib, declare = declare, whole_of = whole_of,
    first_waiter = first_waiter, call_waiter = call_waiter, count_lost = count_lost }
end
local look = not plain and redis.call('EXISTS', lease_key(device)) == 0 and closely()
local busy, last_grant = not (plain or look), nil
if not busy then
  busy, last_grant = is_running(device)
end
if busy or (look and not look.device_is_free(device)) then
  answered_with('')
  stand_idle({ device })
  return { 'taken', life }
end

-- Slots share the memory of a device: what is declared counts from the claim on.
local mib_of, left_mib
if declares ~= '' and look then
  mib_of, left_mib = {}, tonumber(room) - look.declared_mib(look.whole_of(device) or device)
  local i = 0
  for mib in string.gmatch(declares, '%d+') do
    i = i + 1
    if tonumber(mib) > 0 and tonumber(mib) <= left_mib then
      mib_of[fitting[i]] = mib
    end
  end
end

local held_back = false
local function head()
  local best, best_rank, best_shape, kept_rank
  for _, shape in ipairs(fitting) do
    local first = redis.call('ZRANGE', prefix .. 'pending:' .. shape, 0, 0, 'WITHSCORES')
    local rank = first[1] and tonumber(first[2])
    if first[1] and left_mib and not mib_of[shape] then
      if may_start(shape) then
        kept_rank = math.min(kept_rank or rank, rank)
      end
    elseif first[1] and (not best or rank < best_rank) and may_start(shape) then
      best, best_rank, best_shape = first[1], rank, shape
    end
  end
  -- One that fits beside the other slots' may overtake one that needs more room, by a level of priority at most: then
  -- the device is left to empty.
  if kept_rank and best and best_rank > kept_rank + aging() then
    held_back = true
    return nil
  end
  return best, best_shape, best_rank
end

-- Who waits for a lease of this device may rank before all jobs.
local waiter, waiter_rank
if look then
  waiter, waiter_rank = look.first_waiter(device)
end

-- The fields and the spec of a pending job; nothing when they cannot be read.
local function readable(n, shape)
  local job = read_job(n, unpack(FIELDS))
  local sound = job and job[1] == 'pending' and job[2] == shape and whole(job[3]) and whole(job[4])
    and whole(job[5]) and whole(job[6]) and whole(job[7] or '0')
  local spec = sound and redis.pcall('GET', prefix .. 'spec:' .. n)
  if type(spec) == 'string' and spec ~= '' then
    return job, spec
  end
end

-- A head that cannot be read is put aside, one that has expired is cancelled, and the next one is taken.
local n, shape, job, spec
local ends, yields = false, false
for _ = 1, 20 do
  local rank
  n, shape, rank = head()
  if waiter and (not n or waiter_rank < rank) then
    n, yields = nil, true
  end
  if not n then
    break
  end
  job, spec = readable(n, shape)
  if not job then
    redis.call('ZREM', prefix .. 'pending:' .. shape, n)
    rarely().put_aside(n)
  elseif whole(job[12]) and tonumber(job[12]) <= now_ms then
    rarely().expire_one(n, 'pending', shape)
  else
    break
  end
  n, ends = nil, true
end
if ends then
  rarely().settle(20)
end

if yields then
  look.call_waiter(device, waiter)
  answered_with('')
  stand_idle({ device })
  return { 'yield', life }
end
if not n then
  answered_with('')
  local names = left_mib and {} or fitting
  if left_mib then
    -- The worker of a slot is woken for shapes that it has room for, and by the end of what runs beside it. Woken for
    -- others it would leave them to another slot of the device, and that to it, all the time.
    for _, one in ipairs(held_back and {} or fitting) do
      names[#names + 1] = mib_of[one] and one or nil
    end
    if #names < #fitting then
      names[#names + 1] = look.whole_of(device)
    end
  end
  stand_idle(names)
  return empty()
end

local fence, attempts = tick(), digits(tonumber(job[5]) + 1)
local lease_ms = ttl_ms + margin_ms
redis.call('ZREM', prefix .. 'pending:' .. shape, n)
redis.call('SET', lease_key(device), fence, 'NX', 'PX', digits(lease_ms))
if last_grant and string.find(last_grant, ' lease:', 1, true) then
  (look or closely()).count_lost(device, last_grant)
end
redis.call('HSET', granted, device, grant_text(fence, n))
if left_mib then
  look.declare(device, mib_of[shape])
end
if look then
  redis.call('DEL', prefix .. 'turn:' .. device, named('turn:jobs:' .. device))
end
redis.call('HSET', job_key(n), 'state', 'running', 'fence', fence, 'claim', question, 'worker', worker, 'host', host,
  'gpus', device, 'started_at', digits(now_ms), 'reason', '', 'detail', '', 'attempts', attempts,
  'boot', boot)
if job[12] or job[13] then
  redis.call('HDEL', job_key(n), 'expires_at', 'release_requested')
  redis.call('ZREM', named('expiry'), n) -- it has started
end
count_in_group(shape, 'running', 1)
redis.call('ZADD', running, digits(now_ms + lease_ms), n)
event('claim', n, 'worker', worker, 'device', device, 'fence', fence)
answered_with(n)
return granted_reply(n, fence, job, attempts, spec)
