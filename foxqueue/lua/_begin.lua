-- NEEDS instance settings schema
-- The namespace's life begins with its first job, worker or setting; the schema of the data is written down with it,
-- and raised when a newer foxqueue begins to write.
local function begin_life(candidate)
  if life == '' then
    if not redis.call('SET', instance, candidate, 'NX') then
      redis.call('GET', instance) -- it is there and no text: this fails
    end
    life = candidate
    redis.call('HSETNX', settings, 'schema', SCHEMA)
  elseif values[6] ~= SCHEMA and schema <= tonumber(SCHEMA) then
    redis.call('HSET', settings, 'schema', SCHEMA)
  end
end
