-- NEEDS events
-- The audit trail, capped: one entry a transition, fields after the name and the job as given: `from` and `to` where
-- the name leaves them open (see trail.py).
local function event(name, n, ...)
  redis.call('XADD', events, 'MAXLEN', '~', '10000', '*', 'event', name, 'job', n, ...)
end
