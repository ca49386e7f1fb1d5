-- start(token): from here on only this writer may change what is applied. Returns meta and the generations.
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
redis.call('SET', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('DEL', KEYS[2]) -- without generations it tells of nothing: all of it was lost
end
return {
  redis.call('HMGET', KEYS[2], 'applied', 'marked', 'published', 'horizon', 'topic', 'made'),
  redis.call('LRANGE', KEYS[3], 0, -1),
}
