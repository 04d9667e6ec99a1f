//! How many requests a key may send.

use std::time::Duration;

use crate::house::House;
use crate::on_each_store;

on_each_store!(each_key_is_limited_and_told_how_it_stands);

async fn each_key_is_limited_and_told_how_it_stands(house: House) {
    let settings = [("HOLDFAST_RATE_LIMIT", "1"), ("HOLDFAST_RATE_BURST", "20")];
    let (server, [one, other]) = house.with_keys(["checkout", "operator"], &settings);
    other.put_stock("A", 50).await.expect(200);
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
    assert_eq!(over.header("retry-after"), Some("1"));
    // The others are not held up, and what needs no key has no limit.
    assert!(other.get_stock("A").await.header("ratelimit").is_some());
    assert!(server.client().now().await.is_string());
    // One more may have become free meanwhile, so orders are sent until one is refused.
    let mut orders = (1..20).map(|number| one.with_key(&format!("order-{number}")));
    let refused = loop {
        let order = orders.next().expect("the limit limits nothing");
        if order.reserve_one("A", 1, 600).await.status == 429 {
            break order;
        }
    };
    // To wait as long as was said is enough; and a refusal is not kept under the key.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let answer = refused.reserve_one("A", 1, 600).await;
    assert!(!answer.is_replayed());
    answer.expect(201);
}
