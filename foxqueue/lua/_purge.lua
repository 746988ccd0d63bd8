-- purge: succeeded, failed, cancelled -> -
-- NEEDS finished failed prefix
-- FOUND job:<n> HASH, spec:<n> STRING, result:<n> STRING, value:<n> STRING, log:<n> STREAM
-- Ended jobs go when they are too old or too many, the oldest first, with all that is kept of them.
-- Who waits for a job has so long to hear of its end, however few are kept.
local TOLD_MS = 10000

local function purge_of(set, keep_ms, keep_count, limit)
  local too_many = redis.call('ZCARD', set) - keep_count
  local oldest = redis.call('ZRANGE', set, 0, limit - 1, 'WITHSCORES')
  local purged = 0
  for i = 1, #oldest, 2 do
    local n = oldest[i]
    local age_ms = now_ms - tonumber(oldest[i + 1])
    if age_ms <= keep_ms and (purged >= too_many or age_ms < TOLD_MS) then
      break
    end
    redis.call('ZREM', set, n)
    redis.call('UNLINK', job_key(n), prefix .. 'spec:' .. n, prefix .. 'result:' .. n, prefix .. 'value:' .. n,
      prefix .. 'log:' .. n)
    purged = purged + 1
  end
  return purged
end

local function purge(limit)
  return purge_of(finished, retain_finished_ms, retain_finished_count, limit)
    + purge_of(failed, retain_failed_ms, retain_failed_count, limit)
end
