use std::{sync::Arc, time::Duration};

use fairmesh_wire::transport::Transport;

use super::{RemoteKey, RemoteKeyConfig};

/// One private key on several key servers, in order of preference: those of the own zone come first.
#[derive(Debug)]
pub struct RemoteKeys {
    keys: Vec<RemoteKey>,
}

impl RemoteKeys {
    /// Connects to all key servers in the background in the current runtime. `None` without a key server.
    pub fn connect(servers: Vec<RemoteKeyConfig>, transport: &Transport) -> Option<Arc<Self>> {
        let keys: Vec<_> = servers.into_iter().map(|server| RemoteKey::connect(server, transport)).collect();
        (!keys.is_empty()).then(|| Arc::new(Self { keys }))
    }

    /// All keys, in order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &RemoteKey> {
        self.keys.iter()
    }

    /// Time limit for a signature by one key server: the longest of all.
    pub fn deadline(&self) -> Duration {
        self.iter().map(RemoteKey::deadline).max().unwrap_or_default()
    }

    /// Whether a key server signs.
    pub fn is_up(&self) -> bool {
        self.iter().any(|key| key.problem().is_none())
    }

    /// The keys in the order in which they are tried. A key server with a problem is left out until a probe succeeds;
    /// with `tries_failing` it is tried after the others.
    pub(super) fn in_order(&self, tries_failing: bool) -> impl Iterator<Item = &RemoteKey> {
        let (failing, signing): (Vec<_>, Vec<_>) = self.iter().partition(|key| key.problem().is_some());
        signing.into_iter().chain(failing.into_iter().filter(move |_| tries_failing))
    }
}
