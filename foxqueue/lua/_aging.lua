-- NEEDS settings
-- How much waiting a level of priority is worth, in us; read where it is needed and nothing has read it yet.
local AGING_US = '14400000000' -- four hours
local aging_us
local function aging()
  if not aging_us then
    aging_us = tonumber(redis.call('HGET', settings, 'aging_us') or AGING_US)
  end
  return aging_us
end
