-- NEEDS instance
-- A random name of this namespace's life: another or none means that the data are not those we knew.
local life = redis.call('GET', instance) or ''
