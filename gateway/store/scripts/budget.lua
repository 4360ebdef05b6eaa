-- One budget's books in one period: `gateway/budgets/account.py` says what they mean and does the same in Python.
--
-- KEYS[1]  the account's hash: spent, held, used (sums), dry (ms), told, born (ms), seed, and for each running
--          stream h:NAME "held used lasting", for each one settled lately s:NAME cost
--            KEYS[1]:until   when a hold expires, by name; its size is the number of holds
--            KEYS[1]:settled when a settling may be forgotten, by name
-- ARGV     limit (-1: none), soft (-1: none), ttl_ms (0: for ever), settled_ms, dry_ms, born_ms, then requests:
--          hold, name, want, least, used, step, ttl_ms, returns, lasting  |  settle, name, cost, ended_ms
--          |  seed, cost
-- Returns  crossed, born, unseeded, then for each hold: held, verdict, dry. Numbers stay below 2^53.

local base = KEYS[1]
local until_key, settled_key = base .. ':until', base .. ':settled'
local limit, soft, ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local settled_ms, dry_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
local at = 7
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local sums = redis.call('HMGET', base, 'spent', 'held', 'used', 'dry', 'told', 'born', 'seed')
local spent, held, used = tonumber(sums[1] or 0), tonumber(sums[2] or 0), tonumber(sums[3] or 0)
local dry_until, told = tonumber(sums[4] or 0), sums[5]
local count = redis.call('ZCARD', until_key)
-- Books of an earlier release know what they have spent.
local born = tonumber(sums[6] or (sums[1] and 0) or ARGV[6])
local seed = tonumber(sums[7])

local function whole(number)
  return string.format('%.0f', number)
end

local function next_arg()
  at = at + 1
  return ARGV[at - 1]
end

local function read_hold(name)
  local text = redis.call('HGET', base, 'h:' .. name)
  if not text then
    return nil
  end
  local h, u, lasting = string.match(text, '^(%S+) (%S+) (%S+)$')
  return { held = tonumber(h), used = tonumber(u), lasting = lasting }
end

local function drop_hold(name, hold)
  redis.call('HDEL', base, 'h:' .. name)
  count = count - redis.call('ZREM', until_key, name)
  held, used = held - hold.held, used - hold.used
end

local function forget_settled(name)
  local cost = tonumber(redis.call('HGET', base, 's:' .. name) or 0)
  redis.call('HDEL', base, 's:' .. name)
  redis.call('ZREM', settled_key, name)
  return cost
end

local function expire()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', until_key, '-inf', now)) do
    local hold = read_hold(name)
    drop_hold(name, hold)
    if hold.lasting == '1' then
      spent = spent + hold.used
    end
  end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', settled_key, '-inf', now)) do
    forget_settled(name)
  end
end

local function settle(name, cost, ended)
  local hold = read_hold(name)
  if hold then
    drop_hold(name, hold)
  end
  if ended < born then
    return
  end
  spent = spent + cost - forget_settled(name)
  redis.call('HSET', base, 's:' .. name, whole(cost))
  redis.call('ZADD', settled_key, now + settled_ms, name)
end

local function grow(own, want, least, use, step)
  if limit < 0 then
    own.held = want
    return 0
  end
  if born > 0 and not seed then
    own.held = math.max(own.held, use)
    used = used + own.held - own.used
    own.used = own.held
    return 3
  end
  local lowest = math.max(least, own.held)
  local spare = limit - spent - held - (lowest - own.held)
  if spare < 0 then
    dry_until = now + dry_ms
    return (held - own.held) - (used - own.used) > 0 and 1 or 2
  end
  local fair = now < dry_until and 0 or math.floor(spare / (2 * count))
  local ahead = math.max(0, math.min(want - lowest, fair))
  own.held = lowest + ahead - ahead % math.max(1, step)
  return 0
end

local function hold(name, want, least, use, step, hold_ms, returns, lasting)
  local own = read_hold(name)
  if not own then
    local before = forget_settled(name)
    spent = spent - before
    own = { held = before, used = before, lasting = lasting }
    held, used = held + before, used + before
  end
  count = count + redis.call('ZADD', until_key, now + hold_ms, name)
  local had_held, had_used = own.held, own.used
  own.used = math.max(own.used, math.min(use, own.held))
  used = used + own.used - had_used
  local verdict = 0
  if want > own.held then
    verdict = grow(own, want, least, use, step)
  elseif returns == '1' then
    own.held = math.max(want, own.used)
  end
  held = held + own.held - had_held
  redis.call('HSET', base, 'h:' .. name, whole(own.held) .. ' ' .. whole(own.used) .. ' ' .. own.lasting)
  return own.held, verdict
end

expire()
local reply = { 0, born, 0 }
while at <= #ARGV do
  local request = next_arg()
  if request == 'settle' then
    local name = next_arg()
    local cost, ended = tonumber(next_arg()), tonumber(next_arg())
    settle(name, cost, ended)
  elseif request == 'seed' then
    local known = seed or 0
    seed = math.max(known, tonumber(next_arg()))
    spent = spent + seed - known
  else
    local name, want, least = next_arg(), tonumber(next_arg()), tonumber(next_arg())
    local use, step, hold_ms = tonumber(next_arg()), tonumber(next_arg()), tonumber(next_arg())
    local returns, lasting = next_arg(), next_arg()
    local is, verdict = hold(name, want, least, use, step, hold_ms, returns, lasting)
    reply[#reply + 1] = is
    reply[#reply + 1] = verdict
    reply[#reply + 1] = now < dry_until and 1 or 0
  end
end
if soft >= 0 and not told and spent + used >= soft then
  reply[1] = 1
  redis.call('HSET', base, 'told', 1)
end
if born > 0 and not seed then
  reply[3] = 1
end
redis.call('HSET', base, 'spent', whole(spent), 'held', whole(held), 'used', whole(used), 'dry', whole(dry_until), 'born', whole(born))
if seed then
  redis.call('HSET', base, 'seed', whole(seed))
end
if ttl_ms > 0 then
  for _, key in ipairs({ base, until_key, settled_key }) do
    redis.call('PEXPIRE', key, ttl_ms)
  end
end
return reply
