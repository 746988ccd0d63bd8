-- reprioritize: scheduled, blocked, pending, running -> scheduled, blocked, pending, running
-- KEYS[1] running ZSET
-- KEYS[2] clock STRING
-- KEYS[3] settings HASH
-- KEYS[4] instance STRING
-- KEYS[5] events STREAM
-- ARGV[1] prefix
-- ARGV[2] token of the request
-- ARGV[3] number
-- ARGV[4] born of the job meant, or '' for whatever has the number
-- ARGV[5] priority 0-9, or '' to leave it
-- ARGV[6] front 1: before all that is pending now
-- ARGV[7] by who asks
-- FOUND shapes HASH
-- FOUND job:<n> HASH, pending:<shape> ZSET job -> rank
-- INCLUDE _drains _clock _aging _event _job _request _meant
-- RETURNS {ok, instance}, {no, instance} it has ended, or is neither pending nor scheduled and cannot go to the front,
-- RETURNS {missing, instance}, {stale, instance} the number is another job's
local job, reply = meant('shape', 'priority', 'tick')
if not job then
  return reply
end
local state, to_front = job[1], front == '1'
if has_ended(state) or not job[2] or not whole(job[4])
    or (to_front and state ~= 'pending' and state ~= 'scheduled') then
  return { answer('no'), life }
end
local level = priority ~= '' and priority or job[3] or '5'
local rank = tonumber(job[4]) - tonumber(level) * aging()
if to_front then
  for _, shape_name in ipairs(redis.call('HKEYS', named('shapes'))) do
    local head = redis.call('ZRANGE', prefix .. 'pending:' .. shape_name, 0, 0, 'WITHSCORES')
    if head[1] and head[1] ~= number then
      rank = math.min(rank, tonumber(head[2]) - 1)
    end
  end
end
redis.call('HSET', job_key(number), 'priority', level, 'rank', digits(rank))
redis.call('ZADD', prefix .. 'pending:' .. job[2], 'XX', digits(rank), number)
event('reprioritize', number, 'from', state, 'to', state, 'by', by, 'priority', level, 'front', front)
return { answer('ok'), life }
