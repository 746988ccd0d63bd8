-- NEEDS max_losses
-- The run lost its worker: the attempt is given back, the loss is counted, the rank is kept. One that takes
-- down its worker time after time ends.
-- job: state, fence, gpus, shape, rank, attempts, losses, cancel_requested, worker
local LOST_FIELDS = { 'state', 'fence', 'gpus', 'shape', 'rank', 'attempts', 'losses', 'cancel_requested', 'worker' }

local function lost(n, job, how)
  local losses, run_fence = count(job[7]) + 1, job[2] or ''
  local released = taken_away(n, run_fence, job[3])
  ended(n, run_fence, job[3], 'lost')
  redis.call('HSET', job_key(n), 'losses', digits(losses), 'attempts', digits(math.max(count(job[6]) - 1, 0)))
  redis.call('HDEL', job_key(n), 'exit_code') -- an earlier attempt's
  event(how, n, 'worker', job[9] or '', 'device', job[3] or '', 'fence', run_fence)
  if job[8] then
    over(n, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. job[8] .. '; its worker was lost')
  elseif released then
    over(n, 'failed', 'lease_lost', 'its device was taken from it by an operator')
  elseif losses >= max_losses then
    over(n, 'failed', 'poison', 'lost its worker ' .. digits(losses) .. ' times')
  elseif not job[4] or not whole(job[5]) then
    over(n, 'failed', 'bad_payload', 'its record in Redis cannot be read')
  else
    redis.call('HSET', job_key(n), 'state', 'pending', 'reason', 'worker_lost', 'detail',
      'worker ' .. (job[9] or '') .. ' was lost')
    ready(n, job[4], job[5])
  end
end
