-- takeover(token, run, cut, generation, seen by): after the durable append. Moves the speed layer to the run's cut.
-- All seen ids are loaded again if `seen by` is not the newest generation: see overtake.lua.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'FENCED'
end
local applied, published = unpack(redis.call('HMGET', KEYS[2], 'applied', 'published'))
if not applied then
  return 'NO META'
end
if tonumber(published) >= tonumber(ARGV[2]) then
  return 'OLD'
end
local cut = cjson.decode(ARGV[3])
for partition, offset in pairs(cjson.decode(applied)) do
  if offset > (cut[partition] or 0) then
    return 'BEHIND'
  end
end
local made = cjson.decode(ARGV[4])
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
redis.call('HSET', KEYS[2], 'applied', ARGV[3], 'published', ARGV[2], 'made', made.gid)
local newest = redis.call('LINDEX', KEYS[3], -1)
if ARGV[5] ~= '*' and not (newest and cjson.decode(newest).gid == ARGV[5]) then
  redis.call('HSET', KEYS[2], 'marked', '{}', 'horizon', 0)
  redis.call('UNLINK', KEYS[4])
end
redis.call('DEL', KEYS[3])
redis.call('RPUSH', KEYS[3], ARGV[4])
redis.call('HSET', KEYS[5], made.gid, made.views)
redis.call('HDEL', KEYS[7], 'problem') -- whatever it was: the speed views go on elsewhere
return 'OK'
