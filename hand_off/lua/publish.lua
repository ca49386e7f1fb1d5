-- publish(run, cut): readers may go to this run. Anybody may repeat it for the last entry of the publish log.
local published = redis.call('HGET', KEYS[2], 'published')
if not published then
  return 'NO META'
end
if tonumber(published) >= tonumber(ARGV[1]) then
  return tonumber(published) == tonumber(ARGV[1]) and 'ALREADY' or 'OLD'
end
for _, each in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  local generation = cjson.decode(each)
  if generation.run == tonumber(ARGV[1]) and generation.from == ARGV[2] then
    -- A hand-off is what frees memory, so it goes on where memory is full: Redis refuses a first write that may take more,
    -- and none after it. This one takes nothing.
    redis.call('PERSIST', KEYS[2])
    redis.call('HSET', KEYS[2], 'published', ARGV[1])
    return 'OK'
  end
end
return 'NO GENERATION'
