-- sweep: looks after what time brings: due jobs, overdue leases, dead workers' leftovers, ended jobs to be purged
-- KEYS[1] looked STRING
-- KEYS[2] grace_until STRING
-- KEYS[3] swept STRING
-- KEYS[4] running ZSET
-- KEYS[5] scheduled ZSET
-- KEYS[6] granted HASH
-- KEYS[7] finished ZSET
-- KEYS[8] failed ZSET
-- KEYS[9] shapes HASH
-- KEYS[10] shapes_version STRING
-- KEYS[11] idle ZSET
-- KEYS[12] workers ZSET
-- KEYS[13] claims HASH
-- KEYS[14] clock STRING
-- KEYS[15] settings HASH
-- KEYS[16] instance STRING
-- KEYS[17] events STREAM
-- ARGV[1] prefix
-- ARGV[2] limit of jobs for each kind of work
-- INCLUDE _drains _clock _settings _limits _event _job _device _idle _ready _ended _lost _promote _reap
-- INCLUDE _purge
-- RETURNS {ok, instance, promoted, reaped, purged}, or {no, instance} when another swept within the last second
local may_reap = look()
local last = tonumber(redis.call('GET', swept) or '0') or 0
local pause_ms = math.floor(math.min(1000, ttl_ms / 4))
if now_ms - last < pause_ms and now_ms >= last then
  return { 'no', life }
end
local promoted = promote(limit)
clamp(limit)
local reaped = may_reap and reap(limit) or 0
redis.call('ZREMRANGEBYSCORE', idle, '-inf', digits(now_ms - 60000))
-- A worker unheard of for a day asks nothing any more; resent questions live for a minute.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', digits(now_ms - 86400000), 'LIMIT', 0, limit)) do
  redis.call('ZREM', workers, name)
  redis.call('HDEL', claims, name)
end
local purged = purge(tonumber(limit))
-- With more to be purged than one sweep may, the next one need not wait.
redis.call('SET', swept, digits(purged < tonumber(limit) and now_ms or now_ms - pause_ms))
return { 'ok', life, digits(promoted), digits(reaped), digits(purged) }
