-- heartbeat: running -> running
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] settings HASH
-- KEYS[5] instance STRING
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- INCLUDE _drains _clock _aging _settings _job _guard _device
-- RETURNS {ok, instance, who asked to cancel or '', why it is to be given back or ''},
-- RETURNS {taken, instance} when the device is another's by now, {stale | missing | settled word, instance}
local word, devices, cancelled_by, release_requested = guard('gpus', 'cancel_requested', 'release_requested')
if word then
  return { word, life }
end
for name in string.gmatch(devices or '', '[^,]+') do
  local value = lease_value(name)
  if redis.call('HGET', granted, name) ~= grant_text(fence, number) or (value and value ~= fence) then
    return { 'taken', life }
  end
end
-- A lapsed key is set again: this fence is the device's last grant.
local lease_ms = digits(ttl_ms + margin_ms)
for name in string.gmatch(devices or '', '[^,]+') do
  redis.call('SET', lease_key(name), fence, 'PX', lease_ms)
end
redis.call('ZADD', running, digits(now_ms + ttl_ms + margin_ms), number)
return { 'ok', life, cancelled_by or '', release_requested or '' }
