-- apply(token, from, to, gid, name of the seen ids, seen ids, horizon, entry of the change log, how many entries are kept,
--       by how many bytes the states grow, how many seen ids to forget, their names...,
--       then for each bucket: its time in seconds, how many states, key, state, key, state..., by how many numbers its keys
--       are ranked, and for each of these: number, key, number, key...)
-- KEYS: epoch, meta, gens, seen, gids, change log, recent changes, then for each bucket the index of its view and its data.
-- One micro-batch: the states as they are after it, its seen ids, and the cut, all or nothing.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'FENCED'
end
local applied, marked, horizon = unpack(redis.call('HMGET', KEYS[2], 'applied', 'marked', 'horizon'))
if not applied then
  return 'FENCED'
end
if applied == ARGV[3] then
  return 'ALREADY'
end
if applied ~= ARGV[2] then
  return 'RESTART'
end
-- The seen ids end elsewhere, or reach back less far than the writer needs. A writer that drops no duplicates needs none.
local wanted = tonumber(ARGV[7])
if wanted > 0 and (marked ~= applied or tonumber(horizon or 0) < wanted) then
  return 'LOAD'
end
local newest = redis.call('LINDEX', KEYS[3], -1)
if not newest or cjson.decode(newest).gid ~= ARGV[4] then
  return 'RETRY'
end
-- The first write is one that Redis refuses when its memory is full; after it, none is refused.
redis.call('HSET', KEYS[2], 'applied', ARGV[3], 'marked', ARGV[3], 'horizon', ARGV[7], 'short_keys', 1)
redis.call('HINCRBY', KEYS[2], 'bytes:' .. ARGV[4], ARGV[10])
if wanted == 0 then
  redis.call('UNLINK', KEYS[4])
end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[4], ARGV[5], ARGV[6])
end
-- The change log: what this micro-batch changed; empty where nobody follows.
if ARGV[8] ~= '' then
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[9], '*', 'from', ARGV[2], 'to', ARGV[3], 'groups', ARGV[8])
end
local at = 12
for _ = 1, tonumber(ARGV[11]) do
  redis.call('HDEL', KEYS[4], ARGV[at])
  at = at + 1
end
local MOST = 2000 -- arguments that Lua can hand to one command, safely
local function put(command, key, count)
  local last = at + 2 * count - 1
  while at <= last do
    local stop = math.min(at + MOST - 1, last)
    redis.call(command, key, unpack(ARGV, at, stop))
    at = stop + 1
  end
end
-- The recent changes: for each bucket of this micro-batch its keys, or '' where these are many. Readers that need several calls
-- for their states read again what changed meanwhile (catch_up.lua).
local MAX_RECENT, MAX_RECENT_BYTES, MAX_RECENT_BUCKETS = 128, 131072, 4000
local recent, recent_bytes = {}, 0
local function note(index, bucket, count)
  local keys = {}
  for place = at, at + 2 * count - 1, 2 do
    keys[#keys + 1] = ARGV[place]
    recent_bytes = recent_bytes + #ARGV[place]
  end
  recent[#recent + 1] = index
  recent[#recent + 1] = bucket
  recent[#recent + 1] = recent_bytes <= MAX_RECENT_BYTES and keys or ''
end
for place = 8, #KEYS, 2 do
  local bucket, count = ARGV[at], tonumber(ARGV[at + 1])
  redis.call('ZADD', KEYS[place], bucket, bucket)
  at = at + 2
  note(KEYS[place], bucket, count)
  put('HSET', KEYS[place + 1], count)
  local ranks = tonumber(ARGV[at])
  at = at + 1
  for rank = 1, ranks do
    put('ZADD', KEYS[place + 1] .. ':' .. rank, count)
  end
end
local cells = #recent <= 3 * MAX_RECENT_BUCKETS and cmsgpack.pack(recent) or ''
redis.call('XADD', KEYS[7], 'MAXLEN', MAX_RECENT, '*', 'from', ARGV[2], 'to', ARGV[3], 'cells', cells)
return 'OK'
