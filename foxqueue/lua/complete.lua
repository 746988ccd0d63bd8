-- complete: running -> succeeded, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] finished ZSET
-- KEYS[4] failed ZSET
-- KEYS[5] clock STRING
-- KEYS[6] instance STRING
-- KEYS[7] events STREAM
-- KEYS[8] result STRING
-- KEYS[9] value STRING of a call
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] outcome packed
-- ARGV[5] returned packed, '' for none
-- INCLUDE _clock _event _job _guard _device _ended
-- RETURNS {succeeded | cancelled | stale | missing | settled word, instance}
local word, devices, cancelled_by = guard('gpus', 'cancel_requested')
if word then
  return { word, life }
end
if cancelled_by then
  word = 'cancelled'
  ended(number, fence, devices, word, 'exit_code', '0',
    over_fields(word, 'cancelled_by_user', 'cancelled by ' .. cancelled_by))
else
  word = 'succeeded'
  ended(number, fence, devices, word, 'exit_code', '0', over_fields(word, 'exit_code', ''))
  if returned ~= '' then
    redis.call('SET', value, returned)
  end
end
redis.call('SET', result, outcome)
lay_down(number, word)
event('complete', number, 'fence', fence, 'state', word)
return { word, life }
