-- requeue: failed, cancelled -> pending
-- KEYS[1] running ZSET
-- KEYS[2] finished ZSET
-- KEYS[3] failed ZSET
-- KEYS[4] shapes HASH
-- KEYS[5] shapes_version STRING
-- KEYS[6] idle ZSET
-- KEYS[7] clock STRING
-- KEYS[8] settings HASH
-- KEYS[9] instance STRING
-- KEYS[10] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] number
-- ARGV[4] born of the job meant, or '' for whatever has the number
-- ARGV[5] by who asks
-- FOUND job:<n> HASH, spec:<n> STRING, env:<digest> STRING, result:<n> STRING, value:<n> STRING
-- INCLUDE _drains _clock _settings _event _job _request _idle _ready
-- RETURNS {ok, instance}, {no, instance} for a job that is neither failed nor cancelled, {gone, instance} when its
-- RETURNS environment is no longer kept, {unreadable, instance} when its record cannot be read,
-- RETURNS {missing, instance}, {stale, instance} the number is another job's
local earlier = answered()
if earlier then
  return { earlier, life }
end
local job = read_job(number, 'state', 'born', 'shape', 'priority', 'env')
if not job or not job[1] then
  return { answer('missing'), life }
end
if born ~= '' and job[2] ~= born then
  return { answer('stale'), life }
end
if job[1] ~= 'failed' and job[1] ~= 'cancelled' then
  return { answer('no'), life }
end
local spec = redis.pcall('STRLEN', prefix .. 'spec:' .. number)
if not job[3] or not whole(job[4]) or not whole(job[2]) or type(spec) ~= 'number' or spec == 0 then
  return { answer('unreadable'), life }
end
if job[5] and job[5] ~= '' and redis.call('EXISTS', prefix .. 'env:' .. job[5]) == 0 then
  return { answer('gone'), life }
end
-- It begins anew, at the end of its priority, with the identity that it had. What an old run may still say about
-- itself goes by `settled` and the fence, which stay.
local job_tick = tick()
local rank = rank_of(job_tick, job[4])
redis.call('ZREM', finished, number)
redis.call('ZREM', failed, number)
redis.call('HSET', job_key(number), 'state', 'pending', 'reason', '', 'detail', '', 'tick', job_tick, 'rank', rank,
  'attempts', '0', 'losses', '0')
redis.call('HDEL', job_key(number), 'cancel_requested', 'exit_code', 'due_at', 'started_at', 'finished_at', 'worker',
  'host', 'gpus')
redis.call('UNLINK', prefix .. 'result:' .. number, prefix .. 'value:' .. number)
ready(number, job[3], rank)
event('requeue', number, 'by', by)
return { answer('ok'), life }
