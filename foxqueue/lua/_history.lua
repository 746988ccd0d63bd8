-- NEEDS prefix
-- FOUND history:<n> LIST
-- How a run ended that did not succeed: at most 20 are kept, the newest last. Lines: attempt, fence, started, ended,
-- host, device, how, reason, exit code, detail.
local function remember(n, how, run_fence, attempt, started, host, device, reason, code, detail)
  local key = prefix .. 'history:' .. n
  redis.call('RPUSH', key, table.concat({ attempt or '', run_fence, started or '', digits(now_ms), host or '',
    device or '', how, reason, code, detail }, '\n'))
  redis.call('LTRIM', key, -20, -1)
end
