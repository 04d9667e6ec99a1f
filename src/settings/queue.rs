//! Which queue carries the expiry jobs, and how it is reached.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use reqwest::Url;

use crate::queue::rest::{self, Address, Rest, Token, is_loopback};
use crate::queue::webhook::Secret;
use crate::queue::{ClientFault, DeliveryMode, Queue};

use super::{refusal, without_secrets};

/// Which queue carries the expiry jobs.
#[derive(Clone, Debug)]
pub enum QueueSettings {
    /// None: this process releases holds when they are due.
    Timer,
    /// One that is called over HTTP.
    Rest {
        /// How it is reached.
        driver: Box<rest::Settings>,
        /// Where it reaches us, if that was said.
        public_url: Option<Url>,
    },
}

impl QueueSettings {
    /// The queue, if there is one. It is connected to when it is first used.
    pub fn open(&self) -> Result<Option<Arc<dyn Queue>>, ClientFault> {
        match self {
            Self::Timer => Ok(None),
            Self::Rest { driver, .. } => Ok(Some(Arc::new(Rest::open((**driver).clone())?))),
        }
    }

    /// What tells the queue from every other one that is or was configured.
    pub fn identity(&self) -> Option<String> {
        match self {
            Self::Timer => None,
            Self::Rest { driver, .. } => Some(driver.address.identity()),
        }
    }

    /// Where pushes of the queue are taken in, as the outside sees it, if that was said.
    pub fn push_url(&self) -> Option<String> {
        let Self::Rest { public_url, .. } = self else {
            return None;
        };
        let base = public_url.as_ref()?.as_str().trim_end_matches('/');
        Some(format!("{base}/v1/deliveries/rest"))
    }
}

/// The same as the operator writes it.
// The values may hold secrets, so `--help` shows none that it finds, and none is read by a parser
// of clap's own, which would repeat it.
#[derive(Args)]
struct Written {
    /// What carries expiry jobs: `timer:` for this process itself, or a queue, as in
    /// `rest+https://HOST/v1?queue=NAME&mode=push`, or with `mode=pull`.
    #[arg(
        id = "queue_url",
        long = "queue-url",
        env = "HOLDFAST_QUEUE_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "timer:"
    )]
    url: String,
    /// By what the queue knows us: a bearer token.
    #[arg(
        long = "queue-token",
        env = "HOLDFAST_QUEUE_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        default_value = "",
        hide_default_value = true
    )]
    token: String,
    /// By what we know the queue's pushes: `whsec_...`, or two of them with a comma between while
    /// one is exchanged for the other.
    #[arg(
        long = "queue-secret",
        env = "HOLDFAST_QUEUE_SECRET",
        hide_env_values = true,
        value_name = "SECRETS",
        default_value = "",
        hide_default_value = true
    )]
    secrets: String,
    /// A PEM file of the authorities that the queue's certificate may come from, instead of the
    /// system's.
    #[arg(long = "queue-ca", env = "HOLDFAST_QUEUE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Where others reach this service: https, or http on this machine.
    #[arg(
        long = "public-url",
        env = "HOLDFAST_PUBLIC_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "",
        hide_default_value = true
    )]
    public_url: String,
}

impl Written {
    fn read(self) -> Result<QueueSettings, String> {
        let public_url = self.read_public_url()?;
        if self.url == "timer:" {
            return Ok(QueueSettings::Timer);
        }
        if !self.url.starts_with("rest+") {
            return Err(format!(
                "no queue is known by the address `{}`; set HOLDFAST_QUEUE_URL to timer: or to \
                 {}://HOST/v1?queue=NAME&mode=push",
                without_secrets(&self.url),
                rest::ENCRYPTED
            ));
        }
        let address: Address = self
            .url
            .parse()
            .map_err(|reason| format!("HOLDFAST_QUEUE_URL makes no sense: {reason}"))?;
        let secrets = self.read_secrets()?;
        if address.delivery == DeliveryMode::Push && secrets.is_empty() {
            return Err("nobody could tell the queue's pushes from others; set \
                        HOLDFAST_QUEUE_SECRET to whsec_..., or mode=pull in HOLDFAST_QUEUE_URL"
                .to_owned());
        }
        if self.token.is_empty() {
            return Err(
                "the queue would not know us; set HOLDFAST_QUEUE_TOKEN to its token".to_owned(),
            );
        }
        let token: Token = self.token.parse().map_err(|reason| {
            format!("what is in HOLDFAST_QUEUE_TOKEN {reason}; set it to the queue's token")
        })?;
        let driver = Box::new(rest::Settings {
            address,
            token,
            secrets,
            ca: self.ca.filter(|file| !file.as_os_str().is_empty()),
        });
        Ok(QueueSettings::Rest { driver, public_url })
    }

    fn read_secrets(&self) -> Result<Vec<Secret>, String> {
        let secrets = self.secrets.split(',').map(str::trim);
        secrets
            .filter(|secret| !secret.is_empty())
            .map(|secret| {
                secret.parse().map_err(|reason| {
                    format!(
                        "what is in HOLDFAST_QUEUE_SECRET {reason}; set it to the queue's secret"
                    )
                })
            })
            .collect()
    }

