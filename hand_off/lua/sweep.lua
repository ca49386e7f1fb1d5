-- sweep(gid, is last, bucket, bucket...): delete states of a generation that is no longer there.
-- KEYS: epoch, meta, gens, seen, gids, then for each bucket the index of its view and its data.
for _, each in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  if cjson.decode(each).gid == ARGV[1] then
    return 'IN USE'
  end
end
for place = 6, #KEYS, 2 do
  redis.call('UNLINK', KEYS[place + 1])
  local rank = 1
  while redis.call('UNLINK', KEYS[place + 1] .. ':' .. rank) == 1 do
    rank = rank + 1
  end
  redis.call('ZREM', KEYS[place], ARGV[3 + (place - 6) / 2])
end
if ARGV[2] == '1' then
  redis.call('HDEL', KEYS[5], ARGV[1])
  redis.call('HDEL', KEYS[2], 'bytes:' .. ARGV[1])
end
return 'OK'
