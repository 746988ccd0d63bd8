-- release: running -> pending, failed, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] finished ZSET
-- KEYS[4] failed ZSET
-- KEYS[5] shapes HASH
-- KEYS[6] shapes_version STRING
-- KEYS[7] idle ZSET
-- KEYS[8] clock STRING
-- KEYS[9] settings HASH
-- KEYS[10] instance STRING
-- KEYS[11] events STREAM
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] detail why the worker gives it back
-- INCLUDE _clock _settings _event _job _guard _device _idle _ready _ended
-- RETURNS {released | cancelled | failed | stale | missing | settled word, instance}
local word, devices, cancelled_by, attempts, shape, rank =
  guard('gpus', 'cancel_requested', 'attempts', 'shape', 'rank')
if word then
  return { word, life }
end
local released = taken_away(number, fence, devices)
word = cancelled_by and 'cancelled' or released and 'failed' or 'released'
ended(number, fence, devices, word)
if cancelled_by then
  over(number, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. cancelled_by)
elseif released then
  over(number, 'failed', 'lease_lost', 'its device was taken from it by an operator')
elseif not shape or not whole(rank) then
  over(number, 'failed', 'bad_payload', 'its record in Redis cannot be read')
else
  redis.call('HSET', job_key(number), 'state', 'pending', 'reason', 'shutdown', 'detail', detail,
    'attempts', digits(math.max(count(attempts) - 1, 0)))
  ready(number, shape, rank)
end
event('release', number, 'fence', fence)
return { word, life }
