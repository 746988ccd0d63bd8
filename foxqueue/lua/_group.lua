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
