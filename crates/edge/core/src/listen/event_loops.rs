//! Event loops that serve connections, one thread each (thread-per-core).
//!
//! A connection stays on its loop, together with its calls and their connections to servers, so no request
//! crosses threads. Tasks of one loop run in the order in which they were woken, so several requests share
//! one write to an HTTP/2 connection; a multi-threaded runtime runs the task woken last first, and would
//! write each request separately. The price is that there is no work stealing: connections are few and
//! long-lived, and each new one is assigned to the loop with the fewest connections.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use fairmesh_calls::forwarding::set_event_loop;
use tokio::{
    net::TcpStream,
    runtime::{self, Handle, RuntimeFlavor},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// The event loops. They stop when the last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct Cores {
    cores: Arc<[Core]>,
    _running: Option<Arc<DropGuard>>,
}

#[derive(Debug)]
struct Core {
    runtime: runtime::Handle,
    connections: Arc<AtomicUsize>,
}

/// Counts a connection on its loop until it is dropped.
#[derive(Debug)]
pub(crate) struct CoreGuard(Arc<AtomicUsize>);

impl Cores {
    /// Starts `count` loops. With `count` 0, or 1 on a single-threaded runtime, connections are served on the
    /// thread that accepts them.
    pub fn start(count: usize) -> io::Result<Self> {
        if count == 1 && Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Ok(Self::default());
        }
        let stop = CancellationToken::new();
        let cores = (0..count).map(|number| Core::start(number, stop.clone())).collect::<io::Result<_>>()?;
        Ok(Self { cores, _running: Some(Arc::new(stop.drop_guard())) })
    }

    /// Serves a connection on the loop with the fewest connections. The connection counts there until the
    /// guard is dropped.
    pub(crate) fn spawn<F>(
        &self,
        connections: &TaskTracker,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream, Option<CoreGuard>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(core) = self.cores.iter().min_by_key(|core| core.connections.load(Relaxed)) else {
            connections.spawn(serve(stream, None));
            return;
        };
        core.connections.fetch_add(1, Relaxed);
        let counted = CoreGuard(Arc::clone(&core.connections));
        // Fails only on a broken socket.
        let Ok(stream) = stream.into_std() else { return };
        let served = async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(stream, Some(counted)).await;
            }
        };
        connections.spawn_on(served, &core.runtime);
    }
}

impl Core {
    fn start(number: usize, stop: CancellationToken) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().name(format!("core-{number}")).spawn(move || {
            set_event_loop(number);
            runtime.block_on(stop.cancelled());
        })?;
        Ok(Self { runtime: handle, connections: Arc::default() })
    }
}

impl Drop for CoreGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        sync::mpsc,
    };

    use super::*;

    /// Serves `count` connections at a time. Returns how many connections each thread served.
    async fn served(cores: usize, count: usize) -> HashMap<String, usize> {
        let cores = Cores::start(cores).unwrap();
        let tracker = TaskTracker::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (sender, mut names) = mpsc::unbounded_channel();
        let mut clients = Vec::new();
        for _ in 0..count {
            let (client, accepted) =
                tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
            clients.push(client.unwrap());
            let sender = sender.clone();
            cores.spawn(&tracker, accepted.unwrap().0, async move |mut stream, _counted| {
                sender.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
                let byte = stream.read_u8().await.unwrap();
                stream.write_u8(byte).await.unwrap();
            });
        }
        for client in &mut clients {
            client.write_u8(7).await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), 7);
        }
        tracker.close();
        tracker.wait().await;
        assert!(cores.cores.iter().all(|core| core.connections.load(Relaxed) == 0));
        let mut on = HashMap::new();
        for _ in 0..count {
            *on.entry(names.recv().await.unwrap()).or_default() += 1;
        }
        on
    }

    #[tokio::test]
    async fn connections_are_spread_over_event_loops() {
        let on = served(3, 6).await;
        assert_eq!(on, (0..3).map(|number| (format!("core-{number}"), 2)).collect());
        let own = thread::current().name().unwrap_or_default().to_owned();
        assert_eq!(served(0, 2).await, HashMap::from([(own.clone(), 2)]));
        assert_eq!(served(1, 2).await, HashMap::from([(own, 2)]), "this runtime is a single loop already");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn single_event_loop_on_multi_threaded_runtime_has_own_thread() {
        assert_eq!(served(1, 2).await, HashMap::from([("core-0".to_owned(), 2)]));
    }
}
