use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use super::client::Client;

/// A real server process on a port of its own; killed when this is dropped.
pub struct ServerProcess {
    child: Child,
    url: String,
    log: Arc<Mutex<Vec<String>>>,
}

/// Runs the program to its end, with these arguments and settings and no others.
pub fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let output = program(arguments, settings).output();
    output.expect("the program can be run")
}

impl ServerProcess {
    /// Starts `holdfast serve` on a database, and returns when it listens. Settings are variables,
    /// such as `("HOLDFAST_HOLD_SECONDS", "5")`; those of the test's own environment do not count.
    pub fn start(database_url: &str, settings: &[(&str, &str)]) -> Self {
        let place = [
            ("HOLDFAST_LISTEN", "127.0.0.1:0"),
            ("HOLDFAST_DATABASE_URL", database_url),
        ];
        Self::spawn(program(&["serve"], &[&place, settings].concat()))
    }

    /// Starts `holdfast lab emulator`, and returns when it listens.
    pub fn emulator(arguments: &[&str]) -> Self {
        let emulator = ["lab", "emulator", "--listen", "127.0.0.1:0"];
        Self::spawn(program(&[&emulator, arguments].concat(), &[]))
    }

    fn spawn(mut program: Command) -> Self {
        let mut child = program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be run");
        let (found, urls) = mpsc::channel();
        let log = Arc::new(Mutex::new(Vec::new()));
        pass_on(child.stdout.take(), found.clone(), Arc::clone(&log));
        pass_on(child.stderr.take(), found, Arc::clone(&log));
        // The channel closes when the process has closed both, so that this waits for the process
        // and not for a time.
        let Ok(url) = urls.recv() else {
            let status = child.wait().expect("a child can be waited for");
            panic!(
                "the server did not listen, and ended with {status}; see above for what it said"
            );
        };
        Self { child, url, log }
    }

    /// Where it listens, such as `http://127.0.0.1:34567`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its process id, by which the system says what it takes.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Has it ended by itself?
    pub fn has_ended(&mut self) -> bool {
        let ended = self.child.try_wait();
        ended.expect("a child can be waited for").is_some()
    }

    /// What it has said so far, line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::of(&self.url)
    }

    /// Ends it as a power cut would, and returns when it is gone.
    pub fn kill9(mut self) -> ExitStatus {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for")
    }

    /// Asks it to end (SIGTERM), and returns when it has.
    pub async fn terminate(mut self) -> ExitStatus {
        self.ask_to_terminate();
        // Requests of this test may be what the server waits for; they must go on meanwhile.
        tokio::task::spawn_blocking(move || self.child.wait())
            .await
            .expect("waiting does not panic")
            .expect("a child can be waited for")
    }

    /// Asks it to end (SIGTERM), and does not wait.
    pub fn ask_to_terminate(&self) {
        // The shell's own `kill` is there wherever a shell is; the standard library has none.
        let asked = Command::new("sh")
            .args(["-c", "kill -TERM \"$0\"", &self.child.id().to_string()])
            .status();
        assert!(asked.expect("a shell can be run").success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HOLDFAST_") {
            program.env_remove(name);
        }
    }
    program.args(arguments).envs(settings.iter().copied());
    program
}

/// Shows what the server says with the test's own output, for as long as it speaks, so that it
/// never waits for a reader; keeps it; and sends the address that it listens on.
fn pass_on(
    stream: Option<impl Read + Send + 'static>,
    found: Sender<String>,
    log: Arc<Mutex<Vec<String>>>,
) {
    let stream = stream.expect("the stream is piped");
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            eprintln!("server: {line}");
            if let Some(url) = listening_on(&line) {
                // Nobody listens any more after the first.
                let _ = found.send(url);
            }
            log.lock().unwrap().push(line);
        }
    });
}

/// The address in a line such as `listening on http://127.0.0.1:34567`, or https.
pub fn listening_on(line: &str) -> Option<String> {
    let (_, url) = line.split_once("listening on ")?;
    let (scheme, place) = url.split_once("://")?;
    let is_place = |letter: char| letter.is_ascii_alphanumeric() || ".:[]".contains(letter);
    let end = place.find(|letter| !is_place(letter));
    Some(format!(
        "{scheme}://{}",
        &place[..end.unwrap_or(place.len())]
    ))
}
