-- Writes what is new about one session, unless a newer owner exists. Atomic, like every script.
--
-- KEYS[1]  the session's hash; its other keys are named from it and share its hash tag, hence its
--          node in a cluster:
--            KEYS[1]           epoch, created, last_seq, acked, deadline, gone, swept; and for each
--                              stream  o:ID opened  i:ID instance  f:ID "bytes tokens"  e:ID end
--            KEYS[1]:log       list of "SEQ:FRAME", oldest first
--            KEYS[1]:t:ID      a live stream's token ids, 4 bytes each, little-endian
--            KEYS[1]:ends      ids of ended streams, oldest first
-- KEYS[2]  the usage stream, if there are bills
-- ARGV     mode (write, rewrite, close), epoch, keep_ms, deadline_ms, renew_ms, ends_max, created,
--          acked, usage_max, number of bills, (id, payload)..., number of entries, (seq, frame)..., number of streams,
--          (id, opened, instance, packed ids, framed bytes, framed tokens, end)...
--          An empty string stands for what was not given.
-- Returns  0 written, 1 refused: a newer owner exists or the session is over, 2 refused: the store
--          does not have the session that this would add to.

local base = KEYS[1]
local log, ends = base .. ':log', base .. ':ends'
local mode, epoch = ARGV[1], tonumber(ARGV[2])
local keep_ms, deadline_ms, renew_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local ends_max, created, acked = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local usage_max, at = ARGV[9], 10

local function next_arg()
  at = at + 1
  return ARGV[at - 1]
end

-- A bill and its stream's end are written at once, or neither is: whoever goes on with the session
-- after its owner's death bills what the store says of it.
local function write_bills()
  for _ = 1, tonumber(next_arg()) do
    local id, payload = next_arg(), next_arg()
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', usage_max, '*', 'id', id, 'payload', payload)
  end
end

local function tokens_key(id)
  return base .. ':t:' .. id
end

local function live_token_keys()
  local keys = {}
  for _, field in ipairs(redis.call('HKEYS', base)) do
    if string.sub(field, 1, 2) == 'o:' then
      keys[#keys + 1] = tokens_key(string.sub(field, 3))
    end
  end
  return keys
end

local function drop_all()
  for _, key in ipairs(live_token_keys()) do
    redis.call('DEL', key)
  end
  redis.call('DEL', base, log, ends)
end

-- A script's stack holds some thousand values, so they are pushed in pieces: one that failed half way
-- would leave half of a session behind.
local function push(items)
  local length = 0
  for first = 1, #items, 1000 do
    length = redis.call('RPUSH', log, unpack(items, first, math.min(first + 999, #items)))
  end
  return length
end

local function write_entries(last_seq)
  local fresh = {}
  for _ = 1, tonumber(next_arg()) do
    local seq, frame = tonumber(next_arg()), next_arg()
    -- What is there already came with an attempt whose answer was lost.
    if seq > last_seq and seq >= acked then
      fresh[#fresh + 1] = seq .. ':' .. frame
    end
    last_seq = math.max(last_seq, seq)
  end
  if #fresh > 0 and push(fresh) == #fresh then
    redis.call('PEXPIRE', log, keep_ms)
  end
  return last_seq
end

local function seq_of(item)
  return tonumber(string.match(item, '^%d+'))
end

local function trim_log()
  local head = redis.call('LINDEX', log, 0)
  if not head or seq_of(head) >= acked then
    return
  end
  local count = 0
  for _, item in ipairs(redis.call('LRANGE', log, 0, acked - seq_of(head) - 1)) do
    if seq_of(item) < acked then
      count = count + 1
    end
  end
  redis.call('LPOP', log, count)
end

local function end_stream(id, ended)
  redis.call('HDEL', base, 'o:' .. id, 'i:' .. id, 'f:' .. id)
  redis.call('DEL', tokens_key(id))
  if redis.call('HSET', base, 'e:' .. id, ended) == 1 then
    local length = redis.call('RPUSH', ends, id)
    if length == 1 then
      redis.call('PEXPIRE', ends, keep_ms)
    elseif length > ends_max then
      redis.call('HDEL', base, 'e:' .. redis.call('LPOP', ends))
    end
  end
end

local function write_stream()
  local id, opened, instance, ids = next_arg(), next_arg(), next_arg(), next_arg()
  local framed_bytes, framed_tokens, ended = next_arg(), next_arg(), next_arg()
  if ended ~= '' then
    end_stream(id, ended)
    return
  end
  if opened ~= '' then
    redis.call('HSET', base, 'o:' .. id, opened)
  end
  if instance ~= '' then
    redis.call('HSET', base, 'i:' .. id, instance)
  end
  if ids ~= '' and redis.call('APPEND', tokens_key(id), ids) == #ids then
    redis.call('PEXPIRE', tokens_key(id), keep_ms)
  end
  redis.call('HSET', base, 'f:' .. id, framed_bytes .. ' ' .. framed_tokens)
end

local function renew()
  -- Renewing every key at every write would cost more than the write.
  if redis.call('PTTL', base) > keep_ms - renew_ms then
    return
  end
  local keys = live_token_keys()
  keys[#keys + 1], keys[#keys + 2], keys[#keys + 3] = base, log, ends
  for _, key in ipairs(keys) do
    redis.call('PEXPIRE', key, keep_ms)
  end
end

local stored = redis.call('HMGET', base, 'epoch', 'gone', 'last_seq')
if stored[1] and (tonumber(stored[1]) > epoch or stored[2]) then
  return 1
end
if mode == 'write' and not stored[1] and created == '' then
  return 2
end
write_bills()
if mode == 'close' then
  drop_all()
  -- A late write of this or an older owner must not bring the session back.
  redis.call('HSET', base, 'epoch', epoch, 'gone', 1)
  redis.call('PEXPIRE', base, keep_ms)
  return 0
end
if mode == 'rewrite' then
  drop_all()
  stored = {false, false, false}
end

redis.call('HSET', base, 'epoch', epoch)
if created ~= '' then
  redis.call('HSET', base, 'created', created)
end
local last_seq = math.max(write_entries(tonumber(stored[3] or '0')), acked - 1)
for _ = 1, tonumber(next_arg()) do
  write_stream()
end
trim_log()
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', base, 'last_seq', last_seq, 'acked', acked, 'deadline', now_ms + deadline_ms)
renew()
return 0
