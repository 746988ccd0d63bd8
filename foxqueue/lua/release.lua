-- release: running -> pending, scheduled, failed, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] settings HASH
-- KEYS[5] instance STRING
-- KEYS[6] events STREAM
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] reason shutdown, paused or later
-- ARGV[5] detail why it is given back
-- ARGV[6] delay_ms before it may start again, or '' for at once
-- FOUND scheduled ZSET
-- INCLUDE _clock _event _job _group _guard _device _idle _aging _ready _ended _history
-- RETURNS {released | cancelled | failed | stale | missing | settled word, instance}
local word, devices, cancelled_by, shape, attempts, rank, started, host, has_dependents, worker =
  guard('gpus', 'cancel_requested', 'shape', 'attempts', 'rank', 'started_at', 'host', 'dependents', 'worker')
if word then
  return { word, life }
end
local released = taken_away(number, fence, devices)
word = cancelled_by and 'cancelled' or released and 'failed' or 'released'
ended(number, fence, devices, shape, word)
remember(number, 'release', fence, attempts, started, host, devices, reason, '', detail)
local to = word
if cancelled_by then
  over(number, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. cancelled_by)
elseif released then
  over(number, 'failed', 'lease_lost', 'its device was taken from it by an operator')
elseif not shape or not whole(rank) then
  to = 'failed'
  over(number, to, 'bad_payload', 'its record in Redis cannot be read')
else
  to = delay_ms == '' and 'pending' or 'scheduled'
  redis.call('HSET', job_key(number), 'state', to, 'reason', reason, 'detail', detail,
    'attempts', digits(math.max(count(attempts) - 1, 0)))
  if to == 'pending' then
    ready(number, shape, rank)
  else
    local due = digits(now_ms + tonumber(delay_ms))
    redis.call('HSET', job_key(number), 'due_at', due)
    schedule(number, due)
  end
end
event('release', number, 'from', 'running', 'to', to, 'worker', worker or '', 'fence', fence, 'reason', reason)
if has_dependents then
  -- HERE _parents _settle
  settle(100)
end
return { word, life }
