//! The address of such a queue, as the operator writes it.

use std::net::IpAddr;
use std::str::FromStr;

use reqwest::Url;

use crate::queue::DeliveryMode;

/// The scheme of an address that is called over TLS.
pub const ENCRYPTED: &str = "rest+https";
/// The scheme of an address that is called without, on this machine only.
pub const PLAIN: &str = "rest+http";

/// The longest name of a queue, in bytes.
const MAX_NAME: usize = 256;

/// Where a queue is, such as `rest+https://host/v1?queue=reservation-expiry&mode=push`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Under which its calls stand, without a slash at its end.
    pub(super) base: Url,
    /// Which of the service's queues it is.
    pub(super) queue: String,
    /// How it gives messages back.
    pub delivery: DeliveryMode,
}

impl Address {
    /// The address of a call, and what of it the service sees as its path.
    pub(super) fn call(&self, call: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!(
            "{}/{call}",
            self.base.path().trim_end_matches('/')
        ));
        url
    }

    /// What tells this queue from every other one that is or was configured.
    pub fn identity(&self) -> String {
        format!("rest {} {}", self.base, self.queue)
    }

    /// Are requests to it encrypted?
    pub(super) fn is_encrypted(&self) -> bool {
        self.base.scheme() == "https"
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = text
            .strip_prefix("rest+")
            .filter(|rest| rest.starts_with("https://") || rest.starts_with("http://"))
            .ok_or_else(|| format!("begin it with {ENCRYPTED}://HOST or {PLAIN}://127.0.0.1"))?;
        // The library's own words repeat nothing of the address, which may hold a password.
        let mut base: Url = url
            .parse()
            .map_err(|error| format!("it is no URL: {error}"))?;
        if !base.username().is_empty() || base.password().is_some() || base.fragment().is_some() {
            return Err(
                "take the user, the password and what follows `#` out of it; \
                        the token is HOLDFAST_QUEUE_TOKEN"
                    .to_owned(),
            );
        }
        if base.scheme() == "http" && !is_loopback(&base) {
            return Err(format!(
                "only this machine is called without encryption; write {ENCRYPTED}://"
            ));
        }
        let (queue, delivery) = parameters(&base)?;
        base.set_query(None);
        let path = base.path().trim_end_matches('/').to_owned();
        base.set_path(&path);
        Ok(Self {
            base,
            queue,
            delivery,
        })
    }
}

/// Is this the machine that we run on?
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn parameters(url: &Url) -> Result<(String, DeliveryMode), String> {
    let (mut queue, mut delivery) = (None, None);
    for (name, value) in url.query_pairs() {
        let is_first = match name.as_ref() {
            "queue" => queue.replace(value.into_owned()).is_none(),
            "mode" => {
                let mode = match value.as_ref() {
                    "push" => DeliveryMode::Push,
                    "pull" => DeliveryMode::Pull,
                    other => return Err(format!("write mode=push or mode=pull, not `{other}`")),
                };
                delivery.replace(mode).is_none()
            }
            other => {
                return Err(format!(
                    "`{other}` is no parameter; there are queue and mode"
                ));
            }
        };
        if !is_first {
            return Err(format!("say {name} once"));
        }
    }
    let queue = queue.filter(|name| {
        !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control)
    });
    let queue = queue.ok_or("say which queue it is, as in ?queue=reservation-expiry")?;
    let delivery = delivery.ok_or("say mode=push or mode=pull")?;
    Ok((queue, delivery))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read() {
        let address: Address = "rest+https://queue.example/v1/?queue=holds&mode=push"
            .parse()
            .unwrap();
        assert_eq!(address.queue, "holds");
        assert_eq!(address.delivery, DeliveryMode::Push);
        assert!(address.is_encrypted());
        let call = address.call("queue/publish");
        assert_eq!(call.as_str(), "https://queue.example/v1/queue/publish");
        for host in ["127.0.0.1:9090", "127.3.2.1", "[::1]:9090", "localhost:80"] {
            let text = format!("rest+http://{host}/v1?mode=pull&queue=a%20b");
            let address: Address = text.parse().unwrap();
            assert_eq!(address.queue, "a b");
            assert_eq!(address.delivery, DeliveryMode::Pull);
            assert!(!address.is_encrypted());
        }
        let bare: Address = "rest+https://queue.example?queue=a&mode=pull"
            .parse()
            .unwrap();
        assert_eq!(bare.call("queue/ack").path(), "/queue/ack");
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write() {
        for (text, says) in [
            ("https://host/v1?queue=a&mode=pull", "begin it with"),
            ("rest+ftp://host/v1?queue=a&mode=pull", "begin it with"),
            ("rest+https://?queue=a&mode=pull", "no URL"),
            ("rest+http://host/v1?queue=a&mode=pull", "rest+https://"),
            (
                "rest+http://192.0.2.1/v1?queue=a&mode=pull",
                "rest+https://",
            ),
            (
                "rest+http://localhost.example/v1?queue=a&mode=pull",
                "rest+https://",
            ),
            (
                "rest+https://me:secret@host/v1?queue=a&mode=pull",
                "HOLDFAST_QUEUE_TOKEN",
            ),
            ("rest+https://host/v1?queue=a&mode=pull#x", "`#`"),
            ("rest+https://host/v1?mode=pull", "which queue"),
            ("rest+https://host/v1?queue=&mode=pull", "which queue"),
            ("rest+https://host/v1?queue=a", "mode=push or mode=pull"),
            ("rest+https://host/v1?queue=a&mode=poll", "not `poll`"),
            ("rest+https://host/v1?queue=a&mode=pull&fifo=1", "`fifo`"),
            (
                "rest+https://host/v1?queue=a&mode=pull&queue=b",
                "queue once",
            ),
            (
                "rest+https://host/v1?queue=a&mode=pull&mode=push",
                "mode once",
            ),
        ] {
            let said = text.parse::<Address>().unwrap_err();
            assert!(said.contains(says), "{text}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
