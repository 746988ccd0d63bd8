-- resume: what was paused is started again
-- KEYS[1] paused HASH
-- KEYS[2] running ZSET
-- KEYS[3] gpus HASH
-- KEYS[4] clock STRING
-- KEYS[5] settings HASH
-- KEYS[6] instance STRING
-- KEYS[7] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] scope *, @group or a device's uuid
-- ARGV[4] by who asks
-- FOUND group:<group> HASH
-- INCLUDE _drains _clock _aging _event _job _group _request _idle _ready _wake_group
-- RETURNS {ok, instance}, {no, instance} it was not paused, {missing, instance} there is no such group or device
local earlier = answered()
if earlier then
  return { earlier, life }
end
local group = string.match(scope, '^@(.+)$')
if group then
  if redis.call('EXISTS', group_key(group)) == 0 then
    return { answer('missing'), life }
  end
  if redis.call('HDEL', group_key(group), 'paused') == 0 then
    return { answer('no'), life }
  end
  redis.call('HDEL', group_key(group), 'streak', 'streak_reason') -- failures are counted anew
  wake_for_group(group)
else
  local seen = redis.call('HGET', gpus, scope)
  if redis.call('HDEL', paused, scope) == 0 then
    return { answer((scope == '*' or seen) and 'no' or 'missing'), life }
  end
  if scope == '*' then
    wake_all()
  else
    local name = string.match(seen or '', '^(%S+) ')
    if name then
      leave_idle(name)
      send_token(name, '*')
    end
    freed(scope) -- who waits for a lease of it
  end
end
event('resume', '', 'scope', scope, 'by', by)
return { answer('ok'), life }
