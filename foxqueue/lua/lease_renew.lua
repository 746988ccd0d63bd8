-- lease_renew: a lease without a job goes on
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] settings HASH
-- KEYS[5] instance STRING
-- ARGV[1] prefix
-- ARGV[2] token of the lease
-- ARGV[3] fence
-- ARGV[4] devices uuids, comma-separated
-- ARGV[5] room MiB of the whole device, for a slot; 0 when it is not known
-- FOUND holders HASH
-- INCLUDE _drains _clock _aging _settings _job _device
-- RETURNS {ok, instance}, {released, instance, by} an operator has taken it, {lost, instance, why}
local lease_ms = digits(ttl_ms + margin_ms)
local forgotten = {}
for name in string.gmatch(devices, '[^,]+') do
  local grant = redis.call('HGET', granted, name)
  if grant == fence .. ' released_lease:' .. token then
    local text = redis.call('HGET', named('holders'), name) or ''
    return { 'released', life, string.match(text, '^' .. string.rep('[^\t]*\t', 5) .. '(.*)$') or '' }
  end
  local older = string.match(grant or '', '^(%d+) %-$')
  if older and #older == #fence and older < fence and not redis.call('GET', lease_key(name)) then
    -- The server has lost its last moments, this grant with them; nobody has had the device since.
    forgotten[#forgotten + 1] = name
  elseif grant ~= fence .. ' lease:' .. token then
    return { 'lost', life, grant and 'it was released, or granted to somebody else' or 'nobody knows of it' }
  end
  local value = lease_value(name)
  if value and value ~= fence then
    return { 'lost', life, 'its key in Redis is another owner\'s' }
  end
  if not value then
    -- HERE _slots
    if in_the_way(name) then
      return { 'lost', life, 'it was not heard of, and ' .. in_the_way(name) .. ' was granted to somebody else' }
    end
    local whole_name, slot = string.match(name, '^(.+)/(%d+)$')
    if whole_name and room ~= '0' then
      local own = count(redis.call('HGET', prefix .. 'declared:' .. whole_name, slot))
      if own + declared_mib(whole_name) > tonumber(room) then
        return { 'lost', life, 'it was not heard of, and others have declared its memory' }
      end
    end
  end
end
for _, name in ipairs(forgotten) do
  redis.call('HSET', granted, name, fence .. ' lease:' .. token)
end
-- A lapsed key is set again: this fence is the device's last grant.
for name in string.gmatch(devices, '[^,]+') do
  redis.call('SET', lease_key(name), fence, 'PX', lease_ms)
end
return { 'ok', life }
