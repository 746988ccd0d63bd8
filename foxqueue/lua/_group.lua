-- NEEDS prefix
-- FOUND group:<group> HASH
-- A group stands at the end of a shape: its jobs have sets of their own, and what holds it back is looked at once a
-- set, never once a job.
local function group_of(shape_name)
  return string.match(shape_name or '', '@(.+)$')
end

local function group_key(group)
  return prefix .. 'group:' .. group
end

-- Whether jobs of a shape may start now: their group is complete, not paused, and has not as many as it may.
local function may_start(shape_name)
  local group = group_of(shape_name)
  if not group then
    return true
  end
  local found = redis.call('HMGET', group_key(group), 'filling', 'paused', 'max_concurrent', 'running')
  return not (found[1] or found[2] or (found[3] and count(found[4]) >= count(found[3])))
end

-- One more job, or one less, counts under this name.
local function count_in_group(shape_name, name, how_many)
  local group = group_of(shape_name)
  if group then
    redis.call('HINCRBY', group_key(group), name, how_many)
  end
end

-- So many failures in a row, for one reason, and the group is paused.
local function note_streak(group, state, reason)
  local key = group_key(group)
  local found = redis.call('HMGET', key, 'max_fails', 'streak', 'streak_reason', 'paused')
  if not found[1] then
    return
  end
  if state == 'succeeded' then
    redis.call('HDEL', key, 'streak', 'streak_reason')
  elseif state == 'failed' then
    local streak = found[3] == reason and count(found[2]) + 1 or 1
    redis.call('HSET', key, 'streak', digits(streak), 'streak_reason', reason)
    if streak >= count(found[1]) and not found[4] then
      local why = digits(streak) .. ' failures in a row (' .. reason .. ')'
      redis.call('HSET', key, 'paused', 'foxqueue: ' .. why)
      event('pause', '', 'scope', '@' .. group, 'by', 'foxqueue', 'reason', why)
    end
  end
end
