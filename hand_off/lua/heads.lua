-- heads(about how many keys of each bucket, then for each bucket: data key, cursor of its scan)
-- A part of several buckets for a reader that needs the headers of their states alone. As with HSCAN, a key that is there all
-- the time is returned at least once, and a scan is over when its cursor is 0 again.
-- Returns flat: cursor, {key, header, ...} for each bucket.
local found = {}
for at = 2, #ARGV, 2 do
  local cursor, rows = unpack(redis.call('HSCAN', ARGV[at], ARGV[at + 1], 'COUNT', ARGV[1]))
  for place = 2, #rows, 2 do
    rows[place] = string.match(rows[place], '^[^\n]*')
  end
  found[#found + 1] = cursor
  found[#found + 1] = rows
end
return found
