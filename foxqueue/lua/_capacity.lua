-- NEEDS max_unfinished max_unfinished_user
-- FOUND unfinished HASH
-- Whether so many more jobs, and so many of one user, would be too many: nil, or the answer to give.
local function too_many(owner, in_all, of_owner)
  local function beyond(limit, current, how_many, whose)
    if current + how_many > limit then
      return { 'full', life, whose, digits(limit), digits(current) }
    end
  end
  if max_unfinished < OFF then
    local total = 0
    for _, of_user in ipairs(redis.call('HVALS', named('unfinished'))) do
      total = total + count(of_user)
    end
    local found = beyond(max_unfinished, total, in_all, 'queue')
    if found then
      return found
    end
  end
  if max_unfinished_user < OFF and owner and owner ~= '' then
    return beyond(max_unfinished_user, count(redis.call('HGET', named('unfinished'), owner)), of_owner, 'user')
  end
end
