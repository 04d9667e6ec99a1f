//! How many requests a key may send.

use std::time::Duration;

use crate::house::House;
use crate::on_each_store;

on_each_store!(each_key_is_limited_and_told_how_it_stands);

async fn each_key_is_limited_and_told_how_it_stands(house: House) {
    let settings = [("HOLDFAST_RATE_LIMIT", "1"), ("HOLDFAST_RATE_BURST", "20")];
    let (server, [one, other]) = house.with_keys(["checkout", "operator"], &settings);
    other.put_stock("A", 50).await.expect(200);
    let one = one.with_key("order-1");
    let mut left = 20;
    let over = loop {
        let answer = one.list_events(0, 1).await;
        let policy = answer.header("ratelimit-policy");
        assert_eq!(policy, Some("\"key\";q=20;w=20"));
        let standing = answer.header("ratelimit").unwrap();
        let (remaining, reset) = standing
            .strip_prefix("\"key\";r=")
            .and_then(|standing| standing.split_once(";t="))
            .unwrap_or_else(|| panic!("{standing}"));
        let remaining: u32 = remaining.parse().unwrap();
        let reset: u32 = reset.parse().unwrap();
        assert!((1..=20).contains(&reset), "{standing}");
        if answer.status == 429 {
            assert_eq!((remaining, left), (0, 0), "{standing}");
            break answer;
        }
        // One more may have become free meanwhile, on a machine that is busy.
        assert!((left - 1..=left).contains(&remaining), "{standing}, {left}");
        left = remaining;
        answer.expect(200);
    };
    assert_eq!(over.refusal(), (429, "rate-limited"));
    let retry_after: u64 = over.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(retry_after, 1);
    // Use up what became free by now, until an order is refused.
    let refused = loop {
        let answer = one.reserve_one("A", 1, 600).await;
        if answer.status == 429 {
            break answer;
        }
        left += 1;
        assert!(left < 20, "the limit limits nothing");
    };
    assert!(!refused.is_replayed());
    // The others are not held up, and what needs no key has no limit.
    assert!(other.get_stock("A").await.header("ratelimit").is_some());
    assert!(server.client().now().await.is_string());
    let fresh = one.with_key("order-2");
    let wait = Duration::from_secs(retry_after);
    // What `Retry-After` says is enough; and a refusal is not kept under the key.
    let answer = loop {
        tokio::time::sleep(wait).await;
        let answer = fresh.reserve_one("A", 1, 600).await;
        if answer.status != 429 {
            break answer;
        }
        panic!("refused again after Retry-After");
    };
    assert!(!answer.is_replayed());
    answer.expect(201);
    let again = fresh.reserve_one("A", 1, 600).await;
    assert_eq!(again.refusal(), (429, "rate-limited"));
    tokio::time::sleep(wait).await;
    let again = fresh.reserve_one("A", 1, 600).await;
    assert!(again.is_replayed());
    again.expect(201);
}
