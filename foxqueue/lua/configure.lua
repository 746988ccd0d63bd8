-- configure: reads the namespace's settings, and changes them
-- KEYS[1] settings HASH
-- KEYS[2] next STRING
-- KEYS[3] workers ZSET
-- KEYS[4] instance STRING
-- KEYS[5] running ZSET
-- KEYS[6] events STREAM
-- KEYS[7] clock STRING
-- ARGV[1] prefix
-- ARGV[2] token of the request; '' when nothing is changed but the lease
-- ARGV[3] by who asks
-- ARGV[4] wanted_ttl_ms length of the lease, only in an empty namespace; '' to leave it
-- ARGV[5] candidate name of this namespace's life, if it has none
-- ARGV[6..] changes two words each: field, value; '' for the default
-- INCLUDE _drains _clock _aging _settings _limits _begin _event _request
-- RETURNS {ok | no, instance, field, value, …}; `no`: in use with a lease of another length;
-- RETURNS {ok, instance} when something was changed, now or by an earlier copy of the same request
local word = 'ok'
local wanted = tonumber(wanted_ttl_ms)
if wanted and wanted ~= ttl_ms then
  if redis.call('EXISTS', next) == 1 or redis.call('ZCARD', workers) > 0 then
    word = 'no'
  else
    -- The beat is a third of the lease, the margin as long as the lease.
    ttl_ms, beat_ms, margin_ms = wanted, math.floor(wanted / 3), wanted
    redis.call('HSET', settings, 'ttl_ms', ttl_ms, 'beat_ms', beat_ms, 'margin_ms', margin_ms)
  end
end
begin_life(candidate)
if #changes > 0 and not answered() then
  local said = {}
  for i = 1, #changes, 2 do
    local field, given = changes[i], changes[i + 1]
    if given == '' then
      redis.call('HDEL', settings, field)
    else
      redis.call('HSET', settings, field, given)
    end
    said[#said + 1] = field .. '=' .. given
  end
  event('configure', '', 'by', by, 'set', table.concat(said, ' '))
  answer('ok')
end
if #changes > 0 then
  return { 'ok', life } -- what was read above is no longer true
end
-- What the hash holds stands over the defaults: of two pairs with one name the later counts.
local now = { word, life, 'schema', digits(schema), 'ttl_ms', digits(ttl_ms), 'beat_ms', digits(beat_ms),
  'margin_ms', digits(margin_ms), 'aging_us', digits(aging_us), 'max_losses', digits(max_losses),
  'max_result_bytes', digits(max_result_bytes), 'retain_finished_ms', digits(retain_finished_ms),
  'retain_finished_count', digits(retain_finished_count), 'retain_failed_ms', digits(retain_failed_ms),
  'retain_failed_count', digits(retain_failed_count),
  'max_unfinished', digits(max_unfinished), 'max_unfinished_user', digits(max_unfinished_user),
  'expires_ms', digits(expires_ms) }
for _, part in ipairs(redis.call('HGETALL', settings)) do
  now[#now + 1] = part
end
return now
