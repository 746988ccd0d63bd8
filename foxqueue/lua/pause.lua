-- pause: nothing of the namespace, of a group or on a device is started
-- KEYS[1] paused HASH
-- KEYS[2] running ZSET
-- KEYS[3] gpus HASH
-- KEYS[4] clock STRING
-- KEYS[5] instance STRING
-- KEYS[6] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] scope *, @group or a device's uuid
-- ARGV[4] text by whom and why
-- ARGV[5] by who asks
-- ARGV[6] why
-- ARGV[7] requeue 1: what runs is given back
-- FOUND group:<group> HASH, job:<n> HASH
-- INCLUDE _drains _clock _event _job _group _request _idle
-- RETURNS {ok, instance, number of runs asked to stop}, {no, instance, number} it was so already,
-- RETURNS {missing, instance} there is no such group or device
local MOST = 1000 -- runs at once: there is one a device
local earlier = answered()
if earlier then
  local word, asked = string.match(earlier, '^(%l+):(%d*)$')
  return { word, life, asked }
end
local group = string.match(scope, '^@(.+)$')
local key, field = paused, scope
if group then
  key, field = group_key(group), 'paused'
end
if (group and redis.call('EXISTS', key) == 0)
    or (not group and scope ~= '*' and redis.call('HEXISTS', gpus, scope) == 0) then
  answer('missing:')
  return { 'missing', life, '' }
end
local before = redis.call('HGET', key, field)
redis.call('HSET', key, field, text)
local asked = 0
if requeue == '1' then
  for _, n in ipairs(redis.call('ZRANGE', running, 0, MOST - 1)) do
    local job = read_job(n, 'state', 'shape', 'gpus', 'worker')
    local meant = job and job[1] == 'running'
      and (scope == '*' or (group and group_of(job[2]) == group) or job[3] == scope)
    if meant then
      redis.call('HSET', job_key(n), 'release_requested', 'paused by ' .. text)
      send_token(job[4] or '', 'cancel:' .. n)
      asked = asked + 1
    end
  end
end
local word = before == text and 'no' or 'ok'
if word == 'ok' or asked > 0 then
  event('pause', '', 'scope', scope, 'by', by, 'reason', why, 'count', digits(asked))
end
answer(word .. ':' .. digits(asked))
return { word, life, digits(asked) }
