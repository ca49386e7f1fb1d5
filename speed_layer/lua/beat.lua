-- beat(token, milliseconds): the writer lives. For others to see only; nothing relies on it.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'FENCED'
end
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
redis.call('SET', KEYS[6], ARGV[1], 'PX', ARGV[2])
return 'OK'
