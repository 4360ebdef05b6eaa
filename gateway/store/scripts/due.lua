-- Takes sessions that it is time to look at. Nobody else gets them for retry_ms; who took them and
-- died leaves them to the next one.
--
-- KEYS[1]  the sorted set of watch.lua
-- ARGV     limit, retry_ms
-- Returns  session ids

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, tonumber(ARGV[1]))
for _, session in ipairs(due) do
  redis.call('ZADD', KEYS[1], now_ms + tonumber(ARGV[2]), session)
end
return due
