-- hold: scheduled, blocked, pending -> blocked
-- KEYS[1] running ZSET
-- KEYS[2] clock STRING
-- KEYS[3] instance STRING
-- KEYS[4] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] number
-- ARGV[4] born of the job meant, or '' for whatever has the number
-- ARGV[5] by who asks
-- FOUND blocked ZSET
-- FOUND job:<n> HASH
-- INCLUDE _drains _clock _event _job _request _meant _waiting
-- RETURNS {ok, instance} it does not start until it is unheld, {no, instance} it runs or has ended,
-- RETURNS {missing, instance}, {stale, instance} the number is another job's
local job, reply = meant('shape', 'held')
if not job then
  return reply
end
local state = job[1]
if not is_waiting(state) then
  return { answer('no'), life }
end
if not job[3] then
  take_out(number, state, job[2])
  redis.call('ZADD', named('blocked'), digits(now_ms), number)
  redis.call('HSET', job_key(number), 'state', 'blocked', 'held', by)
  event('hold', number, 'from', state, 'to', 'blocked', 'by', by)
end
return { answer('ok'), life }
