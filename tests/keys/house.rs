//! A database, with the program's commands on it.

use std::process::Output;
use std::time::Duration;

use crate::world::client::{Answer, Client};
use crate::world::database::{TestDatabase, database};
use crate::world::directory::TempDir;
use crate::world::server::{ServerProcess, run};

/// How long something that is promised soon may take on a machine that is busy. Nothing is decided
/// by it but that a test ends.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How soon every instance knows of a key that was made or revoked.
pub const SOON: Duration = Duration::from_secs(1);

enum Place {
    Sqlite(TempDir),
    Postgres(Box<TestDatabase>),
}

/// A database, empty at first.
pub struct House(Place);

/// A key, as `keys create` gives it.
pub struct Key {
    pub id: String,
    pub secret: String,
}

impl House {
    pub fn on_sqlite() -> Self {
        Self(Place::Sqlite(TempDir::new()))
    }

    pub async fn on_postgres() -> Self {
        let house = Self(Place::Postgres(Box::new(database().await)));
        assert!(house.run(&["migrate"]).status.success());
        house
    }

    pub fn url(&self) -> String {
        match &self.0 {
            Place::Sqlite(directory) => directory.sqlite_url(),
            Place::Postgres(database) => database.url(),
        }
    }

    /// The directory of an SQLite database.
    pub fn directory(&self) -> Option<&TempDir> {
        match &self.0 {
            Place::Sqlite(directory) => Some(directory),
            Place::Postgres(_) => None,
        }
    }

    /// Runs a command of the program on the database.
    pub fn run(&self, arguments: &[&str]) -> Output {
        run(arguments, &[("HOLDFAST_DATABASE_URL", &self.url())])
    }

    /// Starts a server on the database.
    pub fn start(&self, settings: &[(&str, &str)]) -> ServerProcess {
        ServerProcess::start(&self.url(), settings)
    }

    /// How many servers the database takes at a time.
    pub fn most_servers(&self) -> usize {
        match self.0 {
            Place::Sqlite(_) => 1,
            Place::Postgres(_) => 2,
        }
    }

    /// Makes a key with these scopes.
    pub fn make_key(&self, name: &str, scopes: &[&str]) -> Key {
        self.make_key_of("default", name, scopes)
    }

    /// Makes a key of this merchant.
    pub fn make_key_of(&self, merchant: &str, name: &str, scopes: &[&str]) -> Key {
        let mut arguments = vec!["keys", "create", "--name", name];
        if merchant != "default" {
            arguments.extend(["--merchant", merchant]);
        }
        for scope in scopes {
            arguments.extend(["--scope", scope]);
        }
        let made = self.run(&arguments);
        assert!(made.status.success(), "{made:?}");
        // The secret stands alone on stdout, and on stderr not at all.
        let secret = String::from_utf8(made.stdout).unwrap();
        let secret = secret.strip_suffix('\n').unwrap().to_owned();
        assert!(secret.starts_with("hf_") && secret.len() == 55, "{secret}");
        let said = String::from_utf8(made.stderr).unwrap();
        assert!(!said.contains(&secret));
        let id = said
            .split_whitespace()
            .find(|word| word.starts_with("key_"));
        Key {
            id: id.unwrap().to_owned(),
            secret,
        }
    }

    /// A server, and clients with a key of each of these scopes.
    pub fn with_keys<const N: usize>(
        &self,
        scopes: [&str; N],
        settings: &[(&str, &str)],
    ) -> (ServerProcess, [Client; N]) {
        let keys = scopes.map(|scope| self.make_key(scope, &[scope]));
        let server = self.start(settings);
        let clients = keys.map(|key| server.client().holding(&key.secret));
        (server, clients)
    }
}

/// Asks until the answer has this status; fails if it does not come within `limit`.
pub async fn until_status(limit: Duration, status: u16, ask: impl AsyncFn() -> Answer) -> Answer {
    until(limit, async || {
        let answer = ask().await;
        (answer.status == status).then_some(answer)
    })
    .await
}

/// Asks again and again until the answer is there; fails if it does not come within `limit`.
pub async fn until<T>(limit: Duration, ask: impl AsyncFn() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let answer = tokio::time::timeout(limit, asked).await;
    answer.expect("what was waited for did not come in time")
}

/// Fails unless the program ended with 2 and one line on stderr that has these words.
pub fn assert_refused(output: &Output, words: &[&str]) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one line: {said}");
    for word in words {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
}
