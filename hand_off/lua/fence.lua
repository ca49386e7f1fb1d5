-- fence(token): the first step of a takeover. What is applied stands still until a writer starts.
local applied = redis.call('HGET', KEYS[2], 'applied')
if applied then
  redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
  redis.call('SET', KEYS[1], ARGV[1])
end
return applied
