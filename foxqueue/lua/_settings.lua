-- NEEDS settings
-- What belongs to the namespace. The defaults stand here and nowhere else.
local values = redis.call('HMGET', settings, 'ttl_ms', 'beat_ms', 'margin_ms', 'aging_us', 'max_losses', 'schema')
local ttl_ms = tonumber(values[1] or '15000')
local beat_ms = tonumber(values[2] or '5000')
local margin_ms = tonumber(values[3] or '15000')
local aging_us = tonumber(values[4] or '14400000000') -- four hours a level of priority
local max_losses = tonumber(values[5] or '3')
local SCHEMA = '1' -- of the data, as these scripts write them
local schema = tonumber(values[6] or SCHEMA)
