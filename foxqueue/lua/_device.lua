-- NEEDS granted prefix
-- FOUND lease:<device> STRING fence
local function lease_key(name)
  return prefix .. 'lease:' .. name
end

-- The fence in a lease key; false for none. A value of another type is somebody else's.
local function lease_value(name)
  local value = redis.pcall('GET', lease_key(name))
  return type(value) == 'table' and 'malformed' or value
end

local function grant_text(given_fence, n)
  return given_fence .. ' job:' .. n
end

-- An operator has taken the device from the run, which is still to end.
local function released_text(given_fence, n)
  return given_fence .. ' released:' .. n
end

-- Whether an operator has taken one of a run's devices: it does not run again by itself.
local function taken_away(n, run_fence, devices)
  for name in string.gmatch(devices or '', '[^,]+') do
    if redis.call('HGET', granted, name) == released_text(run_fence, n) then
      return true
    end
  end
  return false
end

-- A device is free when it has no lease key and its last grant is neither a running job's nor dirty.
local function device_is_free(name)
  if redis.call('EXISTS', lease_key(name)) == 1 then
    return false
  end
  local grant = redis.call('HGET', granted, name)
  if not grant then
    return true
  end
  local given_fence, holder = string.match(grant, '^(%d+) (.+)$')
  if holder == 'dirty' then
    return false
  end
  local n = holder and (string.match(holder, '^job:(%d+)$') or string.match(holder, '^released:(%d+)$'))
  if n then
    local job = read_job(n, 'state', 'fence')
    return not (job and job[1] == 'running' and job[2] == given_fence)
  end
  return true
end
