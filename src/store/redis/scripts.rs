//! The scripts that Redis runs to change streams. Every change of a stream is a script, on the slot
//! of its keys, except the plain addition of [`super::append`].
//!
//! They are written for Redis 6.2 and later, and for a Cluster, where a script touches only the
//! keys that it is given. Outside a Cluster, the key of the events ends with the number of its
//! renames, once there are any. Numbers of events are passed as text, since Lua's are exact up to
//! 2^53 only, and are compared as numbers. A script that needs memory first issues the command that
//! Redis may refuse for lack of it, so that it is never half done.

use std::sync::LazyLock;

use ::redis::{Arg, Cmd};

/// A script, which Redis knows by the hash of its text.
pub(super) struct Script {
    source: String,
    script: ::redis::Script,
    keys: usize,
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident($keys:literal, $prelude:ident) $body:literal)+) => {
        $($(#[$doc])* pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new($keys, $prelude, $body));)+

        /// All of them.
        pub(super) fn all() -> impl Iterator<Item = &'static Script> {
            [$(&*$name),+].into_iter()
        }
    };
}

impl Script {
    fn new(keys: usize, prelude: &str, body: &str) -> Self {
        let source = format!("{NOW}{prelude}{body}");
        Self { script: ::redis::Script::new(&source), source, keys }
    }

    /// Returns a call of the script; the keys come next, and then the arguments.
    pub(super) fn call(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("EVALSHA").arg(self.script.get_hash()).arg(self.keys);
        cmd
    }

    /// Returns the command that loads the script into Redis.
    pub(super) fn load(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("SCRIPT").arg("LOAD").arg(&self.source);
        cmd
    }
}

/// Returns the call with its script's text in place of the hash, or `None` if the command is no
/// script.
pub(super) fn in_full(call: &Cmd) -> Option<Cmd> {
    let mut args = call.args_iter().filter_map(|arg| if let Arg::Simple(arg) = arg { Some(arg) } else { None });
    if args.next()? != b"EVALSHA" {
        return None;
    }
    let hash = args.next()?;
    let script = all().find(|script| script.script.get_hash().as_bytes() == hash)?;
    let mut cmd = Cmd::new();
    cmd.arg("EVAL").arg(&script.source);
    for arg in args {
        cmd.arg(arg);
    }
    Some(cmd)
}

/// Lua function for the clock of Redis, in milliseconds.
const NOW: &str = "
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function text(number) return string.format('%.0f', number) end
";

const NOTHING: &str = "";

/// Lua functions for the scripts of a stream.
///
/// Keys: meta, events and followers of the stream. First arguments of a script that changes the
/// stream: prefix of the channels, ID of the stream.
///
/// While a connection holds the stream, it adds events without a script, and the tail in the meta
/// is behind. `revoke` ends that: it renames the key of the events, so that a plain addition misses
/// them. It is called after the steps that may be refused for want of memory.
/// `known` returns the fields `p g h t` and the requested ones. `known` returns nothing if there is
/// no stream, or if events of unknown number were lost.
const STREAM: &str = "
local meta, followers = KEYS[1], KEYS[3]
local generation, holder, tail, events
local function called(number)
  generation = number
  events = number == '0' and KEYS[2] or KEYS[2] .. number
end
local function known(...)
  local is = redis.call('HMGET', meta, 'p', 'g', 'h', 't', ...)
  called(is[2] or '0')
  holder, tail = is[3] or '', is[4]
  if not is[1] then return end
  if holder == '' then return is end
  if redis.call('EXISTS', events) == 0 then return end
  local info = redis.call('XINFO', 'STREAM', events)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then tail = string.match(info[i + 1], '^%d+') end
  end
  return is
end
local function revoke()
  if holder == '' then return end
  local before = events
  called(text(tonumber(generation) + 1))
  holder = ''
  redis.call('HSET', meta, 'g', generation, 'h', '', 't', tail)
  redis.call('RENAME', before, events)
