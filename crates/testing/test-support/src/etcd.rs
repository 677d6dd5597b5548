use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use crate::free_port;

/// Timeout of short operations.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the port is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A real etcd on free ports of this machine, with a temporary directory; killed on drop.
#[derive(Debug)]
pub struct Etcd {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    scheme: &'static str,
    port: u16,
    process: Option<Child>,
}

impl Etcd {
    /// Starts etcd with default options.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts etcd with additional arguments.
    pub fn with(arguments: &[&str]) -> Self {
        Self::begin(arguments.iter().map(|&argument| argument.to_owned()).collect(), "http")
    }

    /// Starts etcd with TLS and client certificates of the same authority.
    pub fn secured(certificate: &Path, key: &Path, ca: &Path) -> Self {
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let files = [
            flag("cert-file", certificate),
            flag("key-file", key),
            flag("trusted-ca-file", ca),
            "--client-cert-auth".into(),
        ];
        Self::begin(files.into(), "https")
    }

    fn begin(arguments: Vec<String>, scheme: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = Self { folder, arguments, scheme, port: 0, process: None };
        // Another process may take a free port before etcd binds it.
        for _ in 0..5 {
            etcd.port = free_port();
            if etcd.run() {
                return etcd;
            }
        }
        panic!("etcd does not start: {}", etcd.log());
    }

    /// Client address, as `host:port`.
    pub fn client(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills etcd, but keeps its data.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Process id of the running etcd.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Restarts etcd on the same ports.
    pub fn restart(&mut self) {
        assert!(self.process.is_none() && self.run(), "{}", self.log());
    }

    /// Deletes the data of a stopped etcd.
    pub fn wipe(&self) {
        std::fs::remove_dir_all(self.data()).unwrap();
    }

    /// Makes a call to etcd's HTTP interface, which must succeed, and returns the response.
    pub fn post(&self, path: &str, body: &str) -> String {
        call(&self.client(), path, body).unwrap()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Runs etcd; false if it exits.
    fn run(&mut self) -> bool {
        let clients = format!("{}://{}", self.scheme, self.client());
        let peers = format!("http://127.0.0.1:{}", free_port());
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let mut process = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.data())
            .args(["--name=one", "--heartbeat-interval=20", "--election-timeout=200", "--log-level=error"])
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("one={peers}")])
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("these tests need etcd; run scripts/setup.sh etcd");
        for _ in 0..TIMEOUT.as_millis() / POLL_INTERVAL.as_millis() {
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            if TcpStream::connect(self.client()).is_ok() {
                self.process = Some(process);
                return true;
            }
            sleep(POLL_INTERVAL);
        }
        process.kill().unwrap();
        process.wait().unwrap();
        panic!("etcd does not listen: {}", self.log());
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The response to a call of the HTTP interface of the etcd at `client`, or an error if it is unreachable or refuses.
pub fn call(client: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(client)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let length = body.len();
    write!(
        stream,
        "POST /v3/{path} HTTP/1.1\r\nhost: etcd\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.starts_with("HTTP/1.1 200") {
        true => Ok(response),
        false => Err(std::io::Error::other(format!("{path}: {response}"))),
    }
}
