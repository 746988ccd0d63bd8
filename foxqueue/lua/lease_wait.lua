-- lease_wait: stands in the lines of devices until one is free for a lease, or leaves them
-- KEYS[1] running ZSET
-- KEYS[2] clock STRING
-- KEYS[3] settings HASH
-- KEYS[4] instance STRING
-- ARGV[1] prefix
-- ARGV[2] token of the lease that is to be
-- ARGV[3] holder who waits, as for lease_acquire
-- ARGV[4] devices uuids, comma-separated; '' leaves all lines, and keeps the rank for a minute
-- ARGV[5] priority 0-9; it counts when the line is joined
-- ARGV[6] needs how many of the devices, at once; 0: it waits no more
-- ARGV[7] candidate name of this namespace's life, if it has none
-- FOUND lease_waiting:<device> ZSET, waiter:<token> HASH, turn:<device> STRING
-- INCLUDE _drains _clock _aging _settings _begin _job _request _idle _leave_line
-- RETURNS {ok, instance, rank}: called is who ranks first, by the device in `wake:<token>`; {stale, instance} it has the lease, or has
-- RETURNS given up, {newer, instance}
local WAITER_MS = 60000 -- so long it counts as alive
local LINE_MS = 600000
local key = prefix .. 'waiter:' .. token
local known_rank, known_devices = unpack(redis.call('HMGET', key, 'rank', 'devices'))

if schema > tonumber(SCHEMA) then
  return { 'newer', life }
end
if answered() then
  return { 'stale', life }
end
local wanted = {}
for name in string.gmatch(devices, '[^,]+') do
  wanted[name] = true
end
for name in string.gmatch(known_devices or '', '[^,]+') do
  if not wanted[name] then
    leave_line(name)
  end
end
if needs == '0' then
  redis.call('DEL', key)
  if known_rank then
    answer('-') -- a late copy of an earlier call does not stand again
  end
  return { 'ok', life, known_rank or '' }
end
begin_life(candidate)
local rank = known_rank or digits(ticks(1) - tonumber(priority) * aging())
for name in string.gmatch(devices, '[^,]+') do
  local line = prefix .. 'lease_waiting:' .. name
  if redis.call('ZADD', line, rank, token) == 1 then
    local turn = prefix .. 'turn:' .. name
    if string.match(redis.call('GET', turn) or '', '^%w+') == token then
      redis.call('DEL', turn) -- a turn that it missed
    end
  end
  redis.call('PEXPIRE', line, LINE_MS)
end
redis.call('HSET', key, 'rank', rank, 'devices', devices, 'needs', needs, 'holder', holder)
redis.call('PEXPIRE', key, WAITER_MS)
return { 'ok', life, rank }
