-- unhold: blocked -> scheduled, blocked, pending
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] settings HASH
-- KEYS[5] instance STRING
-- KEYS[6] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] number
-- ARGV[4] born of the job meant, or '' for whatever has the number
-- ARGV[5] by who asks
-- INCLUDE _drains _clock _aging _event _job _group _request _meant _device _idle _ready _ended _parents _settle
-- RETURNS {ok, instance} it takes its place again, {no, instance} it is not held,
-- RETURNS {missing, instance}, {stale, instance} the number is another job's
local job, reply = meant('held', 'parents')
if not job then
  return reply
end
if job[1] ~= 'blocked' or not job[2] then
  return { answer('no'), life }
end
redis.call('HDEL', job_key(number), 'held')
local to = 'blocked'
if count(job[3]) <= 0 then
  to = unblock(number, false)
end
event('unhold', number, 'from', 'blocked', 'to', to, 'by', by)
return { answer('ok'), life }
