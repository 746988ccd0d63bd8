-- lose: running -> pending, failed, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] finished ZSET
-- KEYS[4] failed ZSET
-- KEYS[5] shapes HASH
-- KEYS[6] shapes_version STRING
-- KEYS[7] idle ZSET
-- KEYS[8] clock STRING
-- KEYS[9] settings HASH
-- KEYS[10] instance STRING
-- KEYS[11] events STREAM
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- INCLUDE _clock _settings _event _job _guard _device _idle _ready _ended _lost
-- RETURNS {lost | stale | missing | settled word, instance}
local word = guard()
if word then
  return { word, life }
end
lost(number, read_job(number, unpack(LOST_FIELDS)), 'lose')
return { 'lost', life }
