//! Endpoints that respond and close, and calls to services by host name.

use std::{io, net::SocketAddr, ops::Range, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout},
};

/// Number of sockets shared by the endpoints of all services.
const SOCKETS: usize = 16;
/// Timeout of a call.
const PATIENCE: Duration = Duration::from_secs(30);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Raises the limit of file descriptors, for all concurrent connections on both sides of the proxy.
pub(super) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If refused, connections that cannot be opened count as failed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The endpoints of all services.
pub(super) struct Endpoints {
    addresses: Vec<SocketAddr>,
    _serving: JoinSet<()>,
}

impl Endpoints {
    pub(super) async fn start() -> io::Result<Self> {
        let (mut addresses, mut serving) = (Vec::new(), JoinSet::new());
        for _ in 0..SOCKETS {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.push(listener.local_addr()?);
            serving.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream));
                }
            });
        }
        Ok(Self { addresses, _serving: serving })
    }

    /// Address of the endpoint of a service.
    pub(super) fn of(&self, service: usize) -> SocketAddr {
        self.addresses[service % SOCKETS]
    }
}

async fn answer(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_buf(&mut head).await {
            Ok(read) if read > 0 => {}
            _ => return,
        }
    }
    // Callers notice if the proxy has ended.
    let _ = stream.write_all(ANSWER).await;
}

/// Results of calls.
#[derive(Default)]
pub(super) struct Calls {
    /// Latencies in milliseconds.
    times: Vec<f64>,
    pub(super) failed: usize,
    /// Error of the first failed call.
    pub(super) why: Option<String>,
}

impl Calls {
    pub(super) fn take(&mut self, call: Result<f64, String>) {
        match call {
            Ok(ms) => self.times.push(ms),
            Err(why) => {
                self.failed += 1;
                self.why.get_or_insert(why);
            }
        }
    }

    /// p50 and p99.
    pub(super) fn quantiles(&self) -> [f64; 2] {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
        [at(50), at(99)]
    }
}

/// Calls services through the proxy.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    proxy: SocketAddr,
}

impl Caller {
    pub(super) fn new(proxy: SocketAddr) -> Self {
        Self { proxy }
    }

    /// Calls a service over a connection of its own.
    pub(super) async fn first(self, service: usize) -> Result<f64, String> {
        let mut connection = Connection::open(self.proxy).await?;
        connection.ok(service).await
    }

    /// Calls services one after the other.
    pub(super) async fn one_by_one(self, services: Range<usize>) -> Calls {
        let mut calls = Calls::default();
        let mut connection = None;
        for service in services {
            let mut open = match connection.take() {
                Some(open) => open,
                None => match Connection::open(self.proxy).await {
                    Ok(open) => open,
                    Err(why) => {
                        calls.take(Err(why));
                        continue;
                    }
                },
            };
            calls.take(open.ok(service).await);
            connection = Some(open);
        }
        calls
    }

    /// Calls services, at most `most` at a time.
    pub(super) async fn in_flight(self, services: Range<usize>, most: usize) -> Calls {
        let places = Arc::new(Semaphore::new(most));
        let mut flying = JoinSet::new();
        for service in services {
            let places = Arc::clone(&places);
            flying.spawn(async move {
                let _place = places.acquire_owned().await.map_err(|e| e.to_string())?;
                self.first(service).await
            });
        }
        let mut calls = Calls::default();
        while let Some(call) = flying.join_next().await {
            calls.take(call.unwrap_or_else(|e| Err(e.to_string())));
        }
        calls
    }
}

/// A connection to the proxy, kept open.
pub(super) struct Connection {
    stream: TcpStream,
}

impl Connection {
    pub(super) async fn open(proxy: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(proxy).await.map_err(|e| format!("cannot connect: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Self { stream })
    }

    /// Calls a service that must respond with 200. Returns the latency in milliseconds.
    async fn ok(&mut self, service: usize) -> Result<f64, String> {
        let began = Instant::now();
        let (status, words) = self.call(service, "/").await?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        if status == 200 { Ok(took) } else { Err(format!("{status} for service {service}: {words}")) }
    }

    /// Calls a service. Returns the status and the body of the response.
    pub(super) async fn call(&mut self, service: usize, path: &str) -> Result<(u16, String), String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: s{service}.bench\r\n\r\n");
        let calling = async {
            self.stream.write_all(request.as_bytes()).await?;
            self.response().await
        };
        match timeout(PATIENCE, calling).await {
            Ok(answered) => answered.map_err(|e| format!("service {service}: {e}")),
            Err(_) => Err(format!("service {service} did not answer within {PATIENCE:?}")),
        }
    }

    async fn response(&mut self) -> io::Result<(u16, String)> {
        let mut read = Vec::new();
        let end = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if self.stream.read_buf(&mut read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0);
        while read.len() < end + length {
            if self.stream.read_buf(&mut read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("no status in the response"))?;
        Ok((status, String::from_utf8_lossy(&read[end..]).into_owned()))
    }
}
