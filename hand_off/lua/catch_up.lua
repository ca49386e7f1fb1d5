-- catch_up(prefix of data keys, the entry of the recent changes that the reader has read to, the cut that was applied then,
--          the server with its generations, what the speed views were created with, max keys, then for each range: view, first bucket,
--          end of buckets, 1 for headers alone)
-- The last step of a reader that read the states of these ranges in several calls: what micro-batches changed meanwhile.
-- KEYS: those of the source, then the recent changes.
-- Returns MOVED where the server, generations or meta changed, or what changed is no longer known: the reader begins again. Else
-- OK, applied, published, now in ms, the writer's last report, created with, the entry that was read to, the cut after it,
-- 1 if that is all, and flat: range, data key, bucket, {key, state, ...} or {} where any key of the bucket may have changed...
local applied, published, made = unpack(redis.call('HMGET', KEYS[2], 'applied', 'published', 'made'))
local texts = redis.call('LRANGE', KEYS[3], 0, -1)
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not applied or #texts == 0 or server .. table.concat(texts, '\n') ~= ARGV[4] or made ~= ARGV[5] then
  return {'MOVED'}
end
local newest = ARGV[1] .. cjson.decode(texts[#texts]).gid .. ':'
local ranges = {}
for at = 7, #ARGV, 4 do
  ranges[#ranges + 1] = { newest .. ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3] == '1' }
end
local since, cut, left, is_all = ARGV[2], ARGV[3], tonumber(ARGV[6]), 0
local changed, order = {}, {}
while left > 0 do
  local entry = redis.call('XRANGE', KEYS[8], '(' .. since, '+', 'COUNT', 1)[1]
  if not entry then
    is_all = 1
    break
  end
  local from, to, packed = entry[2][2], entry[2][4], entry[2][6]
  if from ~= cut or packed == '' then
    return {'MOVED'}
  end
  since, cut = entry[1], to
  local cells = cmsgpack.unpack(packed)
  for at = 1, #cells, 3 do
    local index, bucket, keys = cells[at], cells[at + 1], cells[at + 2]
    for number, range in ipairs(ranges) do
      if index == range[1] and tonumber(bucket) >= range[2] and tonumber(bucket) < range[3] then
        local name = number .. ' ' .. bucket
        if not changed[name] then
          changed[name] = { number, index .. ':' .. bucket, bucket, {} }
          order[#order + 1] = name
        end
        if keys == '' then
          changed[name][4] = nil
        elseif changed[name][4] then
          for _, key in ipairs(keys) do
            changed[name][4][key] = true
          end
          left = left - #keys
        end
      end
    end
  end
end
if is_all == 1 and cut ~= applied then
  return {'MOVED'}
end
local found = {}
for _, name in ipairs(order) do
  local number, data, bucket, keys = unpack(changed[name], 1, 4)
  local rows = {}
  for key in pairs(keys or {}) do
    rows[#rows + 1] = key
    local state = redis.call('HGET', data, key) or ''
    rows[#rows + 1] = ranges[number][4] and string.match(state, '^[^\n]*') or state
  end
  for _, each in ipairs({number, data, bucket, rows}) do
    found[#found + 1] = each
  end
end
local time = redis.call('TIME')
local looked = redis.call('HMGET', KEYS[7], 'end', 'at', 'applied', 'applied_at', 'problem')
return {'OK', applied, published, time[1] * 1000 + math.floor(time[2] / 1000), looked, made, since, cut, is_all, found}
