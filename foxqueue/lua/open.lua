-- open: shows a group that was filled in pieces, or gives it up
-- KEYS[1] running ZSET
-- KEYS[2] clock STRING
-- KEYS[3] settings HASH
-- KEYS[4] instance STRING
-- KEYS[5] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] group
-- ARGV[4] sweep id under which it was filled
-- ARGV[5] total of its jobs; '' to give it up
-- ARGV[6] max_concurrent of its jobs, '' for no limit
-- ARGV[7] max_fails in a row for one reason, '' for no limit
-- ARGV[8] by who asks
-- FOUND filling ZSET, unsettled ZSET, awaited:<group> SET, job:<n> HASH
-- FOUND group:<group> HASH, pending:<shape>@<group> ZSET
-- INCLUDE _drains _clock _aging _event _job _group _request _idle _ready _wake_group
-- RETURNS {ok, instance}, {no, instance} when it is not being filled under this id, or not all jobs are in it
local earlier = answered()
if earlier then
  return { earlier, life }
end
local found = redis.call('HMGET', group_key(group), 'filling', 'filled')
if found[1] ~= sweep then
  return { answer('no'), life }
end
if total == '' then
  redis.call('ZADD', named('filling'), 0, group) -- the next sweeps take its jobs out
  return { answer('ok'), life }
end
if found[2] ~= total then
  return { answer('no'), life }
end
local awaited = redis.call('SMEMBERS', prefix .. 'awaited:' .. group)
for _, n in ipairs(awaited) do
  if redis.call('EXISTS', job_key(n)) == 0 then
    return { answer('no'), life } -- it was purged meanwhile: who waits for it would do so for ever
  end
end
redis.call('HDEL', group_key(group), 'filling', 'filled')
for _, n in ipairs(awaited) do
  if has_ended((read_job(n, 'state') or {})[1]) then
    redis.call('ZADD', named('unsettled'), 0, n) -- the next sweeps tell those that wait for it
  end
end
redis.call('DEL', prefix .. 'awaited:' .. group)
if max_concurrent ~= '' then
  redis.call('HSET', group_key(group), 'max_concurrent', max_concurrent)
end
if max_fails ~= '' then
  redis.call('HSET', group_key(group), 'max_fails', max_fails)
end
redis.call('ZREM', named('filling'), group)
event('open', '', 'scope', '@' .. group, 'by', by, 'count', total)
wake_for_group(group)
return { answer('ok'), life }
