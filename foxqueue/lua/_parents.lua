-- NEEDS prefix
-- FOUND blocked_by:<n> HASH parent -> `<condition>:<born>` or `met:<condition>:<born>`
-- FOUND dependents:<n> ZSET child -> its number
-- Whether the end of a parent is what a child waited for.
local function meets(condition, state)
  if condition == 'ended' then
    return true
  end
  return state == condition or (condition == 'any' and state ~= 'cancelled')
end

-- Why a job's dependency can no longer be met, for people.
-- parent: state, born, reason, detail, whether it knows of dependents
local PARENT = { 'state', 'born', 'reason', 'detail', 'dependents' }
local function why_never(n, parent)
  if not parent or not parent[1] then
    return 'job ' .. n .. ' is gone'
  end
  local reason = parent[1] ~= 'succeeded' and parent[3] or ''
  if reason == 'dependency_failed' then
    local chain = parent[4] or ''
    if #chain > 150 then -- the first cause, which stands in the innermost brackets
      chain = '… ' .. (string.match(chain, 'job %d+ %l+ %([^()]*%)') or string.sub(chain, -100))
    end
    reason = reason .. ': ' .. chain
  end
  return 'job ' .. n .. ' ' .. parent[1] .. (reason ~= '' and ' (' .. reason .. ')' or '')
end

-- What a parent means for a child now: `open`, `met` or `never`.
local function judged(parent, condition)
  if not has_ended(parent[1]) then
    return 'open'
  end
  return meets(condition, parent[1]) and 'met' or 'never'
end

-- Runs of a unique key's earlier jobs that have still to end: edges to those that its holder waits for, or waited for.
local function runs_before(holder)
  local found = {}
  local edges = redis.call('HGETALL', prefix .. 'blocked_by:' .. holder)
  for i = 1, #edges, 2 do
    local parent_born = string.match(edges[i + 1], '^ended:(%d*)$')
    local parent = parent_born and read_job(edges[i], unpack(PARENT))
    if parent and parent[2] == parent_born and not has_ended(parent[1]) then
      found[#found + 1] = { edges[i], 'ended', parent_born, 'open', parent[5] }
    end
  end
  return found
end

-- Write down what a job waits for. edges: parent, condition, its born, what it means now, and whether the parent knows
-- of dependents: true for one that is gone, to which nothing is written.
local function tie(n, edges)
  local texts = {}
  for _, edge in ipairs(edges) do
    texts[#texts + 1] = edge[1]
    texts[#texts + 1] = (edge[4] == 'met' and 'met:' or '') .. edge[2] .. ':' .. edge[3]
    if edge[5] ~= true then
      redis.call('ZADD', prefix .. 'dependents:' .. edge[1], n, n)
    end
    if not edge[5] then
      redis.call('HSET', job_key(edge[1]), 'dependents', '1')
    end
  end
  redis.call('HSET', prefix .. 'blocked_by:' .. n, unpack(texts))
end
