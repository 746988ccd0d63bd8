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
-- INCLUDE _drains _clock _settings _instance _event _job _guard _device _idle _ready _ended
-- RETURNS {released | cancelled | stale | missing | settled word, instance}
local word = guard()
if word then
  return { word, life }
end
local job = read_job(number, 'gpus', 'cancel_requested', 'attempts', 'shape', 'rank')
word = job[2] and 'cancelled' or 'released'
ended(number, fence, job[1], word)
if job[2] then
  over(number, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. job[2])
elseif not job[4] or not whole(job[5]) then
  over(number, 'failed', 'bad_payload', 'its record in Redis cannot be read')
else
  redis.call('HSET', job_key(number), 'state', 'pending', 'reason', 'shutdown', 'detail', detail,
    'attempts', digits(math.max(count(job[3]) - 1, 0)))
  ready(number, job[4], job[5])
end
event('release', number, 'fence', fence)
return { word, life }
