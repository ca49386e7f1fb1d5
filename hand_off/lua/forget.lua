-- forget(): let the speed views be rebuilt, as after a Redis that was lost. Whoever writes finds itself fenced, starts
-- again, and begins at the cut of the last run of the publish log; what they held is swept.
return redis.call('DEL', KEYS[1], KEYS[2])
