-- NEEDS number fence
-- Every script about a running job starts here. Equality of strings, never of numbers.
-- Returns nil when the run is the current one, else the word to answer: the word of an end that this very
-- fence has had already, `stale` when another run or none has the job, `missing` when there is no job.
-- Behind it come the fields asked for, of a current run.
local function guard(...)
  local job = read_job(number, 'state', 'fence', 'settled', 'settled_as', ...)
  if not job or not job[1] then
    return 'missing'
  end
  if job[3] == fence then
    return job[4]
  end
  if job[1] == 'running' and job[2] == fence then
    return nil, unpack(job, 5)
  end
  return 'stale'
end
