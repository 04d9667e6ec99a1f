//! A pooler in front of PostgreSQL that hands out connections by the transaction, as poolers do
//! in transaction mode: each transaction of a client is on another connection than
//! its last one, wherever there is another, and statements that the client prepared are prepared
//! where it comes to be. Whoever expects anything else of a connection to be there is disappointed.
//!
//! Each client opens one connection, by which it shows who it is, and leaves it to all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, postgres::PgSslMode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;

/// The protocol's number for a plain start; the others ask for encryption, or to cancel.
const PLAIN_START: u32 = 196_608;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;
/// The kind of a message, and what is in it.
type Message = (u8, Vec<u8>);

/// A running pooler. Its tasks end with the test's runtime.
pub struct Pooler {
    url: String,
    pool: Arc<Pool>,
}

struct Pool {
    server: PgConnectOptions,
    free: Mutex<VecDeque<Backend>>,
    clients: AtomicU64,
    transactions: AtomicU64,
    moved: AtomicU64,
}

/// A connection to the server.
struct Backend {
    number: u64,
    said: mpsc::Receiver<Message>,
    writer: Writer,
    prepared: BTreeSet<Vec<u8>>,
}

/// One client, and what it has under way.
struct Client {
    number: u64,
    pool: Arc<Pool>,
    asked: mpsc::Receiver<Message>,
    writer: Writer,
    /// What it prepared, by the name that it has on the server.
    statements: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Statements that are being prepared, and whether the client knows nothing of it.
    preparing: VecDeque<(Vec<u8>, bool)>,
    /// Answers that are to end with the server being ready.
    unanswered: usize,
    last: Option<u64>,
}

impl Pooler {
    /// Starts one in front of the database at this address.
    pub async fn start(database_url: &str) -> Self {
        let server: PgConnectOptions = database_url.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = server.clone().host("127.0.0.1").port(port);
        let url = url.ssl_mode(PgSslMode::Disable).to_url_lossy().to_string();
        let pool = Arc::new(Pool {
            server,
            free: Mutex::default(),
            clients: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        });
        tokio::spawn({
            let pool = Arc::clone(&pool);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(Arc::clone(&pool), stream));
                }
            }
        });
        Self { url, pool }
    }

    /// Its address, as `HOLDFAST_DATABASE_URL` takes it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many transactions there were, and how many of them on another connection than their
    /// client's last one.
    pub fn transactions(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.pool.transactions), count(&self.pool.moved))
    }
}

/// Serves a client until it or its server hangs up.
async fn serve(pool: Arc<Pool>, stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (reader, writer) = stream.into_split();
    let (mut reader, mut writer): (Reader, Writer) = (Box::new(reader), Box::new(writer));
    let start = start(&mut reader, &mut writer).await?;
    let backend = introduce(&pool, &start, &mut reader, &mut writer).await?;
    let number = backend.number;
    pool.free.lock().unwrap().push_back(backend);
    let client = Client {
        number,
        pool,
        asked: messages(reader),
        writer,
        statements: BTreeMap::new(),
        preparing: VecDeque::new(),
        unanswered: 0,
        last: None,
    };
    client.run().await
}

/// Reads who the client is. There is no encryption here.
async fn start(reader: &mut Reader, writer: &mut Writer) -> Option<Vec<u8>> {
    loop {
        let length = reader.read_u32().await.ok()?;
        let mut start = vec![0; usize::try_from(length).ok()?.checked_sub(4)?];
        reader.read_exact(&mut start).await.ok()?;
        if start.get(..4)? == PLAIN_START.to_be_bytes() {
            return Some([&length.to_be_bytes()[..], &start].concat());
        }
        writer.write_all(b"N").await.ok()?;
    }
}

/// Opens a connection and lets the client show who it is.
async fn introduce(
    pool: &Pool,
    start: &[u8],
    client_reader: &mut Reader,
    client_writer: &mut Writer,
) -> Option<Backend> {
    let (host, port) = (pool.server.get_host(), pool.server.get_port());
    let directory = pool
        .server
        .get_socket()
        .map(|path| path.display().to_string());
    let directory = directory.or_else(|| host.starts_with('/').then(|| host.to_owned()));
    let (mut reader, mut writer): (Reader, Writer) = if let Some(directory) = directory {
        let stream = UnixStream::connect(format!("{directory}/.s.PGSQL.{port}")).await;
        let (reader, writer) = stream.ok()?.into_split();
        (Box::new(reader), Box::new(writer))
    } else {
        let stream = TcpStream::connect((host, port)).await.ok()?;
        stream.set_nodelay(true).ok()?;
        let (reader, writer) = stream.into_split();
        (Box::new(reader), Box::new(writer))
    };
    writer.write_all(start).await.ok()?;
    loop {
        let (kind, body) = read(&mut reader).await?;
        write(client_writer, kind, &body).await?;
        match kind {
            b'E' => return None,
            b'Z' => break,
            // Whoever is asked for more than nothing answers once.
            b'R' if !matches!(body.get(3), Some(0 | 12)) => {
                let (kind, body) = read(client_reader).await?;
                write(&mut writer, kind, &body).await?;
            }
            _ => {}
        }
    }
    Some(Backend {
        number: pool.clients.fetch_add(1, Ordering::Relaxed),
        said: messages(reader),
        writer,
        prepared: BTreeSet::new(),
    })
}