end
local function listening()
  local all, live = redis.call('ZRANGE', followers, 0, -1, 'WITHSCORES'), {}
  if #all == 0 then return live end
  local time = now()
  for i = 1, #all, 2 do
    if tonumber(all[i + 1]) > time then live[#live + 1] = all[i] end
  end
  return live
end
local function tell()
  for _, follower in ipairs(listening()) do redis.call('PUBLISH', ARGV[1] .. follower, ARGV[2]) end
end
local function keep(time)
  redis.call('PEXPIRE', meta, time)
  redis.call('PEXPIRE', events, time + 1000)
end
";

/// Lua functions for messages. Key: list of messages. First arguments: first message that was
/// taken, number of those taken.
const MAIL: &str = "
local function parts(message)
  local _, stop, till, name = string.find(message, '^(%d+) (%S+) ')
  return tonumber(till), name, string.sub(message, stop + 1)
end
local function taken()
  local head = redis.call('LINDEX', KEYS[1], 0)
  if not head then return end
  local _, name = parts(head)
  if name == ARGV[1] then redis.call('LTRIM', KEYS[1], ARGV[2], -1) end
end
";

scripts! {
    /// Creates a stream. Arguments: about, owner, keep, tail.
    CREATE(3, STREAM) "
local old = redis.call('HMGET', meta, 'p', 'g', 'h')
local epoch = old[1] and text(tonumber(old[1]) + 1) or '0'
called(old[2] or '0')
local before = events
if (old[3] or '') ~= '' then called(text(tonumber(generation) + 1)) end
redis.call('HSET', meta, 'a', ARGV[3], 's', '', 'o', ARGV[4], 'p', epoch, 't', ARGV[6], 'x', ARGV[6], 'z', '0', 'k', ARGV[5],
  'g', generation, 'h', '')
redis.call('DEL', before)
keep(tonumber(ARGV[5]))
tell()
return {'ok', epoch}
"
    /// Creates a stream with all its events, sealed. Arguments: about, owner, keep, last, events,
    /// state.
    WHOLE(3, STREAM) "
local old = redis.call('HMGET', meta, 'p', 'g', 'h')
local epoch = old[1] and text(tonumber(old[1]) + 1) or '0'
called(old[2] or '0')
local before = events
if (old[3] or '') ~= '' then called(text(tonumber(generation) + 1)) end
redis.call('HSET', meta, 'a', ARGV[3], 's', ARGV[8], 'o', ARGV[4], 'p', epoch, 't', ARGV[6], 'x', '0', 'z', '1', 'k', ARGV[5],
  'g', generation, 'h', '')
redis.call('DEL', before)
redis.call('XADD', events, ARGV[6] .. '-0', 'f', '1', 'd', ARGV[7])
keep(tonumber(ARGV[5]))
tell()
return {'ok', epoch}
"
    /// Appends a batch. Arguments: epoch, after, after + 1, last, count, events, 1 if there is a
    /// state, state, candidate for holder.
    ///
    /// A repeated batch is compared byte for byte with the stored events, in any division into
    /// entries. The candidate becomes the holder unless the stream has followers. The reply then
    /// has the number of the key's renames, and the expiry of the stream.
    APPEND(3, STREAM) "
local is = known('z', 'k', 'x')
if not is then return {'gone'} end
if tonumber(ARGV[3]) < tonumber(is[1]) then return {'fenced'} end
local sealed, time, trimmed = is[5] == '1', tonumber(is[6]), is[7]
local count, bytes, caller = tonumber(ARGV[7]), ARGV[8], ARGV[11]
if ARGV[4] ~= tail then
  if tonumber(ARGV[4]) < tonumber(trimmed) or tonumber(ARGV[6]) > tonumber(tail) then return {'conflict', tail} end
  if count > 0 then
    local found = redis.call('XRANGE', events, ARGV[5] .. '-0', '+', 'COUNT', count)
    if #found == 0 then return {'conflict', tail} end
    local all = {}
    for i, entry in ipairs(found) do all[i] = entry[2][4] end
    all = table.concat(all)
    local at = 1
    for _ = 1, tonumber(ARGV[5]) - tonumber(found[1][2][2]) do
      at = at + 4 + struct.unpack('>I4', all, at)
    end
    if string.sub(all, at, at + #bytes - 1) ~= bytes then return {'conflict', tail} end
  end
  if not sealed then keep(time) end
  return {'ok'}
end
if sealed then return {'sealed'} end
local live = listening()
if count > 0 then
  redis.call('XADD', events, ARGV[6] .. '-0', 'f', ARGV[5], 'd', bytes)
  tail = ARGV[6]
  redis.call('HSET', meta, 't', tail)
end
if ARGV[9] == '1' then redis.call('HSET', meta, 's', ARGV[10]) end
if holder ~= caller or #live > 0 then revoke() end
if count > 0 and holder == '' and caller ~= '' and #live == 0 then
  holder = caller
  redis.call('HSET', meta, 'h', holder)
end
keep(time)
for _, follower in ipairs(live) do redis.call('PUBLISH', ARGV[1] .. follower, ARGV[2]) end
if holder == '' then return {'ok'} end
return {'ok', generation, is[6]}
"
    /// Seals a stream. Arguments: epoch, state, keep.
    SEAL(3, STREAM) "
local is = known('z')
if not is then return {'gone'} end
if tonumber(ARGV[3]) < tonumber(is[1]) then return {'fenced'} end
if is[5] == '0' then
  redis.call('HSET', meta, 'z', '1', 's', ARGV[4], 'k', ARGV[5])
  revoke()
  keep(tonumber(ARGV[5]))
  tell()
end
return {'ok', text(now())}
"
    /// Takes a stream over. Argument: owner.
    TAKE_OVER(3, STREAM) "
local is = known('o')
if not is then return {'gone'} end
local epoch = text(tonumber(is[1]) + 1)
redis.call('HSET', meta, 'p', epoch, 'o', ARGV[3])
revoke()
tell()
return {'ok', epoch, is[5], text(now())}
"
    /// Returns about, state, owner, epoch, trimmed, tail, and 1 if the stream is sealed.
    LOAD(3, STREAM) "
local is = known('a', 's', 'o', 'x', 'z')
if not is then return {} end
return {is[5], is[6], is[7], is[1], is[8], tail, is[9]}
"
    /// Reads events. Arguments: after, after + 1, max bytes. Returns whole entries, from the one
    /// with the next event on, until there are enough bytes. The returned tail may be behind them.
    READ(3, STREAM) "
local is = redis.call('HMGET', meta, 't', 'x', 'g', 'h')
if not is[1] then return {'gone'} end
called(is[3] or '0')
local held = (is[4] or '') ~= ''
if tonumber(ARGV[1]) < tonumber(is[2]) then return {'trimmed', is[2]} end
local all, size, limit = {}, 0, tonumber(ARGV[3])
local from = ARGV[2] .. '-0'
if not held and tonumber(ARGV[1]) >= tonumber(is[1]) then return {'events', is[1], all} end
repeat
  local found = redis.call('XRANGE', events, from, '+', 'COUNT', 16)
  for _, entry in ipairs(found) do
    if #all > 0 and size >= limit then return {'events', is[1], all} end
    local skipped, fields = 0, entry[2]
    if #all == 0 then
      local at = 1
      for _ = 1, tonumber(ARGV[2]) - tonumber(fields[2]) do
        at = at + 4 + struct.unpack('>I4', fields[4], at)
      end
      skipped = at - 1
    end
    size = size + #fields[4] - skipped
    all[#all + 1] = fields[2]
    all[#all + 1] = fields[4]
    from = '(' .. entry[1]
  end
until #found < 16
if held and #all == 0 and redis.call('EXISTS', events) == 0 then return {'gone'} end
return {'events', is[1], all}
"
    /// Trims a stream. Arguments: epoch, upto, upto + 1. The command that frees memory comes first.
    TRIM(3, STREAM) "
local is = known('x')
if not is then return {'gone'} end
if tonumber(ARGV[3]) < tonumber(is[1]) then return {'ok'} end
local upto = ARGV[4]
if tonumber(upto) >= tonumber(tail) then upto = tail end
if tonumber(upto) <= tonumber(is[5]) then return {'ok'} end
if upto == tail then
  redis.call('XTRIM', events, 'MAXLEN', 0)
else
  redis.call('XTRIM', events, 'MINID', ARGV[5] .. '-0')
end
redis.call('HSET', meta, 'x', upto)
tell()
return {'ok'}
"
    /// Extends the time to live of a stream; never shortens it. Argument: keep.
    KEEP(3, STREAM) "
local left = redis.call('PTTL', meta)
if left >= 0 and left < tonumber(ARGV[3]) then
  called(redis.call('HGET', meta, 'g') or '0')
  keep(tonumber(ARGV[3]))
end
return {'ok'}
"
    EXPIRE(3, STREAM) "
called(redis.call('HGET', meta, 'g') or '0')
redis.call('DEL', meta, events)
tell()
return {'ok'}
"
    /// Registers a follower of a stream: from now on every writer publishes its additions.
    /// Arguments: owner, duration in ms.
    FOLLOW(3, STREAM) "
local time = now()
redis.call('ZADD', followers, time + tonumber(ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', followers, '-inf', time)
redis.call('PEXPIRE', followers, ARGV[2])
if known() then revoke() end
return 0
"
    /// Notes that a stream may be open. Key: index of its owner. Argument: stream.
    INDEX(1, NOTHING) "return redis.call('ZADD', KEYS[1], now(), ARGV[1])"
    /// Removes streams from an index, unless they were noted again later. Arguments: upto, streams.
    UNINDEX(1, NOTHING) "
for i = 2, #ARGV do
  local noted = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if noted and tonumber(noted) <= tonumber(ARGV[1]) then redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return 0
"
    /// Returns the index and the time.
    INDEXED(1, NOTHING) "return {text(now()), redis.call('ZRANGE', KEYS[1], 0, -1)}"
    /// Writes a record unless there is one, which is returned. Arguments: value, keep.
    CLAIM(1, NOTHING) "
local there = redis.call('GET', KEYS[1])
if not there then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return there
"
    /// Extends or removes a record that still equals the value. Arguments: value, keep; an empty
    /// keep removes the record.
    HOLD(1, NOTHING) "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"
    /// Replaces a record that is equal to a value. Key: record. Arguments: the old value, the new
    /// one, time to live. Returns 1 if the record has the new value.
    REPLACE(1, NOTHING) "
local there = redis.call('GET', KEYS[1])
if there ~= ARGV[1] and there ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"
    /// Renews a lease. Keys: leases, incarnations. Arguments: owner, incarnation, lease.
    RENEW(2, NOTHING) "
local time = now()
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
local holder = redis.call('HGET', KEYS[2], ARGV[1])
local runs = holder and ends and tonumber(ends) > time
if runs and holder ~= ARGV[2] then return 'taken' end
redis.call('ZADD', KEYS[1], time + tonumber(ARGV[3]), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return runs and 'held' or 'anew'
"
    /// Grants leases. Key: leases. Arguments: lease, owners. Existing leases are unchanged; new
    /// ones have no holder.
    EXPECT(1, NOTHING) "
local ends = now() + tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'NX', ends, ARGV[i]) end
return 0
"
    /// Ends a lease. Keys: leases, incarnations. Arguments: owner, incarnation.
    GIVE_UP(2, NOTHING) "
if redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2] then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return 0
"
    /// Returns the running leases, or the expired ones. Key: leases. Argument: 1 for the running
    /// ones.
    LEASES(1, NOTHING) "
if ARGV[1] == '1' then return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now()), '+inf') end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now()))
"
    /// Forgets a replica with an expired lease. Keys: leases, incarnations, dismissals. Argument:
    /// owner.
    DISMISS(3, NOTHING) "
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if ends and tonumber(ends) <= now() then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
end
return 0
"
    /// Sends a message, once for its number. Keys: messages of a replica, last number of each
    /// sender. Arguments: channel, text to publish there, sender, number, keep, message.
    SEND(2, NOTHING) "
local last = redis.call('HGET', KEYS[2], ARGV[3])
if last and tonumber(last) >= tonumber(ARGV[4]) then return 0 end
local keep = tonumber(ARGV[5])
redis.call('RPUSH', KEYS[1], text(now() + keep) .. ' ' .. ARGV[3] .. '.' .. ARGV[4] .. ' ' .. ARGV[6])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
for i = 1, 2 do
  if redis.call('PTTL', KEYS[i]) < keep then redis.call('PEXPIRE', KEYS[i], keep) end
end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
"
    /// Acknowledges messages, unless that was done. Arguments: first message, number of messages.
    TAKEN(1, MAIL) "
taken()
return 0
"
    /// Acknowledges messages, and returns the next ones, which stay until a later call acknowledges
    /// them. Arguments: the arguments of `TAKEN`, maximum of messages.
    RECEIVE(1, MAIL) "
taken()
local time = now()
while true do
  local found, live = redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[3]) - 1), {}
  for _, message in ipairs(found) do
    local till, _, body = parts(message)
    if till > time then live[#live + 1] = body end
  end
  if #found == 0 then return {'', '0', live} end
  if #live > 0 then
    local _, first = parts(found[1])
    return {first, text(#found), live}
  end
  redis.call('LTRIM', KEYS[1], #found, -1)
end
"
    /// Adds a member to a group, which lasts as long as its last member. Key: group. Arguments:
    /// owner, number of its dismissals, keep.
    JOIN(1, NOTHING) "
local time, latest = now(), 0
redis.call('HSET', KEYS[1], ARGV[1], text(time + ARGV[3]) .. ' ' .. ARGV[2])
local all = redis.call('HGETALL', KEYS[1])
for i = 2, #all, 2 do
  local space = string.find(all[i], ' ', 1, true)
  latest = math.max(latest, tonumber(string.sub(all[i], 1, space - 1)))
end
redis.call('PEXPIRE', KEYS[1], text(latest - time))
return 0
"
    /// Returns the members of a group, each with the number of its dismissals when it joined. Key:
    /// group.
    MEMBERS(1, NOTHING) "
local time, all, here = now(), redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local space = string.find(all[i + 1], ' ', 1, true)
  if tonumber(string.sub(all[i + 1], 1, space - 1)) > time then
    here[#here + 1] = all[i]
    here[#here + 1] = string.sub(all[i + 1], space + 1)
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return here
"
}
