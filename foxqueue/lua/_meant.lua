-- NEEDS number born
-- Every request about a job starts here: fields of the job that is meant, in the order asked for; or nil and what to
-- answer: what an earlier copy of the request was answered, `missing`, or `stale` when the number is another job's.
local function meant(...)
  local earlier = answered()
  if earlier then
    local word, more = string.match(earlier, '^(%l+):(.*)$')
    return nil, { word or earlier, life, more }
  end
  local job = read_job(number, 'state', 'born', ...)
  if not job or not job[1] then
    return nil, { answer('missing'), life }
  end
  if born ~= '' and job[2] ~= born then
    return nil, { answer('stale'), life }
  end
  return { job[1], unpack(job, 3) }
end
