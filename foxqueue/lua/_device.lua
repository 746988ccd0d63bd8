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

-- Whether the last grant of a device is a run's that goes on; and that grant.
local function is_running(name)
  local grant = redis.call('HGET', granted, name)
  if not grant then
    return false
  end
  local given_fence, n = string.match(grant, '^(%d+) %l+:(%d+)$')
  local job = n and read_job(n, 'state', 'fence')
  return job and job[1] == 'running' and job[2] == given_fence or false, grant
end

-- In one command: a whole device without a lease key, a line, slots, and while none is withheld.
local function is_plain(name)
  return redis.call('EXISTS', lease_key(name), prefix .. 'lease_waiting:' .. name, prefix .. 'declared:' .. name,
    prefix .. 'withheld') == 0 and not string.find(name, '/', 1, true)
end
