-- Lends one gateway its slice of a tenant's limit (gateway/store/leases.py says the rule in words).
--
-- KEYS[1]  hash: gateway -> 'demand:slice:until', until in ms of the server's clock
-- ARGV     gateway, total, demand, ttl_ms, sure, of a count the least part of a one (else -1), how
--          many gateways the mesh is to have
-- Returns  the slice, as text

local key, me = KEYS[1], ARGV[1]
local total, demand, ttl_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local sure, part_min, gateways = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local demands, others, lent = {demand}, {}, 0
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  if fields[at] ~= me then
    local d, s, till = string.match(fields[at + 1], '^(.-):(.-):(.-)$')
    if tonumber(till) <= now_ms then
      redis.call('HDEL', key, fields[at])
    else
      demands[#demands + 1] = tonumber(d)
      others[#others + 1] = {demand = tonumber(d), lent = tonumber(s)}
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
local rest = level == math.huge and room / math.max(#demands, gateways) or 0

local function fair(d)
  return math.max(math.min(d, level) + rest, total * sure / #demands)
end

local function whole(amount)
  return math.floor(amount + 0.000001)
end

local mine = fair(demand)
if part_min >= 0 then
  local due, kept = whole(mine), 0
  for _, other in ipairs(others) do
    kept = kept + math.max(other.lent, whole(fair(other.demand)))
  end
  local one = mine - due > part_min and total - kept - due >= 1
  mine = due + (one and 1 or 0)
end
mine = string.format('%.9f', math.max(0, math.min(mine, total - lent)))
redis.call('HSET', key, me, string.format('%.9f:%s:%d', demand, mine, now_ms + ttl_ms))
redis.call('PEXPIRE', key, ttl_ms)
return mine
