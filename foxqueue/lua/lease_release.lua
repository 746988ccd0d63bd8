-- lease_release: the holder of a lease without a job has ended
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] holders HASH
-- KEYS[4] lease_stats HASH
-- KEYS[5] clock STRING
-- KEYS[6] instance STRING
-- KEYS[7] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the lease
-- ARGV[3] fence
-- ARGV[4] devices uuids, comma-separated
-- INCLUDE _drains _clock _event _job _device _idle _freed_whole
-- RETURNS {ok, instance}, also when it was said before; {lost, instance} when somebody else has had one of them since
local word, ended = 'ok', 0
for name in string.gmatch(devices, '[^,]+') do
  local grant = redis.call('HGET', granted, name)
  if grant == fence .. ' lease:' .. token or grant == fence .. ' released_lease:' .. token then
    redis.call('HSET', granted, name, fence .. ' -')
    redis.call('HDEL', holders, name)
    if lease_value(name) == fence then
      redis.call('DEL', lease_key(name))
    end
    undeclare(name)
    freed(name)
    freed_whole(name)
    ended = ended + 1
  elseif grant ~= fence .. ' -' then
    word = 'lost'
  end
end
if ended > 0 then
  redis.call('HINCRBY', lease_stats, 'released', 1)
  redis.call('HINCRBY', lease_stats, 'hold_ms', digits(math.max(now_ms - math.floor(tonumber(fence) / 1000), 0)))
  event('lease_release', '', 'device', devices, 'fence', fence)
end
return { word, life }
