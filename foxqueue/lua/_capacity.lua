-- NEEDS max_unfinished max_unfinished_user
-- FOUND unfinished HASH
-- Whether so many more jobs of a user would be too many: nil, or the answer to give.
local function too_many(owner, how_many)
  local function beyond(limit, current, whose)
    if current + how_many > limit then
      return { 'full', life, whose, digits(limit), digits(current) }
    end
  end
  if max_unfinished < OFF then
    local total = 0
    for _, of_user in ipairs(redis.call('HVALS', named('unfinished'))) do
      total = total + count(of_user)
    end
    local found = beyond(max_unfinished, total, 'queue')
    if found then
      return found
    end
  end
  if max_unfinished_user < OFF and owner and owner ~= '' then
    return beyond(max_unfinished_user, count(redis.call('HGET', named('unfinished'), owner)), 'user')
  end
end
