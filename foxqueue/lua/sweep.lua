-- sweep: looks after what time brings: due jobs, overdue leases, what has expired, ended jobs to be purged
-- KEYS[1] looked STRING
-- KEYS[2] grace_until STRING
-- KEYS[3] swept STRING
-- KEYS[4] workers ZSET
-- KEYS[5] claims HASH
-- KEYS[6] running ZSET
-- KEYS[7] granted HASH
-- KEYS[8] finished ZSET
-- KEYS[9] failed ZSET
-- KEYS[10] scheduled ZSET
-- KEYS[11] idle ZSET
-- KEYS[12] clock STRING
-- KEYS[13] settings HASH
-- KEYS[14] instance STRING
-- KEYS[15] events STREAM
-- ARGV[1] prefix
-- ARGV[2] limit of jobs for each kind of work
-- FOUND notices ZSET
-- INCLUDE _drains _clock _aging _settings _limits _event _job _group _device _idle _ready _ended _waiting _parents _settle
-- INCLUDE _history _lost _promote _expire _reap _purge _dissolve
-- RETURNS {ok, instance, promoted, reaped, purged, expired, settled, notices that are due}: a number that is the
-- RETURNS limit means that there is more; or {no, instance, notices that are due} when another swept within the last
-- RETURNS second
limit = tonumber(limit)
local may_reap = look()
local last = tonumber(redis.call('GET', swept) or '0') or 0
local pause_ms = math.floor(math.min(1000, ttl_ms / 4))
local function due_notices()
  return digits(redis.call('ZCOUNT', named('notices'), '-inf', digits(now_ms)))
end

if now_ms - last < pause_ms and now_ms >= last then
  return { 'no', life, due_notices() }
end
local expired = expire(limit)
local promoted = promote(limit)
clamp(limit)
local reaped = may_reap and reap(limit) or 0
redis.call('ZREMRANGEBYSCORE', idle, '-inf', digits(now_ms - 60000))
-- A worker unheard of for a day asks nothing any more; resent questions live for a minute.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', digits(now_ms - 86400000), 'LIMIT', 0, limit)) do
  redis.call('ZREM', workers, name)
  redis.call('HDEL', claims, name)
end
local settled = math.max(settle(limit), dissolve(limit))
local purged = purge(limit)
-- With more to be done than one sweep may, the next one need not wait.
local most = math.max(promoted, reaped, purged, expired, settled)
redis.call('SET', swept, digits(most < limit and now_ms or now_ms - pause_ms))
return { 'ok', life, digits(promoted), digits(reaped), digits(purged), digits(expired), digits(settled),
  due_notices() }
