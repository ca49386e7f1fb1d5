-- cells(run, cut, prefix of data keys, max buckets, then for each range: view, first bucket, end of buckets, how many keys)
-- The first step of a reader that reads the states of these ranges in several calls: where they are, and how many.
-- KEYS: those of the source, then the recent changes.
-- Returns what `answer` returns up to its states, then the server with its generations, the newest entry of the recent changes, and flat:
-- range, data key, bucket, how many states...; about how many bytes all these are.
local applied, published, made = unpack(redis.call('HMGET', KEYS[2], 'applied', 'published', 'made'))
local texts = redis.call('LRANGE', KEYS[3], 0, -1)
if not applied or #texts == 0 then
  return {'LOST'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local looked = redis.call('HMGET', KEYS[7], 'end', 'at', 'applied', 'applied_at', 'problem')
local is_known, gids = false, {}
for _, each in ipairs(texts) do
  local generation = cjson.decode(each)
  if generation.run == tonumber(ARGV[1]) then
    is_known = generation.from == ARGV[2]
    gids = {}
  end
  gids[#gids + 1] = generation.gid
end
if not is_known then
  return {'REFUSED', applied, published, now, looked, made}
end
local found, bytes, left = {}, 0, tonumber(ARGV[4])
for at = 5, #ARGV, 4 do
  local count = tonumber(ARGV[at + 3])
  for _, gid in ipairs(gids) do
    local index = ARGV[3] .. gid .. ':' .. ARGV[at]
    local buckets = redis.call('ZRANGEBYSCORE', index, ARGV[at + 1], '(' .. ARGV[at + 2], 'LIMIT', 0, left + 1)
    left = left - #buckets
    if left < 0 then
      return {'TOO MANY', applied, published, now, looked, made}
    end
    for _, bucket in ipairs(buckets) do
      local data = index .. ':' .. bucket
      local size, one = redis.call('HLEN', data), redis.call('HRANDFIELD', data)
      size = count < 0 and size or math.min(count, size)
      bytes = bytes + (one and size * redis.call('HSTRLEN', data, one) or 0)
      for _, each in ipairs({(at - 1) / 4, data, bucket, size}) do
        found[#found + 1] = each
      end
    end
  end
end
-- A Redis that was restarted may have gone back: what was read before is of another history.
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local last = redis.call('XREVRANGE', KEYS[8], '+', '-', 'COUNT', 1)[1]
return {'OK', applied, published, now, looked, made, server .. table.concat(texts, '\n'), last and last[1] or '0-0', found, bytes}
