//! Where the service listens, and how long it listens to whom.

use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::house::{House, PATIENCE, assert_refused};
use crate::on_each_store;
use crate::world::client::Client;
use crate::world::server::run;

on_each_store!(
    others_are_served_when_there_is_a_key,
    figures_can_have_a_listener_of_their_own,
);

async fn others_are_served_when_there_is_a_key(house: House) {
    let url = house.url();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let settings = [
            ("HOLDFAST_LISTEN", address),
            ("HOLDFAST_DATABASE_URL", &url),
        ];
        let words = ["keys create", "HOLDFAST_BOOTSTRAP_KEY", "HOLDFAST_LISTEN"];
        assert_refused(&run(&["serve"], &settings), &words);
    }
    let everywhere = ("HOLDFAST_LISTEN", "0.0.0.0:0");
    let chosen = "0123456789abcdef0123456789abcdef";
    let server = house.start(&[everywhere, ("HOLDFAST_BOOTSTRAP_KEY", chosen)]);
    assert_eq!(server.client().get_stock("A").await.status, 401);
    assert!(server.terminate().await.success());
    let key = house.make_key("the shop's", &["operator"]);
    let server = house.start(&[everywhere]);
    assert_eq!(server.client().get_stock("A").await.status, 401);
    let client = server.client().holding(&key.secret);
    client.put_stock("A", 1).await.expect(200);
    // By whatever name it is called there.
    let named = client.request(Method::GET, "/v1/stock/A");
    let answer = client
        .send(named.header("Host", "holdfast.shop.example"))
        .await;
    answer.expect(200);
}

async fn figures_can_have_a_listener_of_their_own(house: House) {
    let server = house.start(&[("HOLDFAST_OPERATIONS_LISTEN", "127.0.0.1:0")]);
    let log = server.log().join("\n");
    let (_, place) = log.split_once("readiness and figures on ").unwrap();
    let operations = Client::of(place.split_whitespace().next().unwrap());
    let api = server.client();
    let status = async |client: &Client, path: &str| {
        // The document tells of a server with one listener, and is not asked.
        let answer = client.request(Method::GET, path).send().await.unwrap();
        answer.status().as_u16()
    };
    for (path, by_api, by_operations) in [
        ("/livez", 200, 200),
        ("/readyz", 404, 200),
        ("/metrics", 404, 200),
        ("/v1/events", 200, 404),
        ("/docs/", 200, 404),
    ] {
        assert_eq!(status(&operations, path).await, by_operations, "{path}");
        assert_eq!(status(&api, path).await, by_api, "{path}");
    }
    // A name is all that a scraper may have.
    let scrape = operations.request(Method::GET, "/metrics");
    let scrape = operations.send(scrape.header("Host", "holdfast-1")).await;
    assert_eq!(scrape.status, 200);
    assert!(server.terminate().await.success());
}

/// A client that sends a letter now and then would keep its connection for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_too_long_is_cut_off() {
    let house = House::on_sqlite();
    let server = house.start(&[("HOLDFAST_HEADER_TIMEOUT_SECONDS", "1")]);
    let address = server.url().trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).await.unwrap();
    let ended = async {
        let mut answer = [0; 1_024];
        for letter in b"GET /livez HTTP/1.1\r\nX-Slow: "
            .iter()
            .chain(&[b'a'; 1_000])
        {
            if connection.write_all(&[*letter]).await.is_err() {
                return;
            }
            let pause = std::time::Duration::from_millis(100);
            let read = tokio::time::timeout(pause, connection.read(&mut answer)).await;
            if let Ok(Ok(0) | Err(_)) = read {
                return;
            }
        }
        panic!("it is listened to for ever");
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap();
    // Others were served meanwhile, and are.
    server.client().get_stock("A").await.expect(404);
}
