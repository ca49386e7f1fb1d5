-- init(token, cut, run, generation, id of the topic): make meta from the last entry of the publish log, which was read
-- after `start`.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[2]) == 1 then
  return 'FENCED'
end
local made = cjson.decode(ARGV[4])
redis.call('HSET', KEYS[2], 'applied', ARGV[2], 'marked', '{}', 'published', ARGV[3], 'horizon', 0, 'topic', ARGV[5],
           'made', made.gid)
redis.call('DEL', KEYS[3], KEYS[4])
redis.call('RPUSH', KEYS[3], ARGV[4])
redis.call('HSET', KEYS[5], made.gid, made.views)
return 'OK'
