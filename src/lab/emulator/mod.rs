//! A queue that keeps to the protocol of [`crate::queue::rest`] to the letter, in memory, and
//! breaks it when it is told to.
//!
//! It refuses what the real one refuses. Messages come to the millisecond: by pushes while it has
//! a subscriber, else to whoever consumes. Beside the protocol it answers `GET /stats`,
//! `GET`, `PUT` and `DELETE /faults`, `PUT` and `DELETE /subscriber`, and `POST /forget`, without
//! a token.

mod backlog;
mod faults;
mod pusher;
mod requests;
mod server;
mod stats;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reqwest::Url;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::domain::Timestamp;
use crate::engine::Runtime;
use crate::queue::ClientFault;
use crate::queue::webhook::Secret;
use crate::store::Clock;

use self::backlog::Backlog;
use self::pusher::Subscriber;

pub use self::faults::Faults;
pub use self::stats::{Lateness, Stats};

/// What the emulator needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The bearer token that its callers need.
    pub token: String,
    /// By what it signs pushes: once by each.
    pub secrets: Vec<Secret>,
    /// Where it pushes to at first; without it, messages are to be consumed.
    pub push_url: Option<Url>,
    /// The file of the authorities that the subscriber's certificate may come from, instead of the
    /// system's.
    pub push_ca: Option<PathBuf>,
    /// What it does wrong at first.
    pub faults: Faults,
}

/// Why the emulator does not start, or does not take a subscriber.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorFault {
    /// The address is not to be had.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// No push can be signed.
    #[error("pushes need a secret to be signed with; say --secret whsec_...")]
    NoSecret,
    /// The subscriber's address is none.
    #[error("messages are pushed to http:// or https://, not to {0}:")]
    Scheme(String),
    /// The subscriber cannot be called.
    #[error(transparent)]
    Client(#[from] ClientFault),
}

/// A running emulator. It stops when this is dropped.
pub struct Emulator {
    app: Arc<App>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

/// What the server and the pusher share.
struct App {
    token: String,
    secrets: Vec<Secret>,
    push_ca: Option<PathBuf>,
    clock: Clock,
    runtime: Arc<dyn Runtime>,
    backlog: Mutex<Backlog>,
    subscriber: Mutex<Option<Arc<Subscriber>>>,
    /// Something is to be pushed earlier than was thought.
    wake: Notify,
}

impl Emulator {
    /// Starts an emulator whose messages are due by `clock`, where [`Clock::Database`] is the
    /// clock of the process. Whoever moves a manual clock calls [`Emulator::wake`] then.
    pub async fn start(
        settings: Settings,
        clock: Clock,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, EmulatorFault> {
        let unavailable = |error| EmulatorFault::Listen(settings.listen, error);
        let listener = TcpListener::bind(settings.listen)
            .await
            .map_err(unavailable)?;
        let address = listener.local_addr().map_err(unavailable)?;
        let backlog = Backlog::new(settings.faults, clock.in_process().as_millis());
        let app = Arc::new(App {
            token: settings.token,
            secrets: settings.secrets,
            push_ca: settings.push_ca,
            clock,
            runtime,
            backlog: Mutex::new(backlog),
            subscriber: Mutex::new(None),
            wake: Notify::new(),
        });
        app.subscribe(settings.push_url)?;
        let (stop, stopped) = watch::channel(false);
        let serving = server::serve(listener, Arc::clone(&app), stopped.clone());
        let pushing = pusher::push_until_stopped(Arc::clone(&app), stopped);
        let tasks = vec![tokio::spawn(serving), tokio::spawn(pushing)];
        Ok(Self {
            app,
            address,
            stop,
            tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        self.app.backlog().stats()
    }

    /// Does these things wrong from now on, and no others.
    pub fn set_faults(&self, faults: Faults) {
        self.app.backlog().faults = faults;
    }

    /// Pushes to this address from now on, or to nobody.
    pub fn set_push_url(&self, url: Option<Url>) -> Result<(), EmulatorFault> {
        self.app.subscribe(url)
    }

    /// Forgets every message and every key, as a queue does that lost its disk.
    pub fn forget(&self) {
        self.app.backlog().forget();
    }

    /// Looks at the clock again, which was moved by hand.
    pub fn wake(&self) {
        self.app.wake.notify_one();
    }

    /// Answers what was asked, closes every connection, and returns when its address is free.
    pub async fn shut_down(mut self) {
        let _ = self.stop.send(true);
        for task in self.tasks.drain(..) {
            let _ = task.await;
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

impl App {
    fn now(&self) -> Timestamp {
        self.clock.in_process()
    }

    // Nothing that holds one of the locks panics halfway through a change.
    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscriber(&self) -> Option<Arc<Subscriber>> {
        let subscriber = self.subscriber.lock();
        subscriber.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn subscribe(&self, url: Option<Url>) -> Result<(), EmulatorFault> {
        let subscriber = match url {
            Some(_) if self.secrets.is_empty() => return Err(EmulatorFault::NoSecret),
            Some(url) if !matches!(url.scheme(), "http" | "https") => {
                return Err(EmulatorFault::Scheme(url.scheme().to_owned()));
            }
            Some(url) => Some(Arc::new(Subscriber::new(url, self.push_ca.as_deref())?)),
            None => None,
        };
        let current = self.subscriber.lock();
        *current.unwrap_or_else(PoisonError::into_inner) = subscriber;
        self.wake.notify_one();
        Ok(())
    }
}
