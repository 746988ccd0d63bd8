-- notice: takes ended jobs whose end is to be told
-- KEYS[1] running ZSET
-- KEYS[2] clock STRING
-- KEYS[3] instance STRING
-- KEYS[4] events STREAM
-- ARGV[1] prefix
-- ARGV[2] limit of jobs
-- FOUND notices ZSET
-- FOUND job:<n> HASH
-- INCLUDE _drains _clock _event _job
-- RETURNS {ok, instance, number, born, …}: they come again after a minute, five times at most, unless they are told
local AGAIN_MS = 60000
local TRIES = 5
local taken = { 'ok', life }
for _, n in ipairs(redis.call('ZRANGEBYSCORE', named('notices'), '-inf', digits(now_ms), 'LIMIT', 0, limit)) do
  local job = read_job(n, 'born', 'notify')
  if not job or not whole(job[2]) or count(job[2]) >= TRIES then
    redis.call('ZREM', named('notices'), n)
    event('told', n, 'reason', 'given up')
  else
    redis.call('HINCRBY', job_key(n), 'notify', 1)
    redis.call('ZADD', named('notices'), digits(now_ms + AGAIN_MS), n)
    taken[#taken + 1] = n
    taken[#taken + 1] = job[1] or ''
  end
end
return taken
