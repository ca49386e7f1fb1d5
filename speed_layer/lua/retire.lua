-- retire(how many): drop the first generations; never that of the published run, nor a later one.
local published, at = tonumber(redis.call('HGET', KEYS[2], 'published') or -1), 0
for place, each in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  if cjson.decode(each).run == published then
    at = place - 1
  end
end
local dropped = math.min(tonumber(ARGV[1]), at)
if dropped > 0 then
  redis.call('LTRIM', KEYS[3], dropped, -1)
end
return dropped
