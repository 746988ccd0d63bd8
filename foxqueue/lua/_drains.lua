-- NEEDS running
-- The first write is one that a full server allows (ZREM of nothing): Redis then lets the script write on,
-- so that jobs end and leave although no new ones fit. enqueue and log do without it, and
-- what begins with _ended has such a write already.
redis.call('ZREM', running, '')