    fn read_public_url(&self) -> Result<Option<Url>, String> {
        if self.public_url.is_empty() {
            return Ok(None);
        }
        let is_fit = |url: &Url| {
            (url.scheme() == "https" || (url.scheme() == "http" && is_loopback(url)))
                && url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
                && url.fragment().is_none()
        };
        let url = self.public_url.parse().ok().filter(is_fit);
        url.map(Some).ok_or_else(|| {
            format!(
                "nobody can be sent to `{}`; set HOLDFAST_PUBLIC_URL to https://HOST, or to \
                 http://127.0.0.1:8080 for this machine alone",
                without_secrets(&self.public_url)
            )
        })
    }
}

impl FromArgMatches for QueueSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Written::from_arg_matches(matches)?.read().map_err(refusal)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for QueueSettings {
    fn augment_args(command: Command) -> Command {
        Written::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Written::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Invocation, QueueTask, Task};
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const PUSH: &str = "rest+https://queue.example/v1?queue=holds&mode=push";
    const PULL: &str = "rest+http://127.0.0.1:9090/v1?queue=holds&mode=pull";

    /// Flags rather than variables, because the environment belongs to the whole test process.
    fn check(flags: &[&str]) -> Result<QueueSettings, String> {
        let arguments = ["holdfast", "queue", "check"].iter().chain(flags);
        match Invocation::from_arguments(arguments) {
            Ok(Invocation {
                task: Task::Queue(QueueTask::Check(settings)),
                ..
            }) => Ok(settings),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_timer_is_the_default() {
        assert!(matches!(check(&[]), Ok(QueueSettings::Timer)));
        assert!(QueueSettings::Timer.open().unwrap().is_none());
    }

    #[test]
    fn a_queue_is_read_and_opened_and_its_secrets_are_not_shown() {
        let both = format!("{SECRET}, whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX");
        let settings = check(&[
            "--queue-url",
            PUSH,
            "--queue-token",
            "hush-token",
            "--queue-secret",
            &both,
            "--public-url",
            "https://shop.example/holdfast",
        ])
        .unwrap();
        let shown = format!("{settings:?}");
        assert!(
            !shown.contains("hush") && !shown.contains("MfKQ"),
            "{shown}"
        );
        let QueueSettings::Rest { driver, public_url } = settings else {
            panic!("{shown}");
        };
        assert_eq!(driver.secrets.len(), 2);
        assert_eq!(driver.address.delivery, DeliveryMode::Push);
        assert_eq!(
            public_url.unwrap().as_str(),
            "https://shop.example/holdfast"
        );

        let pulled = check(&["--queue-url", PULL, "--queue-token", "t"]).unwrap();
        assert_eq!(pulled.open().unwrap().unwrap().name(), "rest");
    }

    #[test]
    fn nonsense_is_refused_in_one_line_that_says_what_to_set() {
        let remote = PULL.replace("127.0.0.1", "192.0.2.1");
        let other = PULL.replace("pull", "poll");
        let extra = format!("{PULL}&fifo=yes");
        let cases: &[(&[&str], &str)] = &[
            (&["--queue-url", "timer"], "HOLDFAST_QUEUE_URL to timer:"),
            (
                &["--queue-url", "amqp://me:hush@host"],
                "HOLDFAST_QUEUE_URL to timer:",
            ),
            (
                &["--queue-url", PUSH, "--queue-token", "t"],
                "HOLDFAST_QUEUE_SECRET",
            ),
            (&["--queue-url", PULL], "HOLDFAST_QUEUE_TOKEN"),
            (
                &["--queue-url", PULL, "--queue-token", "hush hush"],
                "HOLDFAST_QUEUE_TOKEN",
            ),
            (
                &["--queue-url", &remote, "--queue-token", "t"],
                "rest+https://",
            ),
            (
                &["--queue-url", &other, "--queue-token", "t"],
                "mode=push or mode=pull",
            ),
            (&["--queue-url", &extra, "--queue-token", "t"], "`fifo`"),
            (
                &[
                    "--queue-url",
                    PULL,
                    "--queue-token",
                    "t",
                    "--queue-secret",
                    "whsec_hush",
                ],
                "HOLDFAST_QUEUE_SECRET",
            ),
            (
                &["--public-url", "http://shop.example"],
                "HOLDFAST_PUBLIC_URL",
            ),
            (
                &["--public-url", "https://me:hush@shop.example"],
                "HOLDFAST_PUBLIC_URL",
            ),
            (
                &["--public-url", "https://shop.example?hush=1"],
                "HOLDFAST_PUBLIC_URL",
            ),
            (&["--public-url", "shop.example"], "HOLDFAST_PUBLIC_URL"),
        ];
        for (flags, says) in cases {
            let said = check(flags).unwrap_err();
            assert!(said.contains(says), "{flags:?}: {said}");
            assert_eq!(said.trim_end().lines().count(), 1, "{said}");
            assert!(!said.contains("hush"), "{said}");
        }
    }

    #[test]
    fn a_ca_file_that_is_none_is_refused_when_the_queue_is_opened() {
        for file in ["/nowhere/ca.pem", "Cargo.toml"] {
            let flags = [
                "--queue-url",
                PUSH,
                "--queue-token",
                "t",
                "--queue-secret",
                SECRET,
            ];
            let flags: Vec<&str> = flags.into_iter().chain(["--queue-ca", file]).collect();
            let fault = check(&flags).unwrap().open().map(drop).unwrap_err();
            assert!(fault.to_string().contains(file), "{fault}");
        }
    }
}
