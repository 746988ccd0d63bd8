-- fail: running -> failed, scheduled, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] finished ZSET
-- KEYS[4] failed ZSET
-- KEYS[5] scheduled ZSET
-- KEYS[6] clock STRING
-- KEYS[7] instance STRING
-- KEYS[8] events STREAM
-- KEYS[9] result STRING
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] reason of the closed list
-- ARGV[5] detail
-- ARGV[6] exit_code or ''
-- ARGV[7] outcome packed
-- ARGV[8] delay_ms before the next attempt, or '' when this reason is not retried
-- INCLUDE _clock _event _job _guard _device _ended
-- RETURNS {failed | cancelled | stale | missing | settled word, instance}; `failed` is the run's end, the job
-- RETURNS may be scheduled for another attempt
local word, devices, cancelled_by, attempts, retries = guard('gpus', 'cancel_requested', 'attempts', 'retries')
if word then
  return { word, life }
end
word = cancelled_by and 'cancelled' or 'failed'
ended(number, fence, devices, word)
redis.call('SET', result, outcome)
if exit_code == '' then
  redis.call('HDEL', job_key(number), 'exit_code')
else
  redis.call('HSET', job_key(number), 'exit_code', exit_code)
end
if cancelled_by then
  over(number, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. cancelled_by)
elseif whole(delay_ms) and count(attempts) <= count(retries) then
  local due = digits(now_ms + tonumber(delay_ms))
  redis.call('HSET', job_key(number), 'state', 'scheduled', 'reason', reason, 'detail', detail, 'due_at', due)
  redis.call('ZADD', scheduled, due, number)
else
  over(number, 'failed', reason, detail)
end
event('fail', number, 'fence', fence, 'reason', reason)
return { word, life }
