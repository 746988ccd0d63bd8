-- purge: succeeded, failed, cancelled -> -
-- NEEDS finished failed prefix
-- FOUND dropped ZSET, groups ZSET, notices ZSET, unique HASH, unsettled ZSET
-- FOUND job:<n> HASH, spec:<n> STRING, result:<n> STRING, value:<n> STRING, log:<n> STREAM
-- FOUND history:<n> LIST, blocked_by:<n> HASH, dependents:<n> ZSET, members:<group> ZSET
-- Ended jobs go when they are too old or too many, the oldest first, with all that is kept of them.
-- Who waits for a job has so long to hear of its end, however few are kept.
local TOLD_MS = 10000

-- A job that stands in no set any more, and all that is kept of it. A group goes with its last job.
local function erase(n)
  local job = read_job(n, 'state', 'shape', 'unique') or {}
  if job[3] and redis.call('HGET', named('unique'), job[3]) == n then
    redis.call('HDEL', named('unique'), job[3])
  end
  local group = group_of(job[2])
  if group then
    redis.call('ZREM', prefix .. 'members:' .. group, n)
    if has_ended(job[1]) then
      redis.call('HINCRBY', group_key(group), job[1], -1)
    end
    if redis.call('HINCRBY', group_key(group), 'total', -1) <= 0 then
      redis.call('DEL', group_key(group))
      redis.call('ZREM', named('groups'), group)
    end
  end
  redis.call('UNLINK', job_key(n), prefix .. 'spec:' .. n, prefix .. 'result:' .. n, prefix .. 'value:' .. n,
    prefix .. 'log:' .. n, prefix .. 'history:' .. n, prefix .. 'blocked_by:' .. n, prefix .. 'dependents:' .. n)
end

-- Whether somebody is still to hear of its end, or it is what knows of a run of its unique key that still goes.
local function is_spared(n)
  if redis.call('ZSCORE', named('unsettled'), n) or redis.call('ZSCORE', named('notices'), n) then
    return true
  end
  local job = read_job(n, 'unique', 'parents')
  return job and job[1] and count(job[2]) > 0 and redis.call('HGET', named('unique'), job[1]) == n
    and #runs_before(n) > 0
end

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
    if not is_spared(n) then
      redis.call('ZREM', set, n)
      erase(n)
      purged = purged + 1
    end
  end
  return purged
end

local function purge(limit)
  return purge_of(finished, retain_finished_ms, retain_finished_count, limit)
    + purge_of(named('dropped'), retain_finished_ms, retain_finished_count, limit)
    + purge_of(failed, retain_failed_ms, retain_failed_count, limit)
end
