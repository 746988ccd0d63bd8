-- NEEDS prefix
-- FOUND withheld HASH, holders HASH, lease_stats HASH, declared:<uuid> HASH slot -> MiB
-- A device is whole or slotted, never both; a slot is named <uuid>/<number>.
local function whole_of(name)
  return string.match(name, '^(.+)/%d+$')
end

-- Whether a device is a job's that runs, or has a lease that is heard of.
local function is_granted(name)
  return redis.call('EXISTS', lease_key(name)) == 1 or (is_running(name))
end

-- The holder of a lease that nobody heard of any more: another has the device now.
local function count_lost(name, grant)
  if string.match(grant or '', '^%d+ lease:') then
    redis.call('HINCRBY', named('lease_stats'), 'lost', 1)
    redis.call('HDEL', named('holders'), name)
  end
end

-- How much memory the slots of a device have declared that are granted.
local function declared_mib(whole_name)
  local sum = 0
  local found = redis.call('HGETALL', prefix .. 'declared:' .. whole_name)
  for i = 1, #found, 2 do
    if is_granted(whole_name .. '/' .. found[i]) then
      sum = sum + count(found[i + 1])
    end
  end
  return sum
end

local function declare(name, mib)
  local whole_name, slot = string.match(name, '^(.+)/(%d+)$')
  if whole_name then
    redis.call('HSET', prefix .. 'declared:' .. whole_name, slot, mib)
  end
end

-- A device that has to be free for this one to be, and is not: a slot's whole, or a slot of it.
local function in_the_way(name)
  local whole_name = whole_of(name)
  if whole_name then
    return is_granted(whole_name) and whole_name or nil
  end
  for _, slot in ipairs(redis.call('HKEYS', prefix .. 'declared:' .. name)) do
    if is_granted(name .. '/' .. slot) then
      return name .. '/' .. slot
    end
  end
end

-- Why it is withheld (dirty, quarantined), nil when it is not.
local function withheld_as(name)
  local found = redis.call('HMGET', named('withheld'), name, whole_of(name) or '')
  return found[1] or found[2] or nil
end

-- A device is free when it is not granted and not withheld.
local function device_is_free(name)
  return not (is_granted(name) or withheld_as(name) or in_the_way(name))
end
