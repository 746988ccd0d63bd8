-- withhold: nobody gets a device that is dirty or quarantined
-- KEYS[1] running ZSET
-- KEYS[2] withheld HASH
-- KEYS[3] clock STRING
-- KEYS[4] instance STRING
-- KEYS[5] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] device uuid; of a slot that of the whole device
-- ARGV[4] word dirty or quarantined
-- ARGV[5] kind memory, fault, ecc or failures
-- ARGV[6] text why, and the cure
-- ARGV[7] boot id of the host, '' when unknown
-- ARGV[8] worker
-- ARGV[9] number of the job that ran on it, or ''
-- INCLUDE _drains _clock _event _job _request
-- RETURNS {ok, instance}, or {no, instance} when it is so already, or quarantined for another reason
local earlier = answered()
if earlier then
  return { earlier, life }
end
local before, kind_before = string.match(redis.call('HGET', withheld, device) or '', '^(%l+)\t%d+\t[^\t]*\t(%l*)\t')
if before == 'quarantined' or (before == word and kind_before == kind) then
  return { answer('no'), life }
end
redis.call('HSET', withheld, device, table.concat({ word, digits(now_ms), boot, kind, text }, '\t'))
event('withhold', number, 'device', device, 'worker', worker, 'reason', word .. ': ' .. text)
return { answer('ok'), life }
