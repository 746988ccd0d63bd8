-- NEEDS prefix
-- Keys that few runs of a script touch are not given to it: a name more costs every call.
local function named(name)
  return prefix .. name
end

local function job_key(n)
  return prefix .. 'job:' .. n
end

-- Fields of a job in the order asked for, false for one that is not there; nil when it is no hash.
local function read_job(n, ...)
  local fields = redis.pcall('HMGET', job_key(n), ...)
  if fields.err then
    return nil
  end
  return fields
end

-- Whether a field holds a whole number. tonumber takes '1e3' and '0x1' too, which Redis and Python do not.
local function whole(field)
  return field and string.match(field, '^%-?%d+$') ~= nil
end

-- A counter's value; 0 for one that is not there or cannot be read.
local function count(field)
  return whole(field) and tonumber(field) or 0
end

local function is_waiting(state)
  return state == 'pending' or state == 'scheduled' or state == 'blocked'
end

local function has_ended(state)
  return state == 'succeeded' or state == 'failed' or state == 'cancelled'
end
