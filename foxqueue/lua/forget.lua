-- forget: a device that is not there any more leaves the lists
-- KEYS[1] running ZSET
-- KEYS[2] gpus HASH
-- KEYS[3] granted HASH
-- KEYS[4] holders HASH
-- KEYS[5] withheld HASH
-- KEYS[6] paused HASH
-- KEYS[7] workers ZSET
-- KEYS[8] clock STRING
-- KEYS[9] instance STRING
-- KEYS[10] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] device uuid
-- ARGV[4] by who asks
-- FOUND lease_waiting:<device> ZSET, turn:<device> STRING
-- INCLUDE _drains _clock _event _job _request _device _slots _idle
-- RETURNS {ok, instance}, {missing, instance}, {no, instance, live | granted} its worker was heard of lately, or
-- RETURNS somebody has it
local SILENT_MS = 15000
local earlier = answered()
if earlier then
  local word, why = string.match(earlier, '^(%l+):(%l*)$')
  return { word, life, why }
end
local function replied(word, why)
  answer(word .. ':' .. why)
  return { word, life, why }
end

local seen = redis.call('HGET', gpus, device)
if not seen and redis.call('HEXISTS', granted, device) == 0 and redis.call('HEXISTS', withheld, device) == 0 then
  return replied('missing', '')
end
local heard = redis.call('ZSCORE', workers, string.match(seen or '', '^(%S+) ') or '')
if heard and tonumber(heard) > now_ms - SILENT_MS then
  return replied('no', 'live')
end
if is_granted(device) or in_the_way(device) then
  return replied('no', 'granted')
end
redis.call('HDEL', gpus, device)
redis.call('HDEL', granted, device)
redis.call('HDEL', holders, device)
redis.call('HDEL', withheld, device)
redis.call('HDEL', paused, device)
redis.call('DEL', prefix .. 'lease_waiting:' .. device, prefix .. 'turn:' .. device)
redis.call('DEL', prefix .. 'declared:' .. device)
undeclare(device)
event('forget', '', 'device', device, 'by', by)
return replied('ok', '')
