-- overtake(run, cut, generation, is another reading): after the durable append of a run at the master's end. Moves the speed layer to the run's
-- cut while its writer lives: the epoch stays, and what the writer has in flight is refused. Anybody may repeat it for the
-- last entry of the publish log, whose run has no generation. Where its views read records otherwise than those before it, other
-- ones have ids that count: all seen ids are loaded again.
local applied, published = unpack(redis.call('HMGET', KEYS[2], 'applied', 'published'))
if not applied or not published then
  return 'NO META'
end
if tonumber(published) >= tonumber(ARGV[1]) then
  return tonumber(published) == tonumber(ARGV[1]) and 'ALREADY' or 'OLD'
end
local cut = cjson.decode(ARGV[2])
for partition, offset in pairs(cjson.decode(applied)) do
  if offset > (cut[partition] or 0) then
    return 'BEHIND'
  end
end
local made = cjson.decode(ARGV[3])
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
redis.call('HSET', KEYS[2], 'applied', ARGV[2], 'published', ARGV[1], 'made', made.gid)
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[2], 'marked', '{}', 'horizon', 0)
  redis.call('UNLINK', KEYS[4])
end
redis.call('DEL', KEYS[3])
redis.call('RPUSH', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[5], made.gid, made.views)
return 'OK'
