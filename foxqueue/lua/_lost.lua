-- NEEDS max_losses
-- FOUND boots HASH
-- The run lost its worker: the attempt is given back, the loss is counted, the rank is kept. One that takes
-- down its worker time after time, soon after its start and without a reboot of the machine, ends.
local LOST_FIELDS = { 'state', 'fence', 'gpus', 'shape', 'rank', 'attempts', 'losses', 'cancel_requested', 'worker',
  'started_at', 'host', 'boot', 'poison' }
local POISON_MS = 600000

-- How many losses may be the job's own fault. A machine that has been rebooted since was lost for reasons of its own.
local function blame(n, job, boot_now)
  local suspects, own = job[13] or '', (job[12] or '') ~= '' and job[12] or '-'
  if now_ms - count(job[10]) < POISON_MS and (boot_now == '' or own == '-' or boot_now == own) then
    suspects = suspects .. ' ' .. own
    redis.call('HSET', job_key(n), 'poison', suspects)
  end
  local current, blamed = { ['-'] = true }, 0
  for _, boot_id in ipairs(redis.call('HVALS', named('boots'))) do
    current[boot_id] = true
  end
  for boot_id in string.gmatch(suspects, '%S+') do
    blamed = blamed + (current[boot_id] and 1 or 0)
  end
  return blamed
end

local function lost(n, job, how, boot_now)
  local run_fence, shape_name = job[2] or '', job[4]
  local released = taken_away(n, run_fence, job[3])
  ended(n, run_fence, job[3], shape_name, 'lost')
  redis.call('HSET', job_key(n), 'losses', digits(count(job[7]) + 1),
    'attempts', digits(math.max(count(job[6]) - 1, 0)))
  redis.call('HDEL', job_key(n), 'exit_code') -- an earlier attempt's
  remember(n, how, run_fence, job[6], job[10], job[11], job[3], 'worker_lost', '', 'worker ' .. (job[9] or '') .. ' was lost')
  local blamed = blame(n, job, boot_now)
  local to, reason = 'failed', 'worker_lost'
  if job[8] then
    to, reason = 'cancelled', 'cancelled_by_user'
    over(n, to, reason, 'cancelled by ' .. job[8] .. '; its worker was lost')
  elseif released then
    reason = 'lease_lost'
    over(n, to, reason, 'its device was taken from it by an operator')
  elseif blamed >= max_losses then
    reason = 'poison'
    over(n, to, reason, 'lost its worker ' .. digits(blamed) .. ' times')
  elseif not shape_name or not whole(job[5]) then
    reason = 'bad_payload'
    over(n, to, reason, 'its record in Redis cannot be read')
  else
    to = 'pending'
    redis.call('HSET', job_key(n), 'state', to, 'reason', reason, 'detail',
      'worker ' .. (job[9] or '') .. ' was lost')
    ready(n, shape_name, job[5])
  end
  event(how, n, 'from', 'running', 'to', to, 'worker', job[9] or '', 'device', job[3] or '', 'fence', run_fence,
    'reason', reason)
end
