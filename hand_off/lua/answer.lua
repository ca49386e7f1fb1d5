-- answer(run, cut, prefix of data keys, max buckets, max states, max bytes, then for each range: view, first bucket, end of
--        buckets, beginning of keys, 1 for headers alone, how many keys, key...)
-- What a reader adds to the batch views of a run: the states of the generations from its own on, of one or several views,
-- all of one moment. How many keys is -1: all that begin so.
-- In the place of the 1 may stand rank:depth:whole. Then these are the keys, and in each bucket the `depth` keys beside
-- them that have the largest numbers; the states of the first `whole` keys are whole, of the others come the headers.
-- Returns OK, applied, published, now in ms, the writer's last report of Kafka's end and of its problem, the generation that the speed
-- views were created with, then for each range
-- {bucket, {key, state, ...}, bucket, ...}, for each range the most that a key that is not among these
-- can have in all buckets together (-1: the range was not read, because its keys are not ranked or its buckets are too many),
-- and for each range the last key of each list: a key that has that most comes after all of them in the order of bytes.
local applied, published, made = unpack(redis.call('HMGET', KEYS[2], 'applied', 'published', 'made'))
if not applied or redis.call('EXISTS', KEYS[3]) == 0 then
  return {'LOST'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local looked = redis.call('HMGET', KEYS[7], 'end', 'at', 'applied', 'applied_at', 'problem')
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
-- The same where most of the keys are not there.
local function of_few(data, first_key, last_key)
  local wanted, all, rows = {}, redis.call('HGETALL', data), {}
  for place = first_key, last_key do
    wanted[ARGV[place]] = true
  end
  for place = 1, #all, 2 do
    if wanted[all[place]] then
      rows[#rows + 1] = all[place]
      rows[#rows + 1] = all[place + 1]
    end
  end
  return rows
end
-- About how many bytes so many of its states are.
local function bytes_of(data, count)
  local one = redis.call('HRANDFIELD', data)
  return one and count * redis.call('HSTRLEN', data, one) or 0
end
local function heads_of(rows)
  for place = 2, #rows, 2 do
    rows[place] = string.match(rows[place], '^[^\n]*')
  end
  return rows
end
local buckets_left, states_left, bytes_left = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local MAX_CELLS = 64 -- buckets whose ranks are worth looking at

local function cells_of(view, first, stop)
  local cells = {}
  for _, gid in ipairs(gids) do
    local index = ARGV[3] .. gid .. ':' .. view
    local buckets = redis.call('ZRANGEBYSCORE', index, first, '(' .. stop, 'LIMIT', 0, buckets_left + 1)
    buckets_left = buckets_left - #buckets
    if buckets_left < 0 then
      return nil
    end
    for _, bucket in ipairs(buckets) do
      cells[#cells + 1] = { bucket, index .. ':' .. bucket }
    end
  end
  return cells
end
-- The first `depth` keys of a bucket, equal ones in the order of their bytes; and the number of the last one, where there are more.
local function first_of(ranks, size, depth)
  if size <= depth then
    return redis.call('ZREVRANGE', ranks, 0, -1), nil
  end
  local least = redis.call('ZREVRANGE', ranks, depth - 1, depth - 1, 'WITHSCORES')[2]
  local keys = redis.call('ZREVRANGEBYSCORE', ranks, '+inf', '(' .. least)
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', ranks, least, least, 'LIMIT', 0, depth - #keys)) do
    keys[#keys + 1] = key
  end
  return keys, tonumber(least)
end
-- The keys that can come first, beside those that are given, what any other key has at most, and the last key of each
-- list; nil where nobody knows.
local function first_keys(cells, rank, depth, first_key, last_key)
  local keys, known, rest, lasts = {}, {}, 0, {}
  for place = first_key, last_key do
    keys[#keys + 1] = ARGV[place]
    known[ARGV[place]] = true
  end
  for _, cell in ipairs(cells) do
    local ranks, size = cell[2] .. ':' .. rank, redis.call('HLEN', cell[2])
    if redis.call('ZCARD', ranks) ~= size then
      return nil
    end
    local found, least = first_of(ranks, size, depth)
    for _, key in ipairs(found) do
      if not known[key] then
        known[key] = true
        keys[#keys + 1] = key
      end
    end
    if least and least > 0 then
      rest = rest + least
      lasts[#lasts + 1] = found[#found]
    end
  end
  return keys, rest, lasts
end
local function of_first(data, keys, whole)
  local rows = {}
  for first = 1, #keys, MOST do
    local found = redis.call('HMGET', data, unpack(keys, first, math.min(first + MOST - 1, #keys)))
    for place, state in ipairs(found) do
      if state then
        rows[#rows + 1] = keys[first + place - 1]
        rows[#rows + 1] = first + place - 1 <= whole and state or string.match(state, '^[^\n]*')
      end
    end
  end
  return rows
end
local answers, rests, lasts, at = {}, {}, {}, 7
while at <= #ARGV do
  local states, rest, count = {}, -1, tonumber(ARGV[at + 5])
  local rank, depth, whole = string.match(ARGV[at + 4], '^(%d+):(%d+):(%d+)$')
  local cells = cells_of(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  if not cells then
    return {'TOO MANY', applied, published, now, looked, made}
  end
  local keys, last
  if rank then
    if #cells <= MAX_CELLS then
      keys, rest, last = first_keys(cells, rank, tonumber(depth), at + 6, at + 5 + count)
    end
    if not keys then
      cells, rest = {}, -1
    end
  end
  for _, cell in ipairs(cells) do
    local bucket, data = cell[1], cell[2]
    -- Counted before they are read: a reader must not stop the writer for long.
    local size = redis.call('HLEN', data)
    local looked_at = math.min(keys and #keys or count < 0 and size or count, size)
    states_left, bytes_left = states_left - looked_at, bytes_left - bytes_of(data, looked_at)
    if states_left < 0 or bytes_left < 0 then
      return {'TOO MANY', applied, published, now, looked, made}
    end
    local rows
    if keys then
      rows = of_first(data, keys, tonumber(whole))
    elseif count < 0 then
      rows = of_beginning(data, ARGV[at + 3])
    elseif count > size then
      rows = of_few(data, at + 6, at + 5 + count)
    else
      rows = of_keys(data, at + 6, at + 5 + count)
    end
    if #rows > 0 then
      states[#states + 1] = bucket
      states[#states + 1] = ARGV[at + 4] == '1' and heads_of(rows) or rows
    end
  end
  answers[#answers + 1] = states
  rests[#rests + 1] = string.format('%.17g', rest)
  lasts[#lasts + 1] = last or {}
  at = at + 6 + math.max(count, 0)
end
return {'OK', applied, published, now, looked, made, answers, rests, lasts}
