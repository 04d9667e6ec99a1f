//! How many requests a key may send: the generic cell rate algorithm, one instant per key.

use std::time::Duration;

/// So many requests per second, and so many at once after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    per_second: u32,
    burst: u32,
}

/// How a caller stands with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether this request was one too many, and was not counted.
    pub is_over: bool,
    /// How many more could be sent now.
    pub remaining: u32,
    /// When the whole burst could be sent again.
    pub full_in: Duration,
    /// When the next one could be sent; zero if now.
    pub next_in: Duration,
}

impl RateLimit {
    /// This limit; none if one of the numbers is 0, since nobody could send anything.
    pub fn new(per_second: u32, burst: u32) -> Option<Self> {
        (per_second > 0 && burst > 0).then_some(Self { per_second, burst })
    }

    /// How many may be sent at once after a rest.
    pub const fn burst(self) -> u32 {
        self.burst
    }

    /// The time in which as many requests as the burst has become free again.
    pub fn window(self) -> Duration {
        self.interval() * self.burst
    }

    /// Counts a request. `arrival` is when the key's next request would come if all came evenly,
    /// and the first of the answer is what it is afterwards.
    pub fn charge(self, arrival: Duration, now: Duration) -> (Duration, Standing) {
        let next = arrival.max(now) + self.interval();
        let ahead = next.saturating_sub(now);
        let window = self.window();
        if ahead > window {
            let standing = Standing {
                is_over: true,
                remaining: 0,
                full_in: ahead.saturating_sub(self.interval()),
                next_in: ahead.saturating_sub(window),
            };
            return (arrival, standing);
        }
        let free = window.saturating_sub(ahead).as_nanos() / self.interval().as_nanos();
        let remaining = u32::try_from(free).unwrap_or(u32::MAX);
        let standing = Standing {
            is_over: false,
            remaining,
            full_in: ahead,
            next_in: if remaining > 0 {
                Duration::ZERO
            } else {
                (ahead + self.interval()).saturating_sub(window)
            },
        };
        (next, standing)
    }

    fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second
    }
}
