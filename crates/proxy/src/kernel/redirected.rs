use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{PoisonError, RwLock},
    time::Duration,
};

use fairmesh_kernel::{KernelError, ProxyMaps};
use tokio::{net::TcpListener, time::sleep};

/// Interval at which the pins are looked for: `fairmesh kernel attach` and `detach` come and go while the proxy runs.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The maps shared with the eBPF programs, while these are attached.
#[derive(Debug, Default)]
pub(crate) struct RedirectedConnections {
    maps: RwLock<Option<ProxyMaps>>,
}

impl RedirectedConnections {
    /// Has connections redirected to this listener whenever programs are attached. Never completes.
    pub(crate) async fn follow(&self, pins: &Path, listener: &TcpListener) {
        let (mut registered, mut reported) = (None, String::new());
        loop {
            let found = fs::metadata(pins).ok().map(|folder| (folder.dev(), folder.ino()));
            if found != registered {
                self.set(None);
                registered = None;
                match found.map(|_| ProxyMaps::register(pins, listener)) {
                    Some(Ok(maps)) => {
                        tracing::info!(pins = %pins.display(), "connections are redirected here");
                        self.set(Some(maps));
                        registered = found;
                    }
                    // In the middle of an `attach` as well; then the next attempt succeeds.
                    Some(Err(error)) => report(&error, &mut reported),
                    None => {}
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The original destination of a connection from this address. `None` if it was not redirected.
    pub(crate) fn original_dst(&self, caller: SocketAddr) -> Option<SocketAddr> {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        Some(maps.as_ref()?.take(caller)?.address.into())
    }

    fn set(&self, maps: Option<ProxyMaps>) {
        *self.maps.write().unwrap_or_else(PoisonError::into_inner) = maps;
    }
}

/// Logs an error when it changes.
fn report(error: &KernelError, reported: &mut String) {
    let text = error.to_string();
    if text != *reported && !matches!(error, KernelError::NotAttached(_)) {
        tracing::warn!(error = text, "connections are not redirected here");
        *reported = text;
    }
}
