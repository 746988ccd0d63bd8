-- lease_acquire: a device, or several of them, all or none, is granted to a holder without a job
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] holders HASH
-- KEYS[4] paused HASH
-- KEYS[5] lease_stats HASH
-- KEYS[6] gpus HASH
-- KEYS[7] workers ZSET
-- KEYS[8] clock STRING
-- KEYS[9] settings HASH
-- KEYS[10] instance STRING
-- KEYS[11] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the lease, random
-- ARGV[3] holder who asks, tab-separated: user, host, pid, until ms or '', label
-- ARGV[4] devices uuids, comma-separated
-- ARGV[5] priority 0-9, of one that does not stand in line
-- ARGV[6] waited_ms until now
-- ARGV[7] contended how often this process has been refused since it last had a lease
-- ARGV[8] declares MiB, for a slot
-- ARGV[9] room MiB of the whole device, for a slot
-- ARGV[10] candidate name of this namespace's life, if it has none
-- ARGV[11] version of the shapes that the caller has judged
-- ARGV[12..] fitting shapes of jobs that the devices could take
-- FOUND lease_waiting:<device> ZSET, waiter:<token> HASH, turn:<device> STRING, shapes_version STRING
-- INCLUDE _drains _clock _aging _settings _begin _event _job _group _request _device _slots _idle _leave_line
-- RETURNS {ok, instance, fence, ms of the lease},
-- RETURNS {taken, instance, device, its grant, its holder, ms left of the lease},
-- RETURNS {paused | withheld, instance, device, text}, {full, instance, device, MiB that are not declared},
-- RETURNS {yield, instance, device, lease | job} somebody ranks before, and was called, {shapes, instance, version,
-- RETURNS shape...} to be judged, because jobs may rank before, {stale, instance} this lease has ended before,
-- RETURNS {newer, instance} when the data are of a newer schema
local SILENT_MS = 15000
local names = {}
for name in string.gmatch(devices, '[^,]+') do
  names[#names + 1] = name
end

local function held_by(name)
  local other = not is_granted(name) and in_the_way(name) or name
  return { 'taken', life, name, redis.call('HGET', granted, other) or '', redis.call('HGET', holders, other) or '',
    digits(redis.call('PTTL', lease_key(other))) }
end

-- Asked before: the same answer, as long as all are this token's. A lapsed key is left to the next renewal: this may
-- be a late copy.
local lease_ms = digits(ttl_ms + margin_ms)
local own = {}
local last_grants = redis.call('HMGET', granted, unpack(names))
for i, grant in ipairs(last_grants) do
  own[i] = string.match(grant or '', '^(%d+) lease:' .. token .. '$') or false
end
if answered() and not own[1] then
  return { 'stale', life }
end
if own[1] then
  for i, name in ipairs(names) do
    local value = lease_value(name)
    if own[i] ~= own[1] or (value and value ~= own[1]) then
      return held_by(name)
    end
  end
  return { 'ok', life, own[1], lease_ms }
end
if schema > tonumber(SCHEMA) then
  return { 'newer', life }
end

local in_line = false
for _, name in ipairs(names) do
  local pause = redis.call('HGET', paused, name)
  if pause then
    return { 'paused', life, name, pause }
  end
  if not is_plain(name) or is_running(name) then
    if not device_is_free(name) then
      local withheld = withheld_as(name)
      return withheld and { 'withheld', life, name, withheld } or held_by(name)
    end
    in_line = in_line or redis.call('EXISTS', prefix .. 'lease_waiting:' .. name) == 1
  end
end
local whole_name = whole_of(names[1])
if whole_name then
  local left = tonumber(room) - declared_mib(whole_name)
  if tonumber(declares) > left then
    return { 'full', life, names[1], digits(math.max(left, 0)) }
  end
end

local stands = redis.call('HMGET', prefix .. 'waiter:' .. token, 'rank', 'devices')
local rank = tonumber(stands[1] or math.max(now_us, last_tick + 1) - tonumber(priority) * aging())

-- A job ranks before if the device's worker lives, and could take it; it has a second to do so.
local function job_first(name)
  local of = string.match(redis.call('HGET', gpus, name) or '', '^(%S+) ')
  local heard = of and redis.call('ZSCORE', workers, of)
  if not heard or tonumber(heard) < now_ms - SILENT_MS or redis.call('HEXISTS', paused, '*') == 1 then
    return nil
  end
  local current = redis.call('GET', named('shapes_version')) or '0'
  if current ~= version then
    return { 'shapes', life, current, unpack(redis.call('HKEYS', named('shapes'))) }
  end
  for _, shape in ipairs(fitting) do
    local first = redis.call('ZRANGE', prefix .. 'pending:' .. shape, 0, 0, 'WITHSCORES')
    if first[1] and tonumber(first[2]) < rank and may_start(shape) then
      return { 'yield', life, name, 'job' }, shape
    end
  end
end

for _, name in ipairs(names) do
  local answer, shape = job_first(name)
  if answer and not shape then
    return answer
  end
  if in_line or shape then
    -- HERE _line
    local first, first_rank = first_waiter(name)
    if first and first ~= token and first_rank < rank then
      call_waiter(name, first)
      return { 'yield', life, name, 'lease' }
    end
    if shape then
      local who, missed = turn_of('jobs:' .. name) -- beside the waiters' own: else they would take turns for ever
      if who ~= 'jobs' then
        give_turn('jobs:' .. name, 'jobs')
        wake(name, 1)
        wake(shape, 1)
      end
      if who ~= 'jobs' or not missed then
        return answer
      end
    end
  end
end

begin_life(candidate)
local fence = tick()
for i, name in ipairs(names) do
  count_lost(name, last_grants[i])
  redis.call('SET', lease_key(name), fence, 'PX', lease_ms)
  redis.call('HSET', granted, name, fence .. ' lease:' .. token)
  redis.call('HSET', holders, name, holder)
  declare(name, declares)
  if in_line then
    redis.call('DEL', prefix .. 'turn:' .. name, named('turn:jobs:' .. name))
  end
end
if stands[1] then
  for name in string.gmatch(stands[2] or '', '[^,]+') do
    leave_line(name)
  end
  redis.call('DEL', prefix .. 'waiter:' .. token)
end
redis.call('HINCRBY', lease_stats, 'acquired', 1)
if waited_ms ~= '0' then
  redis.call('HINCRBY', lease_stats, 'wait_ms', waited_ms)
end
if contended ~= '0' then
  redis.call('HINCRBY', lease_stats, 'contended', contended)
end
answer(fence)
local user, host = string.match(holder, '^([^\t]*)\t([^\t]*)')
event('lease_acquire', '', 'device', devices, 'fence', fence, 'by', (user or '') .. ' on ' .. (host or ''))
return { 'ok', life, fence, lease_ms }
