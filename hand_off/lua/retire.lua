-- retire(gid): drop the generations before this one; never that of the published run, nor a later one.
local published, first, most = tonumber(redis.call('HGET', KEYS[2], 'published') or -1), 0, 0
for place, each in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  local generation = cjson.decode(each)
  if generation.gid == ARGV[1] then
    first = place - 1
  end
  if generation.run == published then
    most = place - 1
  end
end
local dropped = math.min(first, most)
if dropped > 0 then
  redis.call('LTRIM', KEYS[3], dropped, -1)
end
return dropped
