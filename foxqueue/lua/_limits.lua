-- NEEDS settings
-- More of what belongs to the namespace, for the scripts that need it. The defaults stand here and nowhere else.
local limits = redis.call('HMGET', settings, 'max_result_bytes', 'retain_finished_ms', 'retain_finished_count',
  'retain_failed_ms', 'retain_failed_count')
local max_result_bytes = tonumber(limits[1] or '1048576')
local retain_finished_ms = tonumber(limits[2] or '2592000000') -- 30 days
local retain_finished_count = tonumber(limits[3] or '10000')
local retain_failed_ms = tonumber(limits[4] or '7776000000') -- 90 days
local retain_failed_count = tonumber(limits[5] or '10000')
