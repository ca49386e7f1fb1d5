-- answer(run, cut, prefix of data keys, view, first bucket, end of buckets, most buckets, key...): what a reader adds
-- to the batch view of a run: the states of the generations from its own on, all of one moment.
-- Without keys: all of each bucket. Returns OK, applied, published, then for each bucket: its time, {key, state, ...}.
local applied, published = unpack(redis.call('HMGET', KEYS[2], 'applied', 'published'))
if not applied then
  return {'LOST'}
end
local found, gids = false, {}
for _, each in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  local generation = cjson.decode(each)
  if generation.run == tonumber(ARGV[1]) then
    found = generation.from == ARGV[2]
    gids = {}
  end
  gids[#gids + 1] = generation.gid
end
if not found then
  return {'REFUSED', applied, published}
end
local FIRST_KEY = 8
local MOST = 2000 -- arguments that Lua can hand to one command, safely
local function of_keys(bucket)
  local rows = {}
  for first = FIRST_KEY, #ARGV, MOST do
    local last = math.min(first + MOST - 1, #ARGV)
    for place, state in ipairs(redis.call('HMGET', bucket, unpack(ARGV, first, last))) do
      if state then
        rows[#rows + 1] = ARGV[first + place - 1]
        rows[#rows + 1] = state
      end
    end
  end
  return rows
end
local states = {}
for _, gid in ipairs(gids) do
  local view = ARGV[3] .. gid .. ':' .. ARGV[4]
  local buckets = redis.call('ZRANGEBYSCORE', view, ARGV[5], '(' .. ARGV[6], 'LIMIT', 0, ARGV[7] + 1)
  if #buckets > tonumber(ARGV[7]) then
    return {'TOO MANY', applied, published}
  end
  for _, bucket in ipairs(buckets) do
    local data = view .. ':' .. bucket
    local rows = #ARGV < FIRST_KEY and redis.call('HGETALL', data) or of_keys(data)
    if #rows > 0 then
      states[#states + 1] = bucket
      states[#states + 1] = rows
    end
  end
end
return {'OK', applied, published, states}
