-- NEEDS prefix
-- FOUND idle:<shape> ZSET worker -> ms since when, lease_waiting:<device> ZSET token -> rank
-- A lease of a whole device that is also served in slots keeps these from being given out.
local function freed_whole(name)
  local keys = {}
  for slot = 0, MOST_SLOTS - 1 do
    keys[#keys + 1] = prefix .. 'idle:' .. name .. '/' .. digits(slot)
    keys[#keys + 1] = prefix .. 'lease_waiting:' .. name .. '/' .. digits(slot)
  end
  if not string.find(name, '/', 1, true) and redis.call('EXISTS', unpack(keys)) > 0 then
    for slot = 0, MOST_SLOTS - 1 do
      freed(name .. '/' .. digits(slot))
    end
  end
end
