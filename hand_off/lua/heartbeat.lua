-- heartbeat(token, milliseconds, Kafka's end, ms since then, applied cut, ms since that was all, problem): the writer lives,
-- how far it is, and why it cannot go on; '' where it can. Safety does not rely on it. Kafka's end is '' where it is not known
-- yet. 0 milliseconds: it does not live, and reports its problem alone.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'FENCED'
end
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
if ARGV[2] ~= '0' then
  redis.call('SET', KEYS[6], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[2])
end
redis.call('HSET', KEYS[7], 'problem', ARGV[7])
if ARGV[3] ~= '' then
  -- By the clock of Redis, by which readers go too: those of machines differ.
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', KEYS[7], 'end', ARGV[3], 'at', string.format('%.0f', now - ARGV[4]))
  if ARGV[6] ~= '' then
    redis.call('HSET', KEYS[7], 'applied', ARGV[5], 'applied_at', string.format('%.0f', now - ARGV[6]))
  else
    -- What an earlier report said of an earlier cut is still true: a writer that starts again does not know it.
    redis.call('HSETNX', KEYS[7], 'applied', ARGV[5])
    redis.call('HSETNX', KEYS[7], 'applied_at', '')
  end
end
return 'OK'
