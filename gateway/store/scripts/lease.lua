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

local demands, lent = {demand}, 0
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  if fields[at] ~= me then
    local d, s, till = string.match(fields[at + 1], '^(.-):(.-):(.-)$')
    if tonumber(till) <= now_ms then
      redis.call('HDEL', key, fields[at])
    else
      demands[#demands + 1] = tonumber(d)
      lent = lent + tonumber(s)
    end
  end
end

table.sort(demands)
local room, level = total, math.huge
for place, d in ipairs(demands) do
  local even = room / (#demands - place + 1)
  if d > even then
    level = even
    break
  end
  room = room - d
end
local fair = math.min(demand, level)
if level == math.huge then
  fair = fair + room / #demands
end
fair = math.max(fair, total * sure / #demands)
local mine = string.format('%.9f', math.max(0, math.min(fair, total - lent)))
redis.call('HSET', key, me, string.format('%.9f:%s:%d', demand, mine, now_ms + ttl_ms))
redis.call('PEXPIRE', key, ttl_ms)
return mine
