-- cancel: scheduled, blocked, pending, running -> running, cancelled
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
-- INCLUDE _drains _clock _event _job _group _request _meant _device _idle _ended _waiting _cancel
-- RETURNS {cancelled, instance} ended now or before, {ok, instance} running and asked to stop,
-- RETURNS {succeeded | failed, instance} had ended, {missing, instance}, {stale, instance} the number is another job's
local job, reply = meant('shape', 'worker', 'dependents')
if not job then
  return reply
end
local word = cancel_one(number, job, by)
if job[4] then
  -- HERE _aging _ready _parents _settle
  settle(100)
end
return { answer(word), life }
