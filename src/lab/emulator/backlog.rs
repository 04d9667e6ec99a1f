//! The messages themselves: who is due when, who was handed out, which keys are known.
//!
//! It knows no network and no clock; every instant is handed in, in milliseconds since the epoch.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use axum::body::Bytes;

use super::faults::{Faults, is_nth};
use super::stats::{Histogram, Stats};

/// How long a key is remembered: 24 hours.
const KEY_MS: i64 = 86_400_000;

/// The number of a message, and which of its two copies it is where a fault doubles it.
type Place = (u64, u8);

/// A message that is yet to be delivered or acknowledged.
struct Message {
    queue: Arc<str>,
    payload: Bytes,
    /// When it is due, or comes again.
    ready_ms: i64,
    attempts: u32,
}

/// A message as it is handed out.
#[derive(Clone, Debug)]
pub(super) struct Handed {
    pub place: Place,
    pub message_id: String,
    pub payload: Bytes,
    /// How often it has been handed out, this time included.
    pub attempts: u32,
}

/// What there is to push.
pub(super) enum NextPush {
    /// This, now.
    Now(Handed),
    /// Something, then.
    At(i64),
    /// Nothing, until something is published.
    Never,
}

/// Everything that the emulator remembers.
#[derive(Default)]
pub(super) struct Backlog {
    pub faults: Faults,
    /// What comes before the number in the name of a message, so that no name is given again by
    /// an emulator that is started later.
    prefix: String,
    messages: HashMap<Place, Message>,
    /// By queue: what waits for its time, the earliest first.
    waiting: BTreeMap<Arc<str>, BTreeSet<(i64, Place)>>,
    keys: HashMap<Arc<str>, u64>,
    keys_by_age: VecDeque<(i64, Arc<str>)>,
    last_number: u64,
    calls: u64,
    stats: Stats,
    lateness: Histogram,
}

impl Backlog {
    pub(super) fn new(faults: Faults, now_ms: i64) -> Self {
        Self {
            faults,
            prefix: format!("msg_{now_ms:x}_"),
            ..Self::default()
        }
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            pending: self.messages.len() as u64,
            lateness_ms: self.lateness.summary(),
            ..self.stats.clone()
        }
    }

    pub(super) fn count_refusal(&mut self, code: &str) {
        count(&mut self.stats.refused, code);
    }

    /// Counts a call, and says its number.
    pub(super) fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// Forgets messages and keys; what is being pushed is gone as well.
    pub(super) fn forget(&mut self) {
        self.messages.clear();
        self.waiting.clear();
        self.keys.clear();
        self.keys_by_age.clear();
    }

    /// Accepts a message, unless its key is known. Says its name, and its number if it is new.
    pub(super) fn publish(
        &mut self,
        queue: &str,
        payload: Bytes,
        delay_seconds: u32,
        key: Option<&str>,
        now_ms: i64,
    ) -> (String, Option<u64>) {
        self.forget_old_keys(now_ms);
        if let Some(number) = key.and_then(|key| self.keys.get(key)) {
            self.stats.repeated += 1;
            return (self.name(*number), None);
        }
        self.last_number += 1;
        let number = self.last_number;
        self.stats.published += 1;
        if let Some(key) = key {
            let key: Arc<str> = key.into();
            self.keys.insert(Arc::clone(&key), number);
            self.keys_by_age.push_back((now_ms, key));
        }
        if is_nth(number, self.faults.drop_every) {
            self.stats.dropped += 1;
            return (self.name(number), Some(number));
        }
        let is_doubled = is_nth(number, self.faults.duplicate_every);
        self.stats.duplicated += u64::from(is_doubled);
        let ready_ms = self.faults.ready_ms(now_ms, delay_seconds, number);
        for copy in 0..=u8::from(is_doubled) {
            let message = Message {
                queue: queue.into(),
                payload: payload.clone(),
                ready_ms,
                attempts: 0,
            };
            self.messages.insert((number, copy), message);
            self.wait((number, copy), ready_ms);
        }
        (self.name(number), Some(number))
    }

    /// Hands out what is due, and hides it until `hidden_until_ms`.
    pub(super) fn consume(
        &mut self,
        queue: &str,
        most: usize,
        hidden_until_ms: i64,
        now_ms: i64,
    ) -> Vec<Handed> {
        let mut handed = Vec::new();
        while handed.len() < most {
            let Some((_, place)) = self.first(queue).filter(|(at, _)| *at <= now_ms) else {
                break;
            };
            handed.extend(self.hand_out(place, now_ms));
            self.wait(place, hidden_until_ms);
        }
        handed
    }

    /// Ends the delivery of a message that was handed out, or never was: the earlier copy of the
    /// two if there are two. Is there such a message?
    pub(super) fn acknowledge(&mut self, queue: &str, message_id: &str) -> bool {
        let number = message_id.strip_prefix(self.prefix.as_str());
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            return false;
        };
        let ended = [(number, 0), (number, 1)].into_iter().find(|place| {
            let message = self.messages.get(place);
            message.is_some_and(|message| &*message.queue == queue)
        });
        ended.is_some_and(|place| self.end(place))
    }

    /// What is to be pushed next, of all queues.
    pub(super) fn next_push(&mut self, now_ms: i64) -> NextPush {
        let firsts = self.waiting.values().filter_map(BTreeSet::first);
        match firsts.min().copied() {
            None => NextPush::Never,
            Some((at, _)) if at > now_ms => NextPush::At(at),
            Some((_, place)) => self
                .hand_out(place, now_ms)
                .map_or(NextPush::At(now_ms), NextPush::Now),
        }
    }

    /// Counts what a push was answered: a status, or `lost`.
    pub(super) fn count_answer(&mut self, answer: &str) {
        count(&mut self.stats.answers, answer);
    }

    /// A push that was answered well ends the delivery.
    pub(super) fn end(&mut self, place: Place) -> bool {
        let Some(message) = self.messages.remove(&place) else {
            return false;
        };
        if let Some(waiting) = self.waiting.get_mut(&message.queue) {
            waiting.remove(&(message.ready_ms, place));
        }
        self.stats.acknowledged += 1;
        true
    }

    /// Has a message come, or come again, at `ready_ms`.
    pub(super) fn wait(&mut self, place: Place, ready_ms: i64) {
        if let Some(message) = self.messages.get_mut(&place) {
            message.ready_ms = ready_ms;
            let waiting = self.waiting.entry(Arc::clone(&message.queue)).or_default();
            waiting.insert((ready_ms, place));
        }
    }

    fn first(&self, queue: &str) -> Option<(i64, Place)> {
        self.waiting.get(queue)?.first().copied()
    }

    fn hand_out(&mut self, place: Place, now_ms: i64) -> Option<Handed> {
        let message = self.messages.get_mut(&place)?;
        if let Some(waiting) = self.waiting.get_mut(&message.queue) {
            waiting.remove(&(message.ready_ms, place));
        }
        message.attempts += 1;
        self.stats.deliveries += 1;
        if message.attempts == 1 {
            self.lateness.record(now_ms - message.ready_ms);
        }
        let (payload, attempts) = (message.payload.clone(), message.attempts);
        Some(Handed {
            place,
            message_id: self.name(place.0),
            payload,
            attempts,
        })
    }

    fn forget_old_keys(&mut self, now_ms: i64) {
        while let Some((at, _)) = self.keys_by_age.front() {
            if now_ms - at < KEY_MS {
                return;
            }
            if let Some((_, key)) = self.keys_by_age.pop_front() {
                self.keys.remove(&key);
            }
        }
    }

    fn name(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}
