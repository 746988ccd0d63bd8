-- NEEDS settings
-- What belongs to the namespace. The defaults stand here and nowhere else.
local values = redis.call('HMGET', settings, 'ttl_ms', 'beat_ms', 'margin_ms', 'aging_us', 'max_losses', 'schema',
  'max_unfinished', 'max_unfinished_user', 'expires_ms')
local ttl_ms = tonumber(values[1] or '15000')
local beat_ms = tonumber(values[2] or '5000')
local margin_ms = tonumber(values[3] or '15000')
aging_us = tonumber(values[4] or AGING_US)
local max_losses = tonumber(values[5] or '3')
local SCHEMA = '2' -- of the data, as these scripts write them
local OFF = 1000000000000000
local schema = tonumber(values[6] or SCHEMA)
local max_unfinished = tonumber(values[7] or OFF)
local max_unfinished_user = tonumber(values[8] or OFF)
local expires_ms = tonumber(values[9] or OFF)
