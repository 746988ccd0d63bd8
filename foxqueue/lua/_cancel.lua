-- A user ends a job. job: state, shape, worker.
local function cancel_one(n, job, who)
  local state = job[1]
  if state == 'running' then
    if redis.call('HSETNX', job_key(n), 'cancel_requested', who) == 1 then
      event('cancel', n, 'from', state, 'to', state, 'by', who)
    end
    send_token(job[3] or '', 'cancel:' .. n)
    return 'ok'
  end
  if not is_waiting(state) then
    return state
  end
  take_out(n, state, job[2])
  over(n, 'cancelled', 'cancelled_by_user', 'cancelled by ' .. who)
  event('cancel', n, 'from', state, 'to', 'cancelled', 'by', who)
  return 'cancelled'
end
