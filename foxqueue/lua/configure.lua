-- configure: reads the namespace's settings, or sets the lease's length in an empty namespace
-- KEYS[1] settings HASH
-- KEYS[2] next STRING
-- KEYS[3] workers ZSET
-- KEYS[4] instance STRING
-- KEYS[5] running ZSET
-- ARGV[1] wanted_ttl_ms or '' to leave it
-- ARGV[2] candidate name of this namespace's life, if it has none
-- INCLUDE _drains _settings _instance
-- RETURNS {ok | no, instance, schema, ttl_ms, beat_ms, margin_ms, aging_us, max_losses}; `no`: in use with another
local word = 'ok'
local wanted = tonumber(wanted_ttl_ms)
if wanted and wanted ~= ttl_ms then
  if redis.call('EXISTS', next) == 1 or redis.call('ZCARD', workers) > 0 then
    word = 'no'
  else
    -- The beat is a third of the lease, the margin as long as the lease.
    ttl_ms, beat_ms, margin_ms = wanted, math.floor(wanted / 3), wanted
    redis.call('HSET', settings, 'ttl_ms', ttl_ms, 'beat_ms', beat_ms, 'margin_ms', margin_ms, 'schema', schema)
  end
end
begin_life(candidate)
local function digits(value)
  return string.format('%d', value)
end
return { word, life, digits(schema), digits(ttl_ms), digits(beat_ms), digits(margin_ms), digits(aging_us), digits(max_losses) }
