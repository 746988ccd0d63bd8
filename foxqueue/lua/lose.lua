-- lose: running -> pending, failed, cancelled
-- KEYS[1] running ZSET
-- KEYS[2] granted HASH
-- KEYS[3] clock STRING
-- KEYS[4] settings HASH
-- KEYS[5] instance STRING
-- KEYS[6] events STREAM
-- ARGV[1] prefix
-- ARGV[2] number
-- ARGV[3] fence
-- ARGV[4] boot id of the caller's machine, which is the run's; '' when unknown
-- INCLUDE _clock _aging _settings _event _job _group _guard _device _idle _ready _ended _parents _settle _history _lost
-- RETURNS {lost | stale | missing | settled word, instance}
local word = guard()
if word then
  return { word, life }
end
lost(number, read_job(number, unpack(LOST_FIELDS)), 'lose', boot)
settle(100)
return { 'lost', life }
