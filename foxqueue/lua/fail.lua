-- fail: running -> failed, scheduled, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] settings HASH
-- KEYS[5] instance STRING
-- KEYS[6] events STREAM
-- KEYS[7] result STRING
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] reason of the closed list
-- ARGV[5] detail
-- ARGV[6] exit_code or ''
-- ARGV[7] outcome packed
-- ARGV[8] delay_ms before the next attempt, or '' when this failure is not retried
-- FOUND scheduled ZSET
-- INCLUDE _clock _event _job _group _guard _device _idle _aging _ready _ended _history
-- RETURNS {failed | cancelled | stale | missing | settled word, instance}; `failed` is the run's end, the job
-- RETURNS may be scheduled for another attempt
local word, devices, cancelled_by, shape, attempts, retries, started, host, has_dependents, worker =
  guard('gpus', 'cancel_requested', 'shape', 'attempts', 'retries', 'started_at', 'host', 'dependents', 'worker')
if word then
  return { word, life }
end
word = cancelled_by and 'cancelled' or 'failed'
ended(number, fence, devices, shape, word)
redis.call('SET', result, outcome)
if exit_code == '' then
  redis.call('HDEL', job_key(number), 'exit_code')
else
  redis.call('HSET', job_key(number), 'exit_code', exit_code)
end
remember(number, 'fail', fence, attempts, started, host, devices, reason, exit_code, detail)
local to = word
if cancelled_by then
  over(number, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. cancelled_by)
elseif whole(delay_ms) and count(attempts) <= count(retries) then
  to = 'scheduled'
  local due = digits(now_ms + tonumber(delay_ms))
  redis.call('HSET', job_key(number), 'state', to, 'reason', reason, 'detail', detail, 'due_at', due)
  schedule(number, due)
else
  over(number, 'failed', reason, detail)
end
event('fail', number, 'from', 'running', 'to', to, 'worker', worker or '', 'fence', fence, 'reason', reason)
if has_dependents then
  -- HERE _parents _settle
  settle(100)
end
return { word, life }
