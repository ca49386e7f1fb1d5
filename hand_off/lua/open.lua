-- open(gid, run, catalog): a new generation at what is applied now. It computes its own views and all those that
-- a generation before it was opened for, which readers may still be served from. Returns the cut.
local applied = redis.call('HGET', KEYS[2], 'applied')
if not applied or redis.call('EXISTS', KEYS[3]) == 0 then
  return false
end
local is_there, views = {}, {}
local function take(catalog)
  for hash in string.gmatch(catalog, '%S+') do
    if not is_there[hash] then
      is_there[hash] = true
      views[#views + 1] = hash
    end
  end
end
take(ARGV[3])
for _, each in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  local generation = cjson.decode(each)
  if generation.gid == ARGV[1] then
    return generation.from -- the reply was lost, and this is the same call again
  end
  take(generation.catalog)
end
table.sort(views)
local listed = table.concat(views, ' ')
redis.call('PERSIST', KEYS[2]) -- so that the next one is not refused where memory is full: see publish.lua
redis.call('RPUSH', KEYS[3], cjson.encode({gid = ARGV[1], run = tonumber(ARGV[2]), from = applied,
                                           catalog = ARGV[3], views = listed}))
redis.call('HSET', KEYS[5], ARGV[1], listed)
return applied
