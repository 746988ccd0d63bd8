-- force_release: an operator takes a device from its run, which ends as lease_lost, or from the holder of a lease
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] instance STRING
-- KEYS[5] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] device uuid
-- ARGV[4] by who asks
-- FOUND holders HASH, lease_stats HASH
-- FOUND job:<n> HASH
-- INCLUDE _drains _clock _event _job _request _device _idle _freed_whole
-- RETURNS {ok, instance, number} its worker is told, and the device free when the run's processes are gone or its
-- RETURNS lease has run out; the number is '' for a lease; {no, instance} when nobody has the device
local earlier = answered()
if earlier then
  local word, n = string.match(earlier, '^(%a+):(%d*)$')
  return { word, life, n }
end
local grant = redis.call('HGET', granted, device) or ''
local lease_fence, role, lease_token = string.match(grant, '^(%d+) (%l+):(%x+)$')
if not lease_fence then
  lease_fence, role, lease_token = string.match(grant, '^(%d+) (released_lease):(%x+)$')
end
if role == 'lease' or role == 'released_lease' then
  if role == 'lease' then
    redis.call('HINCRBY', named('lease_stats'), 'lost', 1)
    event('force_release', '', 'device', device, 'fence', lease_fence, 'by', by)
  end
  if lease_value(device) == lease_fence then
    -- The device stays the holder's until that says that it has ended, or is not heard of any more.
    redis.call('HSET', granted, device, lease_fence .. ' released_lease:' .. lease_token)
    if role == 'lease' then
      local holder = redis.call('HGET', named('holders'), device) or ''
      redis.call('HSET', named('holders'), device, holder .. '\t' .. by)
    end
  else
    redis.call('HSET', granted, device, lease_fence .. ' -')
    redis.call('HDEL', named('holders'), device)
    undeclare(device)
    freed(device)
    freed_whole(device)
  end
  answer('ok:')
  return { 'ok', life, '' }
end
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
