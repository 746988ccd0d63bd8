-- NEEDS prefix
-- FOUND shapes HASH
-- Wake whoever may take jobs of a group that may start again.
local function wake_for_group(group)
  for _, shape_name in ipairs(redis.call('HKEYS', named('shapes'))) do
    if group_of(shape_name) == group then
      local waiting = redis.call('ZCARD', prefix .. 'pending:' .. shape_name)
      wake(shape_name, math.min(waiting, 100))
    end
  end
end
