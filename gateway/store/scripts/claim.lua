-- Makes the caller a session's owner: raises the epoch and returns all there is.
--
-- KEYS[1]  the session's hash (see commit.lua)
-- ARGV     mode: resume (a client came back), bar (the same; and what is unknown is not to come any
--          more), sweep (its deadline has passed) or raise (a client came back to a gateway that has
--          all there is), the token's hash (resume, bar), keep_ms, deadline_ms, the gateway, an epoch
--          that the new one is above (raise: with which that gateway knows the session)
-- Returns  {'unknown'}; {'gone'}: it is over; {'denied'}: another token's hash; {'later', ms}: the deadline has not passed;
--          {'raised', epoch}; {'overtaken'}: that gateway has not all there is, others owned it meanwhile;
--          or {'claimed', epoch, the hash's fields and values, log, {id, packed token ids, ...}}

local base, mode, token_hash = KEYS[1], ARGV[1], ARGV[2]
local keep_ms, deadline_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local gateway, above = ARGV[5], tonumber(ARGV[6])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local stored = redis.call('HMGET', base, 'epoch', 'gone', 'swept', 'created', 'deadline', 'gateway', 'since')
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
-- A swept session is being billed: to bring it back now would bill what follows to nobody.
if mode ~= 'sweep' and stored[3] then
  return {'gone'}
end
local its_epoch, its_gateway, since = tonumber(stored[1]), stored[6] or '', tonumber(stored[7] or 0)

local function has_overtaken()
  if its_gateway == gateway then
    return since > above
  end
  return its_epoch > above or (its_epoch == above and its_gateway ~= '')
end

local function own(epoch, from)
  redis.call('HSET', base, 'epoch', epoch, 'gateway', gateway, 'since', its_gateway == gateway and since or from)
end

local epoch = math.max(its_epoch, above) + 1
if mode == 'raise' then
  if has_overtaken() then
    return {'overtaken'}
  end
  own(epoch, above)
  return {'raised', epoch}
end
if mode ~= 'sweep' then
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

own(epoch, epoch)
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
