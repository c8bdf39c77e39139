-- Calls for wrk, each with an id of its own: a repeated id is a retry. Arguments: the body before and after its id, and "credential" for
-- one per thread. Prints the figures as JSON.

local threads = 0

function setup(thread)
   thread:set("number", threads)
   threads = threads + 1
end

function init(args)
   before, after = args[1], args[2]
   id = number * 1000000000
   wrk.method = "POST"
   wrk.headers["Accept"] = "application/json, text/event-stream"
   wrk.headers["Content-Type"] = "application/json"
   wrk.headers["MCP-Protocol-Version"] = "2025-11-25"
   if args[3] == "credential" then
      wrk.headers["Authorization"] = "Bearer wrk-" .. number
   end
end

function request()
   id = id + 1
   return wrk.format(nil, nil, nil, before .. string.format("%d", id) .. after)
end

function done(summary, latency, requests)
   local errors = summary.errors
   local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format('{"requests": %d, "secs": %f, "failed": %d, "p50_us": %d, "p99_us": %d}\n', summary.requests,
      summary.duration / 1000000, failed, latency:percentile(50), latency:percentile(99)))
end
