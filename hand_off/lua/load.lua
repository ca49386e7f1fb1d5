-- load(token, chunk, is last, name of the seen ids, seen ids, horizon): ids of events below `applied` that were counted
-- without them. Chunk 1 starts over; each further one must follow the one before, else Redis forgot some in between.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[2]) == 0 then
  return 'FENCED'
end
if ARGV[2] ~= '1' and redis.call('HGET', KEYS[2], 'chunk') ~= tostring(tonumber(ARGV[2]) - 1) then
  return 'RESTART'
end
redis.call('HSET', KEYS[2], 'chunk', ARGV[2])
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[4], ARGV[4], ARGV[5])
end
if ARGV[3] == '1' then
  redis.call('HSET', KEYS[2], 'marked', redis.call('HGET', KEYS[2], 'applied'), 'horizon', ARGV[6])
  redis.call('HDEL', KEYS[2], 'chunk')
end
return 'OK'
