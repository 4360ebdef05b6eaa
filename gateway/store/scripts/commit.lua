-- Writes what is new about sessions, each unless a newer owner of it exists. Atomic, like every script.
--
-- KEYS[1]  the usage stream
-- KEYS[n]  a session's hash; its other keys are named from it:
--            KEYS[n]           epoch, gateway (its owner), since (the epoch with which it came to own it),
--                              created, last_seq, acked, deadline, gone, swept; and for each stream
--                                o:ID opened  i:ID instance  f:ID "bytes tokens"  e:ID end
--            KEYS[n]:log       list of "SEQ:FRAME", oldest first
--            KEYS[n]:t:ID      a live stream's token ids, 4 bytes each, little-endian
--            KEYS[n]:ends      ids of ended streams, oldest first
--            KEYS[n]:barred    hashes of the tokens whose clients were told that it is gone, before
--                              its first write came to its end
-- ARGV     keep_ms, renew_ms, ends_max, usage_max, the gateway that writes; then for each session
--            "MODE EPOCH DEADLINE_MS ACKED ARGUMENTS BILLS ENTRIES STREAMS": the mode is `write`,
--            `rewrite` or `close`, the last four are counts, the first of them of all that follows
--            created (empty: not given), (id, payload) of each bill, "SEQ:FRAME" of each entry, and of
--            each stream its id and
--              "r BYTES TOKENS", packed ids                       it runs
--              "o BYTES TOKENS", packed ids, opened, instance     the same; empty: not given
--              "e", end                                           it has ended
-- Returns  for each session 0 written, 1 refused: a newer owner exists, or another one that has the
--          same epoch and was first, or the session is over,
--          2 refused: the store does not have the session that this would add to, or the text of an
--          error: its write may have stopped half way

local usage = KEYS[1]
local keep_ms, renew_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local ends_max, usage_max, gateway = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local base, log, ends, at

local function next_arg()
  at = at + 1
  return ARGV[at - 1]
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

-- A bill and its stream's end are written at once, or neither is: whoever goes on with the session
-- after its owner's death bills what the store says of it.
local function write_bills(count)
  for _ = 1, count do
    local id, payload = next_arg(), next_arg()
    redis.call('XADD', usage, 'MAXLEN', '~', usage_max, '*', 'id', id, 'payload', payload)
  end
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

local function seq_of(item)
  return tonumber(string.match(item, '^%d+'))
end

local function write_entries(count, last_seq, acked)
  local fresh = {}
  for _ = 1, count do
    local item = next_arg()
    local seq = seq_of(item)
    -- What is there already came with an attempt whose answer was lost.
    if seq > last_seq and seq >= acked then
      fresh[#fresh + 1] = item
    end
    last_seq = math.max(last_seq, seq)
  end
  if #fresh > 0 and push(fresh) == #fresh then
    redis.call('PEXPIRE', log, keep_ms)
  end
  return last_seq
end

local function trim_log(acked)
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
  local id = next_arg()
  local kind, framed = string.match(next_arg(), '^(%a) ?(.*)$')
  if kind == 'e' then
    end_stream(id, next_arg())
    return
  end
  local ids = next_arg()
  if kind == 'o' then
    local opened, instance = next_arg(), next_arg()
    if opened ~= '' then
      redis.call('HSET', base, 'o:' .. id, opened)
    end
    if instance ~= '' then
      redis.call('HSET', base, 'i:' .. id, instance)
    end
  end
  if ids ~= '' and redis.call('APPEND', tokens_key(id), ids) == #ids then
    redis.call('PEXPIRE', tokens_key(id), keep_ms)
  end
  redis.call('HSET', base, 'f:' .. id, framed)
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

local function is_of_another(its_epoch, its_gateway, epoch)
  if its_epoch == epoch then
    return its_gateway ~= '' and its_gateway ~= gateway
  end
  return its_epoch > epoch
end

local function write_session(head)
  local mode, epoch, deadline_ms, acked, bills, entries, streams = unpack(head)
  local created = next_arg()
  local stored = redis.call('HMGET', base, 'epoch', 'gone', 'last_seq', 'gateway', 'deadline', 'since')
  if stored[1] and (stored[2] or is_of_another(tonumber(stored[1]), stored[4] or '', epoch)) then
    return 1
  end
  if mode == 'write' and not stored[1] and created == '' then
    return 2
  end
  -- Without a deadline its first write never came to its end, and a client may have heard that it is gone.
  if not stored[5] and created ~= '' then
    local token_hash = cjson.decode(created)['token_hash']
    if redis.call('SISMEMBER', base .. ':barred', token_hash) == 1 then
      drop_all()
      return 1
    end
  end
  write_bills(bills)
  if mode ~= 'write' then
    drop_all()
    stored = {false, false, false}
  end
  if mode == 'close' then
    -- A late write of this or an older owner must not bring the session back.
    redis.call('HSET', base, 'epoch', epoch, 'gateway', gateway, 'gone', 1)
    redis.call('PEXPIRE', base, keep_ms)
    return 0
  end
  local since = stored[4] == gateway and stored[6] or epoch
  redis.call('HSET', base, 'epoch', epoch, 'gateway', gateway, 'since', since)
  if created ~= '' then
    redis.call('HSET', base, 'created', created)
  end
  local last_seq = write_entries(entries, tonumber(stored[3] or '0'), acked)
  for _ = 1, streams do
    write_stream()
  end
  trim_log(acked)
  last_seq = math.max(last_seq, acked - 1)
  redis.call('HSET', base, 'last_seq', last_seq, 'acked', acked, 'deadline', now_ms + deadline_ms)
  renew()
  return 0
end

local verdicts, following = {}, 6
for n = 2, #KEYS do
  base, log, ends, at = KEYS[n], KEYS[n] .. ':log', KEYS[n] .. ':ends', following + 1
  local head = {}
  for word in string.gmatch(ARGV[following], '%S+') do
    head[#head + 1] = tonumber(word) or word
  end
  following = at + table.remove(head, 5)
  -- One session's fault is not the others'.
  local fine, verdict = pcall(write_session, head)
  if not fine then
    verdict = type(verdict) == 'table' and verdict.err or tostring(verdict)
  end
  verdicts[n - 1] = verdict
end
return verdicts
