-- Lends one gateway its slice of a tenant's limit (gateway/store/leases.py says the rule in words).
--
-- KEYS[1]  hash: gateway -> 'demand:slice:until', until in ms of the server's clock
-- ARGV     gateway, total, demand, ttl_ms, sure
-- Returns  the slice, as text

local key, me = KEYS[1], ARGV[1]
local total, demand, ttl_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local sure = tonumber(ARGV[5])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local asked, lent, count = demand, 0, 1
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  if fields[at] ~= me then
    local d, s, till = string.match(fields[at + 1], '^(.-):(.-):(.-)$')
    if tonumber(till) <= now_ms then
      redis.call('HDEL', key, fields[at])
    else
      asked, lent, count = asked + tonumber(d), lent + tonumber(s), count + 1
    end
  end
end

local fair
if asked <= total then
  fair = demand + (total - asked) / count
else
  fair = total * demand / asked
end
fair = math.max(fair, total * sure / count)
local mine = string.format('%.9f', math.max(0, math.min(fair, total - lent)))
redis.call('HSET', key, me, string.format('%.9f:%s:%d', demand, mine, now_ms + ttl_ms))
redis.call('PEXPIRE', key, ttl_ms)
return mine
