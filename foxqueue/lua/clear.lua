-- clear: a device that was dirty or quarantined may be used again
-- KEYS[1] running ZSET
-- KEYS[2] withheld HASH
-- KEYS[3] gpus HASH
-- KEYS[4] clock STRING
-- KEYS[5] instance STRING
-- KEYS[6] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] device uuid
-- ARGV[4] kind for which alone it is cleared, '' for any
-- ARGV[5] by who asks
-- INCLUDE _drains _clock _event _job _request _idle
-- RETURNS {ok, instance}, {no, instance} it was not withheld, or not for that
local earlier = answered()
if earlier then
  return { earlier, life }
end
local word, kind_now = string.match(redis.call('HGET', withheld, device) or '', '^(%l+)\t%d+\t[^\t]*\t(%l*)\t')
if not word or (kind ~= '' and kind ~= kind_now) then
  return { answer('no'), life }
end
redis.call('HDEL', withheld, device)
event('clear', '', 'device', device, 'reason', word, 'by', by)
-- Its worker looks again, each of its slots' too, and who waits for it.
local function look_again(name)
  local of = string.match(redis.call('HGET', gpus, name) or '', '^(%S+) ')
  if of then
    leave_idle(of)
    send_token(of, '*')
    freed(name)
  end
  return of
end
if not look_again(device) then
  freed(device)
  for slot = 0, MOST_SLOTS - 1 do
    look_again(device .. '/' .. digits(slot))
  end
end
return { answer('ok'), life }