impl Client {
    async fn run(mut self) -> Option<()> {
        loop {
            let mut first = self.asked.recv().await?;
            let mut backend = self.take();
            loop {
                self.ask(&mut backend, first).await?;
                first = loop {
                    tokio::select! {
                        asked = self.asked.recv() => break asked?,
                        said = backend.said.recv() => {
                            let said = said?;
                            if self.answer(&mut backend, said).await? {
                                break (b'.', Vec::new());
                            }
                        }
                    }
                };
                if first.0 == b'.' {
                    break;
                }
            }
            self.pool.free.lock().unwrap().push_back(backend);
        }
    }

    /// Takes a connection that was free for long, and another one than the last time. There are
    /// as many as there are clients.
    fn take(&mut self) -> Backend {
        let mut free = self.pool.free.lock().unwrap();
        if free.front().map(|backend| backend.number) == self.last {
            free.rotate_left(1);
        }
        let backend = free.pop_front().expect("a connection for each client");
        self.pool.transactions.fetch_add(1, Ordering::Relaxed);
        if self.last.is_some_and(|last| last != backend.number) {
            self.pool.moved.fetch_add(1, Ordering::Relaxed);
        }
        self.last = Some(backend.number);
        backend
    }

    /// Passes on what the client asks. A name of a statement becomes one that no other client has.
    async fn ask(&mut self, backend: &mut Backend, (kind, body): Message) -> Option<()> {
        let body = match kind {
            b'P' => {
                let (name, rest) = self.renamed(&body);
                let body = [&name, &b"\0"[..], rest].concat();
                if !name.is_empty() {
                    backend.prepared.insert(name.clone());
                    self.statements.insert(name.clone(), body.clone());
                }
                self.preparing.push_back((name, false));
                body
            }
            b'B' => {
                let portal = body.iter().position(|byte| *byte == 0)? + 1;
                let (name, rest) = self.renamed(&body[portal..]);
                let bind = [&body[..portal], &name, b"\0", rest].concat();
                self.prepare(backend, &name).await?;
                bind
            }
            b'D' | b'C' if body.first() == Some(&b'S') => {
                let (name, rest) = self.renamed(&body[1..]);
                let named = [b"S", &name[..], b"\0", rest].concat();
                if kind == b'D' {
                    self.prepare(backend, &name).await?;
                } else {
                    backend.prepared.remove(&name);
                    self.statements.remove(&name);
                }
                named
            }
            b'S' | b'Q' => {
                self.unanswered += 1;
                body
            }
            _ => body,
        };
        write(&mut backend.writer, kind, &body).await
    }

    /// The name at the start of a body, as the server knows it, and what comes after it.
    fn renamed<'b>(&self, body: &'b [u8]) -> (Vec<u8>, &'b [u8]) {
        let end = body
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(body.len());
        let (name, rest) = (&body[..end], body.get(end + 1..).unwrap_or_default());
        if name.is_empty() {
            return (Vec::new(), rest);
        }
        let number = self.number.to_string();
        ([number.as_bytes(), b"_", name].concat(), rest)
    }

    /// Sees to it that a statement is there.
    async fn prepare(&mut self, backend: &mut Backend, name: &[u8]) -> Option<()> {
        if name.is_empty() || !backend.prepared.insert(name.to_owned()) {
            return Some(());
        }
        self.preparing.push_back((name.to_owned(), true));
        let statement = self.statements.get(name).cloned().unwrap_or_default();
        write(&mut backend.writer, b'P', &statement).await
    }

    /// Passes on what the server says. Says whether it was the end of a transaction.
    async fn answer(&mut self, backend: &mut Backend, (kind, body): Message) -> Option<bool> {
        match kind {
            b'1' => {
                let prepared = self.preparing.pop_front();
                if prepared.is_some_and(|(_, in_secret)| in_secret) {
                    return Some(false);
                }
            }
            b'E' => {
                for (name, _) in self.preparing.drain(..) {
                    backend.prepared.remove(&name);
                }
            }
            b'Z' => self.unanswered = self.unanswered.saturating_sub(1),
            _ => {}
        }
        write(&mut self.writer, kind, &body).await?;
        Some(kind == b'Z' && body == b"I" && self.unanswered == 0)
    }
}

/// What comes from a reader, message by message.
fn messages(mut reader: Reader) -> mpsc::Receiver<Message> {
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Some(message) = read(&mut reader).await {
            // The end of a client is no message to a server that others will use.
            if message.0 == b'X' || sender.send(message).await.is_err() {
                return;
            }
        }
    });
    receiver
}

async fn read(reader: &mut Reader) -> Option<Message> {
    let kind = reader.read_u8().await.ok()?;
    let length = reader.read_u32().await.ok()?;
    let mut body = vec![0; usize::try_from(length).ok()?.checked_sub(4)?];
    reader.read_exact(&mut body).await.ok()?;
    Some((kind, body))
}

async fn write(writer: &mut Writer, kind: u8, body: &[u8]) -> Option<()> {
    let length = u32::try_from(body.len() + 4).ok()?;
    let message = [&[kind], &length.to_be_bytes()[..], body].concat();
    writer.write_all(&message).await.ok()
}
