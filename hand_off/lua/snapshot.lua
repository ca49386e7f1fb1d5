-- look(): epoch, meta and the generations, as they are together.
return {
  redis.call('GET', KEYS[1]),
  redis.call('HMGET', KEYS[2], 'applied', 'marked', 'published', 'horizon', 'topic', 'made'),
  redis.call('LRANGE', KEYS[3], 0, -1),
}
