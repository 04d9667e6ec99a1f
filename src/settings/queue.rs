//! Which queue brings expiry jobs back, and what it and we need to know of each other.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use reqwest::Url;

use super::refusal;
use crate::queue::DeliveryMode;
use crate::queue::rest::{self, Address, Token, is_loopback};
use crate::queue::webhook::Secret;

/// What can be done with a queue by itself.
#[derive(Clone, Debug, Subcommand)]
pub enum QueueTask {
    /// Ask the queue how it wants to be used, and compare that with how it would be.
    Check(QueueSettings),
}

/// Which queue brings expiry jobs back.
#[derive(Clone, Debug, Args)]
pub struct QueueSettings {
    /// What wakes holds up when they are due: the built-in timer (`timer:`), or a queue such as
    /// `rest+https://HOST/v1?queue=NAME&mode=push`.
    #[arg(
        id = "queue_url",
        long = "queue-url",
        env = "HOLDFAST_QUEUE_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "timer:",
        value_parser = Unrepeated::<QueueUrl>::of("HOLDFAST_QUEUE_URL")
    )]
    pub url: QueueUrl,
    /// The bearer token by which the queue knows us.
    #[arg(
        long = "queue-token",
        env = "HOLDFAST_QUEUE_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        value_parser = Unrepeated::<Token>::of("HOLDFAST_QUEUE_TOKEN")
    )]
    pub token: Option<Token>,
    /// The secret by which we know the queue's pushes, `whsec_...`; two, separated by a comma, while
    /// one is exchanged for the other.
    #[arg(
        long = "queue-secret",
        env = "HOLDFAST_QUEUE_SECRET",
        hide_env_values = true,
        value_name = "SECRETS",
        value_parser = Unrepeated::<Secrets>::of("HOLDFAST_QUEUE_SECRET")
    )]
    pub secret: Option<Secrets>,
    /// The authorities that the queue's certificate may come from, instead of the system's: a PEM
    /// file.
    #[arg(long = "queue-ca", env = "HOLDFAST_QUEUE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The address at which the outside reaches this service, for pushes: https, or this machine.
    #[arg(
        long = "public-url",
        env = "HOLDFAST_PUBLIC_URL",
        value_name = "URL",
        value_parser = Unrepeated::<PublicUrl>::of("HOLDFAST_PUBLIC_URL")
    )]
    pub public_url: Option<PublicUrl>,
}

impl QueueSettings {
    /// Refuses settings that make no sense together, in one line that says what to change.
    pub(super) fn check(&self) -> Result<(), String> {
        let QueueUrl::Rest(address) = &self.url else {
            return Ok(());
        };
        if self.token.is_none() {
            return Err("the queue knows us by a token; set HOLDFAST_QUEUE_TOKEN".to_owned());
        }
        if address.delivery == DeliveryMode::Push {
            if self.secret.is_none() {
                return Err(
                    "pushes are known by a secret; set HOLDFAST_QUEUE_SECRET to the queue's \
                     whsec_..., or write mode=pull in HOLDFAST_QUEUE_URL"
                        .to_owned(),
                );
            }
            if self.public_url.is_none() {
                return Err(
                    "the queue pushes to an address; set HOLDFAST_PUBLIC_URL to the one at which \
                     it reaches this service, such as https://shop.example"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// What the driver of the queue needs to know; none for the timer.
    pub fn rest(&self) -> Option<rest::Settings> {
        let (QueueUrl::Rest(address), Some(token)) = (&self.url, &self.token) else {
            return None;
        };
        Some(rest::Settings {
            address: address.clone(),
            token: token.clone(),
            secrets: self
                .secret
                .clone()
                .map(|secrets| secrets.0)
                .unwrap_or_default(),
            ca: self.ca.clone(),
        })
    }

    /// Where the queue has to push to, if it pushes.
    pub fn push_url(&self) -> Option<String> {
        let QueueUrl::Rest(address) = &self.url else {
            return None;
        };
        let PublicUrl(base) = self.public_url.as_ref()?;
        let base = base.as_str().trim_end_matches('/');
        (address.delivery == DeliveryMode::Push).then(|| format!("{base}/v1/deliveries/rest"))
    }
}

/// What wakes holds up when they are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueUrl {
    /// The built-in timer.
    Timer,
    /// A queue that is called over HTTP with JSON.
    Rest(Address),
}

impl FromStr for QueueUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').map(|(scheme, _)| scheme) {
            Some("timer") if text == "timer:" => Ok(Self::Timer),
            Some(rest::ENCRYPTED | rest::PLAIN) => text.parse().map(Self::Rest),
            _ => Err(format!(
                "write `timer:` or {}://HOST/v1?queue=NAME&mode=push",
                rest::ENCRYPTED
            )),
        }
    }
}

