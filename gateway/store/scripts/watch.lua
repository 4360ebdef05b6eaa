-- Puts sessions on a list of deadlines, by the store's clock. The list only says when to look: the
-- deadline that counts is in the session's hash, which may be on another node.
--
-- KEYS[1]  a sorted set, session by the time to look at it
-- ARGV     (session, ms from now)...

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for at = 1, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], now_ms + tonumber(ARGV[at + 1]), ARGV[at])
end
return 0
