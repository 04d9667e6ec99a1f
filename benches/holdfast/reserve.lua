-- One reservation of one unit per request, of one of as many SKUs as the first argument says. With
-- a second one, each request has an Idempotency-Key of its own, which begins with it.

local skus, fixed, prefix
local count = 0

local function body()
  local sku = "sku-" .. math.random(0, skus - 1)
  return '{"lines":[{"sku":"' .. sku .. '","quantity":1}],"hold_seconds":3600}'
end

function init(arguments)
  skus = tonumber(arguments[1])
  math.randomseed(os.time())
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  prefix = arguments[2]
  if skus == 1 and not prefix then
    fixed = wrk.format(nil, nil, nil, body())
  end
end

function request()
  if prefix then
    count = count + 1
    wrk.headers["Idempotency-Key"] = prefix .. count
  end
  return fixed or wrk.format(nil, nil, nil, body())
end

function done(summary, latency)
  local errors = summary.errors
  print(string.format(
    '{"per_second":%f,"p50_ms":%f,"p99_ms":%f,"errors":%d}',
    summary.requests * 1000000 / summary.duration,
    latency:percentile(50) / 1000,
    latency:percentile(99) / 1000,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout
  ))
end
