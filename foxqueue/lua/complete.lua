-- complete: running -> succeeded, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] settings HASH
-- KEYS[5] instance STRING
-- KEYS[6] events STREAM
-- KEYS[7] result STRING
-- KEYS[8] value STRING of a call
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] outcome packed
-- ARGV[5] returned packed, '' for none
-- INCLUDE _clock _event _job _group _guard _device _idle _ended
-- RETURNS {succeeded | cancelled | stale | missing | settled word, instance}
local word, devices, cancelled_by, shape, owner, has_dependents, notify, worker =
  guard('gpus', 'cancel_requested', 'shape', 'user', 'dependents', 'notify', 'worker')
if word then
  return { word, life }
end
local reason, detail = 'exit_code', ''
word = 'succeeded'
if cancelled_by then
  word, reason, detail = 'cancelled', 'cancelled_by_user', 'cancelled by ' .. cancelled_by
end
ended(number, fence, devices, shape, word, 'exit_code', '0', over_fields(word, reason, detail))
if word == 'succeeded' and returned ~= '' then
  redis.call('SET', value, returned)
end
redis.call('SET', result, outcome)
lay_down(number, word, reason, owner, shape, has_dependents, notify, false, true)
event('complete', number, 'to', word, 'worker', worker or '', 'fence', fence)
if has_dependents then
  -- HERE _aging _ready _parents _settle
  settle(100)
end
return { word, life }