/// One secret, or two while one is exchanged for the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets(pub Vec<Secret>);

impl FromStr for Secrets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let secrets: Result<Vec<Secret>, _> = text.split(',').map(|it| it.trim().parse()).collect();
        match secrets {
            Ok(secrets) if secrets.len() <= 2 => Ok(Self(secrets)),
            Ok(_) => Err("has more than two secrets".to_owned()),
            Err(fault) => Err(fault.to_string()),
        }
    }
}

/// The address at which the outside reaches this service. What a request says in its Host header
/// is never believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(Url);

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url: Url = text
            .parse()
            .map_err(|fault| format!("is no URL: {fault}"))?;
        let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(&url));
        let is_bare =
            url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        if is_safe && is_bare {
            Ok(Self(url))
        } else {
            Err(
                "must be https://HOST, or http:// on this machine, with nothing behind its path"
                    .to_owned(),
            )
        }
    }
}

/// Reads what may hold a secret, and so is not repeated when it is refused, as clap's own parsers
/// would.
struct Unrepeated<T> {
    variable: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> Unrepeated<T> {
    fn of(variable: &'static str) -> Self {
        Self {
            variable,
            value: PhantomData,
        }
    }
}

impl<T> Clone for Unrepeated<T> {
    fn clone(&self) -> Self {
        Self::of(self.variable)
    }
}

impl<T> TypedValueParser for Unrepeated<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: fmt::Display,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, argument, value)?;
        text.parse()
            .map_err(|fault| refusal(format!("{}: {fault}", self.variable)))
    }
}

/// What the emulator of a queue needs to know.
#[derive(Clone, Debug, Args)]
pub struct EmulatorSettings {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9090")]
    pub listen: SocketAddr,
    /// The bearer token that its callers need.
    #[arg(long, value_name = "TOKEN")]
    pub token: String,
    /// By what it signs pushes, `whsec_...`; by each of two while one is exchanged.
    #[arg(
        long,
        value_name = "SECRETS",
        value_parser = Unrepeated::<Secrets>::of("--secret")
    )]
    pub secret: Option<Secrets>,
    /// Where it pushes to; without it, messages are to be consumed.
    #[arg(long, value_name = "URL")]
    pub push_url: Option<Url>,
    /// The authorities that the subscriber's certificate may come from, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub push_ca: Option<PathBuf>,
    /// What it does wrong at first; `PUT /faults` changes that.
    #[command(flatten)]
    pub faults: FaultSettings,
}

/// What an emulator does wrong. Of what happens to every nth, 1 is each and 0 is none.
#[derive(Clone, Debug, Args)]
pub struct FaultSettings {
    /// Deliver every nth message twice.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub duplicate_every: u64,
    /// Accept every nth message and never deliver it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub drop_every: u64,
    /// Accept every nth message, and answer 500 all the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub lose_answer_every: u64,
    /// Deliver later than it was told.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub delay_ms: u32,
    /// Deliver earlier than it was told.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub early_ms: u32,
    /// Deliver every second message this much later, behind those that follow it.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub reorder_ms: u32,
    /// Cut longer delays down to this one, in silence.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub clamp_delay_seconds: u32,
    /// Refuse every nth call with 429.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit_every: u64,
    /// What the Retry-After of a 429 asks for.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    pub retry_after_seconds: u32,
    /// Write Retry-After as a date rather than as seconds.
    #[arg(long)]
    pub retry_after_date: bool,
    /// Fail every nth call with 500, and do nothing.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub fail_every: u64,
    /// Answer each call this much later.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub slow_ms: u32,
}

#[cfg(test)]
mod tests;
