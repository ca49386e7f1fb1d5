-- heartbeat(token, milliseconds, Kafka's end, ms since then, applied cut, ms since that was all): the writer lives, and how far
-- it is. Safety does not rely on it. Kafka's end is '' where it is not known yet.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'FENCED'
end
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
redis.call('SET', KEYS[6], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[2])
if ARGV[3] ~= '' then
  -- By the clock of Redis, by which readers go too: those of machines differ.
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local applied_at = ARGV[6] ~= '' and string.format('%.0f', now - ARGV[6]) or ''
  redis.call('HSET', KEYS[7], 'end', ARGV[3], 'at', string.format('%.0f', now - ARGV[4]), 'applied', ARGV[5],
             'applied_at', applied_at)
end
return 'OK'
