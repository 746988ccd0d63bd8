-- complete: running -> succeeded, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] finished ZSET
-- KEYS[4] failed ZSET
-- KEYS[5] clock STRING
-- KEYS[6] instance STRING
-- KEYS[7] events STREAM
-- KEYS[8] result STRING
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] outcome packed
-- INCLUDE _drains _clock _instance _event _job _guard _device _ended
-- RETURNS {succeeded | cancelled | stale | missing | settled word, instance}
local word = guard()
if word then
  return { word, life }
end
local job = read_job(number, 'gpus', 'cancel_requested')
word = job[2] and 'cancelled' or 'succeeded'
ended(number, fence, job[1], word)
redis.call('HSET', job_key(number), 'exit_code', '0')
redis.call('SET', result, outcome)
if job[2] then
  over(number, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. job[2])
else
  over(number, 'succeeded', 'exit_code', '')
end
event('complete', number, 'fence', fence, 'state', word)
return { word, life }
