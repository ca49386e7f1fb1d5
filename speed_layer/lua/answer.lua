-- answer(run, cut, prefix of data keys, most buckets, most states, then for each stretch: view, first bucket, end of
--        buckets, beginning of keys, 1 for headers alone, how many keys, key...)
-- What a reader adds to the batch views of a run: the states of the generations from its own on, of one or several views,
-- all of one moment. How many keys is -1: all that begin so.
-- Returns OK, applied, published, now in ms, what the writer last said of Kafka's end, by what the speed views were made,
-- then for each stretch
-- {bucket, {key, state, ...}, bucket, ...}.
local applied, published, made = unpack(redis.call('HMGET', KEYS[2], 'applied', 'published', 'made'))
if not applied then
  return {'LOST'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local looked = redis.call('HMGET', KEYS[7], 'end', 'at', 'applied', 'applied_at')
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
  return {'REFUSED', applied, published, now, looked, made}
end
local MOST = 2000 -- arguments that Lua can hand to one command, safely
local function of_keys(data, first_key, last_key)
  local rows = {}
  for first = first_key, last_key, MOST do
    local last = math.min(first + MOST - 1, last_key)
    for place, state in ipairs(redis.call('HMGET', data, unpack(ARGV, first, last))) do
      if state then
        rows[#rows + 1] = ARGV[first + place - 1]
        rows[#rows + 1] = state
      end
    end
  end
  return rows
end
local function of_beginning(data, beginning)
  local all, rows = redis.call('HGETALL', data), {}
  if beginning == '' then
    return all
  end
  for place = 1, #all, 2 do
    if string.sub(all[place], 1, #beginning) == beginning then
      rows[#rows + 1] = all[place]
      rows[#rows + 1] = all[place + 1]
    end
  end
  return rows
end
local function heads_of(rows)
  for place = 2, #rows, 2 do
    rows[place] = string.match(rows[place], '^[^\n]*')
  end
  return rows
end
local buckets_left, states_left = tonumber(ARGV[4]), tonumber(ARGV[5])
local answers, at = {}, 6
while at <= #ARGV do
  local states, count = {}, tonumber(ARGV[at + 5])
  for _, gid in ipairs(gids) do
    local view = ARGV[3] .. gid .. ':' .. ARGV[at]
    local buckets = redis.call('ZRANGEBYSCORE', view, ARGV[at + 1], '(' .. ARGV[at + 2], 'LIMIT', 0, buckets_left + 1)
    buckets_left = buckets_left - #buckets
    if buckets_left < 0 then
      return {'TOO MANY', applied, published, now, looked, made}
    end
    for _, bucket in ipairs(buckets) do
      local data = view .. ':' .. bucket
      -- Counted before they are read: a reader must not stop the writer for long.
      states_left = states_left - (count < 0 and redis.call('HLEN', data) or count)
      if states_left < 0 then
        return {'TOO MANY', applied, published, now, looked, made}
      end
      local rows = count < 0 and of_beginning(data, ARGV[at + 3]) or of_keys(data, at + 6, at + 5 + count)
      if #rows > 0 then
        states[#states + 1] = bucket
        states[#states + 1] = ARGV[at + 4] == '1' and heads_of(rows) or rows
      end
    end
  end
  answers[#answers + 1] = states
  at = at + 6 + math.max(count, 0)
end
return {'OK', applied, published, now, looked, made, answers}
