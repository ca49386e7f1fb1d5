-- overtake(run, cut, generation, seen by): after the durable append of a run at the master's end. Moves the speed layer to the run's
-- cut while its writer lives: the epoch stays, and what the writer has in flight is refused. Anybody may repeat it for the
-- last entry of the publish log, whose run has no generation. `seen by` is the newest generation whose views the caller has found
-- to read records as those of the run do. If it is not the newest one, other records may have ids that count: all seen ids
-- are loaded again.
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
local newest = redis.call('LINDEX', KEYS[3], -1)
if ARGV[4] ~= '*' and not (newest and cjson.decode(newest).gid == ARGV[4]) then
  redis.call('HSET', KEYS[2], 'marked', '{}', 'horizon', 0)
  redis.call('UNLINK', KEYS[4])
end
redis.call('DEL', KEYS[3])
redis.call('RPUSH', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[5], made.gid, made.views)
return 'OK'
