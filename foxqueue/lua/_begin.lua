-- NEEDS instance settings
-- The namespace's life begins with its first job, worker or setting; the schema of the data is written down with it.
local function begin_life(candidate)
  if life ~= '' then
    return
  end
  if not redis.call('SET', instance, candidate, 'NX') then
    redis.call('GET', instance) -- it is there and no text: this fails
  end
  redis.call('HSETNX', settings, 'schema', SCHEMA)
  life = candidate
end
