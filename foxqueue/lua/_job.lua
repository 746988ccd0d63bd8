-- NEEDS prefix
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
