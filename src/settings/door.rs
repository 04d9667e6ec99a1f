//! Who is let in, and how: keys, limits, encryption, the second listener.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::{DatabaseSettings, refusal, seconds};

/// The fewest characters of a secret that somebody chose.
const MIN_CHOSEN: usize = 32;

/// What `serve` needs to know about its door.
#[derive(Clone, Debug, Args)]
pub struct DoorSettings {
    /// A secret of your choice that may do everything while it is set; it is stored nowhere.
    #[arg(
        long,
        env = "HOLDFAST_BOOTSTRAP_KEY",
        hide_env_values = true,
        value_name = "SECRET",
        value_parser = ChosenSecretParser
    )]
    pub bootstrap_key: Option<ChosenSecret>,
    /// How many requests per second each key may send to this process; unset, any number.
    #[arg(
        long,
        env = "HOLDFAST_RATE_LIMIT",
        value_name = "REQUESTS",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub rate_limit: Option<u32>,
    /// How many of them may come at once after a rest; unset, those of one second.
    #[arg(
        long,
        env = "HOLDFAST_RATE_BURST",
        value_name = "REQUESTS",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub rate_burst: Option<u32>,
    /// Where to serve readiness and figures instead, in plain HTTP and without keys.
    #[arg(long, env = "HOLDFAST_OPERATIONS_LISTEN", value_name = "IP:PORT")]
    pub operations_listen: Option<SocketAddr>,
    /// The server's certificate and those between it and the root, PEM; read again when it changes.
    #[arg(long, env = "HOLDFAST_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM; read again when it changes.
    #[arg(long, env = "HOLDFAST_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// How long a client may take to send the head of a request.
    #[arg(
        long = "header-timeout-seconds",
        env = "HOLDFAST_HEADER_TIMEOUT_SECONDS",
        value_name = "SECONDS",
        default_value = "30",
        value_parser = seconds(1..=300),
        hide = true
    )]
    pub header_timeout: Duration,
}

impl DoorSettings {
    /// Refuses settings that make no sense together, in one line that says what to change.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err("TLS takes a certificate and its key; \
                        set both HOLDFAST_TLS_CERT and HOLDFAST_TLS_KEY, or neither"
                .to_owned());
        }
        if self.rate_burst.is_some() && self.rate_limit.is_none() {
            return Err(
                "HOLDFAST_RATE_BURST limits nothing by itself; set HOLDFAST_RATE_LIMIT as well"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The files of the certificate and of its key, if there are any.
    pub fn tls(&self) -> Option<(PathBuf, PathBuf)> {
        self.tls_cert.clone().zip(self.tls_key.clone())
    }
}

/// A secret that somebody chose: long enough, and fit to stand in a header. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ChosenSecret(String);

impl ChosenSecret {
    /// The secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for ChosenSecret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() < MIN_CHOSEN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "HOLDFAST_BOOTSTRAP_KEY needs at least {MIN_CHOSEN} characters, all of them \
                 visible ASCII; `head -c 32 /dev/urandom | base64` makes one"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for ChosenSecret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ChosenSecret(..)")
    }
}

/// Reads a [`ChosenSecret`]. Clap's own parsers repeat a value that they refuse.
#[derive(Clone)]
struct ChosenSecretParser;

impl TypedValueParser for ChosenSecretParser {
    type Value = ChosenSecret;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<ChosenSecret, clap::Error> {
        StringValueParser::new()
            .parse_ref(command, argument, value)?
            .parse()
            .map_err(refusal)
    }
}

/// What is done about API keys. All of it works while a server runs, which notices within a second.
#[derive(Clone, Debug, Subcommand)]
pub enum KeysTask {
    /// Make a key, and print its secret: once, on stdout, and alone.
    Create(CreateKey),
    /// List the keys, living and revoked.
    List(DatabaseSettings),
    /// Take a key away, for good.
    Revoke(RevokeKey),
}

/// Which key to make.
#[derive(Clone, Debug, Args)]
pub struct CreateKey {
    /// What the key is for, such as the program that has it.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// What it may do; may be given several times.
    #[arg(
        long = "scope",
        value_name = "SCOPE",
        required = true,
        value_parser = ["checkout", "inventory", "operator"]
    )]
    pub scopes: Vec<String>,
    /// On whose behalf it is used: what it reserves is this merchant's.
    #[arg(long, value_name = "MERCHANT", default_value = "default")]
    pub merchant: String,
    /// Where the keys are.
    #[command(flatten)]
    pub database: DatabaseSettings,
}

/// Which key to take away.
#[derive(Clone, Debug, Args)]
pub struct RevokeKey {
    /// The id of the key, as `holdfast keys list` shows it.
    #[arg(value_name = "ID")]
    pub id: String,
    /// Where the keys are.
    #[command(flatten)]
    pub database: DatabaseSettings,
}
