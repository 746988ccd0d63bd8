-- log: a piece of a running job's output
-- KEYS[1] log STREAM
-- KEYS[2] instance STRING
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] offset of the piece in the output, bytes
-- ARGV[5] keep_from offset below which pieces may go, bytes
-- ARGV[6] data
-- INCLUDE _instance _job _guard
-- RETURNS {ok, instance} also for a piece that is there already, {stale | missing | settled word, instance}
local word = guard()
if word then
  return { word, life }
end
-- The id orders pieces by run and offset: the server itself refuses repeats and older runs.
local added = redis.pcall('XADD', log, fence .. '-' .. offset, 'data', data)
if type(added) == 'table' and added.err and not string.find(added.err, 'equal or smaller', 1, true) then
  return redis.error_reply(added.err)
end
if keep_from ~= '0' then
  redis.call('XTRIM', log, 'MINID', fence .. '-' .. keep_from)
end
return { 'ok', life }
