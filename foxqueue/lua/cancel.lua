-- cancel: scheduled, pending, running -> running, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] scheduled ZSET
-- KEYS[3] finished ZSET
-- KEYS[4] failed ZSET
-- KEYS[5] granted HASH
-- KEYS[6] idle ZSET
-- KEYS[7] clock STRING
-- KEYS[8] instance STRING
-- KEYS[9] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] number
-- ARGV[4] born of the job meant, or '' for whatever has the number
-- ARGV[5] by who asks
-- FOUND pending:<shape> ZSET job -> rank
-- INCLUDE _drains _clock _event _job _request _device _idle _ended
-- RETURNS {cancelled, instance} ended now or before, {ok, instance} running and asked to stop,
-- RETURNS {succeeded | failed, instance} had ended, {missing, instance}, {stale, instance} the number is another job's
local earlier = answered()
if earlier then
  return { earlier, life }
end
local job = read_job(number, 'state', 'born', 'shape', 'worker')
if not job or not job[1] then
  return { answer('missing'), life }
end
if born ~= '' and job[2] ~= born then
  return { answer('stale'), life }
end
if job[1] == 'running' then
  if redis.call('HSETNX', job_key(number), 'cancel_requested', by) == 1 then
    event('cancel', number, 'by', by)
  end
  send_token(job[4], 'cancel:' .. number)
  return { answer('ok'), life }
end
if job[1] ~= 'pending' and job[1] ~= 'scheduled' then
  return { answer(job[1]), life }
end
redis.call('ZREM', scheduled, number)
redis.call('ZREM', prefix .. 'pending:' .. (job[3] or ''), number)
over(number, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. by)
event('cancel', number, 'by', by)
return { answer('cancelled'), life }
