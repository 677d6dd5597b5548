use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use tokio::net::TcpStream;

/// Callback for each new plaintext HTTP/1.1 connection.
type Hook = Box<dyn Fn(&TcpStream) + Send + Sync>;

/// A hook that all endpoint pools of a mesh share.
#[derive(Clone, Default)]
pub struct ConnectionHook(Arc<OnceLock<Hook>>);

impl ConnectionHook {
    /// Sets the hook. Only the first call has an effect.
    pub fn set(&self, hook: impl Fn(&TcpStream) + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(hook));
    }

    pub(super) fn connected(&self, stream: &TcpStream) {
        if let Some(hook) = self.0.get() {
            hook(stream);
        }
    }
}

impl fmt::Debug for ConnectionHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionHook").field(&self.0.get().is_some()).finish()
    }
}
