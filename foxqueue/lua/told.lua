-- told: the end of a job was told, and is not told again
-- KEYS[1] running ZSET
-- KEYS[2] instance STRING
-- KEYS[3] events STREAM
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] born of the job
-- ARGV[4] ended ms when it ended: a job that was requeued since ends anew
-- ARGV[5] worker that told it
-- FOUND notices ZSET
-- FOUND job:<n> HASH
-- INCLUDE _drains _instance _event _job
-- RETURNS {ok, instance}, {stale, instance} the number is another job's, or it was told before
local job = read_job(number, 'born', 'finished_at')
if not job or job[1] ~= born or job[2] ~= ended or redis.call('ZREM', named('notices'), number) == 0 then
  return { 'stale', life }
end
event('told', number, 'worker', worker)
return { 'ok', life }
