//! Authorities, identities and clocks for the tests.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_identity::{Authority, Clock, Credentials, PrivateKey, Workload};
use fairmesh_model::{SpiffeId, TrustDomain};
use fairmesh_wire::transport::{Address, Socket, Transport};
use tempfile::TempDir;
use tokio::time::Instant;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn domain() -> TrustDomain {
    TrustDomain::new("prod").unwrap()
}

pub(crate) fn id(path: &str) -> SpiffeId {
    format!("spiffe://prod/{path}").parse().unwrap()
}

/// Wall-clock time that follows the runtime's paused clock.
pub(crate) struct TestClock {
    begin: Duration,
    since: Instant,
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestClock")
    }
}

impl TestClock {
    pub(crate) fn at(begin: Duration) -> Arc<Self> {
        Arc::new(Self { begin, since: Instant::now() })
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        self.begin + self.since.elapsed()
    }
}

#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Wall-clock time that the test sets, for connections over real sockets.
#[derive(Debug, Default)]
pub(crate) struct SetClock(AtomicU64);

impl SetClock {
    pub(crate) fn set(&self, time: Duration) {
        self.0.store(time.as_secs(), Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// An authority in its own temporary folder.
pub(crate) struct Ca {
    pub(crate) authority: Authority,
    pub(crate) folder: TempDir,
}

impl Default for Ca {
    fn default() -> Self {
        Self::of(&domain(), now())
    }
}

impl Ca {
    pub(crate) fn of(domain: &TrustDomain, now: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { authority: Authority::open(&folder.path().join("ca"), domain, now).unwrap(), folder }
    }

    pub(crate) fn credentials(&self, path: &str, now: Duration) -> Credentials {
        let key = PrivateKey::generate().unwrap();
        let id = path.parse::<fairmesh_model::SpiffePath>().unwrap().within(&self.authority.bundle().domain);
        let issued = self.authority.issue(&key.signing_request().unwrap(), &id, now).unwrap();
        Credentials::new(key, issued.chain, self.authority.bundle(), now).unwrap()
    }

    pub(crate) fn workload(&self, path: &str) -> Arc<Workload> {
        let workload = Workload::default();
        workload.install(self.credentials(path, now())).unwrap();
        Arc::new(workload)
    }

    pub(crate) fn transport(&self, path: &str) -> Transport {
        Transport::tls(self.workload(path))
    }
}

/// Opens a connection, and returns the agent's end and the control plane's end.
pub(crate) async fn connect(
    agent: &Transport,
    control: &Transport,
) -> (io::Result<Socket>, io::Result<Socket>) {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let listener = control.bind(&any).await.unwrap();
    let address = listener.address().unwrap();
    let accept = async || listener.accept().await.handshake().await;
    soon(async { tokio::join!(agent.dial(&address), accept()) }).await
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it takes too long")
}
