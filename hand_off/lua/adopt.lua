-- adopt(run, catalog, most): where `most` or more generations are of runs that were not published, a run takes over the
-- newest of them instead of opening one more. That one keeps its id, its cut and its states; its own run can be published
-- no more. Returns the cut; nothing where the run opens its own.
local published = tonumber(redis.call('HGET', KEYS[2], 'published') or -1)
local generations = redis.call('LRANGE', KEYS[3], 0, -1)
if published < 0 or #generations == 0 then
  return false
end
local last, after = cjson.decode(generations[#generations]), 0
for place, each in ipairs(generations) do
  if cjson.decode(each).run == published then
    after = #generations - place
  end
end
if last.run == tonumber(ARGV[1]) then
  return last.from -- the reply was lost, and this is the same call again
end
if after == 0 or after < tonumber(ARGV[3]) then
  return false
end
local is_there = {}
for hash in string.gmatch(last.views, '%S+') do
  is_there[hash] = true
end
for hash in string.gmatch(ARGV[2], '%S+') do
  if not is_there[hash] then
    return false
  end
end
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
last.run, last.catalog = tonumber(ARGV[1]), ARGV[2]
redis.call('LSET', KEYS[3], -1, cjson.encode(last))
return last.from
