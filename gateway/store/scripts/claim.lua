-- Makes the caller a session's owner: raises the epoch by one and returns all there is.
--
-- KEYS[1]  the session's hash (see commit.lua)
-- ARGV     mode: resume (a client came back), bar (the same; and what is unknown is not to come any
--          more) or sweep (its deadline has passed), the token's hash (not to sweep), keep_ms,
--          deadline_ms
-- Returns  {'unknown'}; {'gone'}: it is over; {'denied'}: another token's hash; {'later', ms}: the deadline has not passed;
--          or {'claimed', epoch, the hash's fields and values, log, {id, packed token ids, ...}}

local base, mode, token_hash = KEYS[1], ARGV[1], ARGV[2]
local keep_ms, deadline_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('HMGET', base, 'epoch', 'gone', 'swept', 'created', 'deadline')
if stored[2] then
  return {'gone'}
end
-- Without a deadline its first write never came to its end: there is nothing to go on with yet.
if not stored[5] then
  if mode == 'bar' then
    redis.call('SADD', base .. ':barred', token_hash)
    redis.call('PEXPIRE', base .. ':barred', keep_ms)
  end
  return {'unknown'}
end
if mode ~= 'sweep' then
  -- A swept session is being billed: to bring it back now would bill what follows to nobody.
  if stored[3] then
    return {'gone'}
  end
  if cjson.decode(stored[4])['token_hash'] ~= token_hash then
    return {'denied'}
  end
elseif tonumber(stored[5]) > now_ms then
  return {'later', tonumber(stored[5]) - now_ms}
end

-- Everything is read before anything is written: what cannot be read leaves its owner alone.
local log = redis.call('LRANGE', base .. ':log', 0, -1)
local fields = redis.call('HGETALL', base)
local tokens = {}
for at = 1, #fields, 2 do
  if string.sub(fields[at], 1, 2) == 'o:' then
    local id = string.sub(fields[at], 3)
    tokens[#tokens + 1] = id
    tokens[#tokens + 1] = redis.call('GET', base .. ':t:' .. id) or ''
  end
end

local epoch = redis.call('HINCRBY', base, 'epoch', 1)
if mode ~= 'sweep' then
  redis.call('HSET', base, 'deadline', now_ms + deadline_ms)
else
  redis.call('HSET', base, 'swept', 1)
end
for at = 1, #tokens, 2 do
  redis.call('PEXPIRE', base .. ':t:' .. tokens[at], keep_ms)
end
for _, key in ipairs({base, base .. ':log', base .. ':ends'}) do
  redis.call('PEXPIRE', key, keep_ms)
end
return {'claimed', epoch, fields, log, tokens}
