-- register: a worker says that it lives and what it sees
-- KEYS[1] workers ZSET
-- KEYS[2] gpus HASH
-- KEYS[3] running ZSET
-- KEYS[4] clock STRING
-- KEYS[5] instance STRING
-- KEYS[6] settings HASH
-- KEYS[7] boots HASH
-- KEYS[8] events STREAM
-- ARGV[1] worker
-- ARGV[2] device uuid
-- ARGV[3] sequence counts this worker's registers from 1
-- ARGV[4] seen packed
-- ARGV[5] candidate name of this namespace's life, if it has none
-- ARGV[6] host
-- ARGV[7] boot id of the host, '' when unknown
-- ARGV[8..] noted three words each, what is to be in the trail: an event, a job or '', a text
-- INCLUDE _drains _clock _aging _settings _event _begin
-- RETURNS {ok, instance}, or {stale, instance} for a late copy, which changes nothing
local SILENT_MS = 15000
local standing = redis.call('HGET', gpus, device)
if standing then
  local of, count = string.match(standing, '^(%S+) (%d+) ')
  local known = redis.call('ZSCORE', workers, worker)
  if of == worker and tonumber(sequence) <= tonumber(count) then
    return { 'stale', life }
  end
  -- The device has had another worker since, unless that one has been silent for so long that it is gone.
  if of ~= worker and known and tonumber(redis.call('ZSCORE', workers, of) or '0') > now_ms - SILENT_MS then
    return { 'stale', life }
  end
end
begin_life(candidate)
redis.call('HSET', gpus, device, worker .. ' ' .. sequence .. ' ' .. seen)
redis.call('ZADD', workers, digits(now_ms), worker)
if boot ~= '' then
  redis.call('HSET', boots, host, boot)
end
for i = 1, #noted, 3 do
  event(noted[i], noted[i + 1], 'device', device, 'worker', worker, 'reason', noted[i + 2])
end
return { 'ok', life }
