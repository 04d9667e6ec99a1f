//! An auditor of its own: it reads the event log over the API, recomputes from it what every
//! reservation and every row of stock must be, and compares that with what the API says. It shares
//! nothing with the program but the words.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::shop::id_of;
use crate::world::client::Client;

/// Units by location and SKU.
type Units = BTreeMap<(String, String), i64>;

/// What the events say.
#[derive(Default)]
struct Books {
    on_hand: Units,
    held: Units,
    /// The lines of each reservation, and the states it went through.
    reservations: BTreeMap<String, (Vec<Value>, Vec<&'static str>)>,
    deadlines: BTreeMap<String, Value>,
}

/// Fails unless the events, the reservations and the stock tell the same story.
pub async fn check(client: &Client) {
    let books = read(client).await;
    check_reservations(client, &books).await;
    check_stock(client, &books).await;
}

/// All events, from the first to the last.
pub async fn events(client: &Client) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    loop {
        let after = events
            .last()
            .map_or(0, |event| event["seq"].as_i64().unwrap());
        let page = client.list_events(after, 1_000).await.expect(200);
        events.extend(page["items"].as_array().unwrap().iter().cloned());
        if page["next_cursor"].is_null() {
            return events;
        }
    }
}

/// The events of one reservation.
pub async fn events_of(client: &Client, id: &str) -> Vec<Value> {
    let mut events = events(client).await;
    events.retain(|event| event["reservation_id"] == id);
    events
}

/// The kinds of these events, in order.
pub fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["kind"].as_str().unwrap())
        .collect()
}

async fn read(client: &Client) -> Books {
    let mut books = Books::default();
    for (index, event) in events(client).await.iter().enumerate() {
        assert_eq!(
            event["seq"],
            index + 1,
            "P9: events are numbered without gaps"
        );
        books.take(event);
    }
    books
}

impl Books {
    fn take(&mut self, event: &Value) {
        let data = &event["data"];
        let id = event["reservation_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        match event["kind"].as_str().unwrap() {
            "created" => {
                let lines = data["lines"].as_array().unwrap().clone();
                add(&mut self.held, &lines, 1);
                let fresh = self.reservations.insert(id.clone(), (lines, vec!["held"]));
                assert!(fresh.is_none(), "{id} was made twice");
                self.deadlines.insert(id, data["expires_at"].clone());
            }
            "extended" => {
                self.deadlines.insert(id, data["expires_at"].clone());
            }
            "cancelled" => self.leave(&id, "cancelled", data),
            "expired" => {
                self.leave(&id, "expired", data);
                let (at, deadline) = (&event["at"], &self.deadlines[&id]);
                assert!(
                    at.as_str() >= deadline.as_str(),
                    "P3: {id} expired early: {event}"
                );
            }
            "paid" if data["reacquired"] == true => {
                let (lines, states) = self.reservations.get_mut(&id).unwrap();
                assert_eq!(states.last(), Some(&"expired"), "P2: {id}");
                states.push("paid");
                add(&mut self.on_hand, lines, -1);
            }
            "paid" => {
                self.leave(&id, "paid", data);
                add(&mut self.on_hand, &self.reservations[&id].0, -1);
            }
            "stock-set" | "stock-adjusted" => {
                self.on_hand
                    .insert(row(data), data["on_hand"].as_i64().unwrap());
            }
            // Of a row that vanished, the new one has what was claimed of it.
            "stock-repaired" if id.is_empty() => {
                self.on_hand
                    .insert(row(data), data["after"]["on_hand"].as_i64().unwrap());
            }
            "stock-repaired" => {}
            "payment-refused" => assert!(self.reservations.contains_key(&id)),
            other => panic!("no such kind of event: {other}"),
        }
        for (row, held) in &self.held {
            let on_hand = self.on_hand.get(row).copied().unwrap_or_default();
            assert!(
                (0..=on_hand).contains(held),
                "P1: {held} of {on_hand} after {event}"
            );
        }
    }

    fn leave(&mut self, id: &str, state: &'static str, data: &Value) {
        let (lines, states) = self.reservations.get_mut(id).unwrap();
        assert_eq!(
            states,
            &["held"],
            "P2: {id} leaves `held` once, and now by {state}"
        );
        assert_eq!(
            data["lines"].as_array(),
            Some(&*lines),
            "{id}: what is returned is what was taken"
        );
        states.push(state);
        add(&mut self.held, lines, -1);
    }
}

fn row(line: &Value) -> (String, String) {
    let text = |name: &str| line[name].as_str().unwrap().to_owned();
    (text("location"), text("sku"))
}

fn add(units: &mut Units, lines: &[Value], times: i64) {
    for line in lines {
        *units.entry(row(line)).or_default() += times * line["quantity"].as_i64().unwrap();
    }
}

/// Every page of a list, put together.
pub async fn all(client: &Client, path: &str, query: &[(&str, &str)]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut query = query.to_vec();
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = client.get(&[path], &query).await.expect(200);
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => {
                assert_ne!(cursor.as_deref(), Some(next), "the same page for ever");
                cursor = Some(next.to_owned());
            }
            None => return items,
        }
    }
}

async fn check_reservations(client: &Client, books: &Books) {
    let shown = all(client, "reservations", &[("limit", "1000")]).await;
    for shown in &shown {
        let Some((lines, states)) = books.reservations.get(id_of(shown)) else {
            // It was made after the events were read, by somebody whom the test did not wait for.
            panic!("{shown} has no event");
        };
        let state = *states.last().unwrap();
        // One that is due reads as expired already, and its event is on its way.
        let due = state == "held" && shown["state"] == "expired";
        assert!(
            due || shown["state"] == state,
            "{states:?}, and reads {shown}"
        );
        assert_eq!(shown["lines"].as_array(), Some(lines));
        assert_eq!(shown["expires_at"], books.deadlines[id_of(shown)]);
    }
    assert_eq!(shown.len(), books.reservations.len());
}

async fn check_stock(client: &Client, books: &Books) {
    let before = books.on_hand.clone();
    let mut rows = Units::new();
    for stock in all(client, "stock", &[("limit", "1000")]).await {
        let number = |name: &str| stock[name].as_i64().unwrap();
        assert!(
            (0..=number("on_hand")).contains(&number("held")),
            "P1: {stock}"
        );
        let held = books.held.get(&row(&stock)).copied().unwrap_or_default();
        // What is due may have been released since the events were read.
        assert!(
            number("held") <= held,
            "P8: {held} are held, and there is {stock}"
        );
        let least = number("on_hand") - held;
        assert!(number("available") >= least, "{stock}");
        rows.insert(row(&stock), number("on_hand"));
    }
    assert_eq!(
        rows, before,
        "P8: on_hand changes by paid lines and stock operations"
    );
}
