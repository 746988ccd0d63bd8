-- force_release: an operator takes a device from its run, which ends as lease_lost
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] instance STRING
-- KEYS[5] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] device uuid
-- ARGV[4] by who asks
-- FOUND job:<n> HASH
-- INCLUDE _drains _clock _event _job _request _device _idle
-- RETURNS {ok, instance, number} its worker is told, and the device free when the run's processes are gone or its
-- RETURNS lease has run out; {no, instance} when no job has the device
local earlier = answered()
if earlier then
  local word, n = string.match(earlier, '^(%a+):(%d*)$')
  return { word, life, n }
end
local grant = redis.call('HGET', granted, device) or ''
local given_fence, n = string.match(grant, '^(%d+) job:(%d+)$')
if not n then
  given_fence, n = string.match(grant, '^(%d+) released:(%d+)$')
end
local job = n and read_job(n, 'state', 'fence', 'worker')
if not job or job[1] ~= 'running' or job[2] ~= given_fence then
  answer('no:')
  return { 'no', life, '' }
end
-- The device stays the run's until its worker says that it has ended. The token makes the worker ask at once.
redis.call('HSET', granted, device, released_text(given_fence, n))
send_token(job[3] or '', 'cancel:' .. n)
event('force_release', n, 'device', device, 'fence', given_fence, 'by', by)
answer('ok:' .. n)
return { 'ok', life, n }
