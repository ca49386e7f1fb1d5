-- snapshot(): epoch, meta and the generations at one moment.
return {
  redis.call('GET', KEYS[1]),
  redis.call('HMGET', KEYS[2], 'applied', 'marked', 'published', 'horizon', 'topic', 'made'),
  redis.call('LRANGE', KEYS[3], 0, -1),
}
