//! Event loops that serve connections, a thread each (thread-per-core).
//!
//! A connection stays on the loop that it was given to, with its calls and the connections to servers that they go over: nothing
//! of a request crosses threads. Within one loop tasks run in the order in which they were woken, so that what several
//! requests have to say over one HTTP/2 connection goes out in one write; a runtime with several threads runs first whoever was
//! woken last, and each would be written by itself. What is given up is work stealing: connections are few long-lived ones, and
//! each new one goes where the fewest are.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use fairmesh_client::proxy_support::set_event_loop;
use tokio::{
    net::TcpStream,
    runtime::{self, Handle, RuntimeFlavor},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// The loops; they end when the last clone is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cores {
    cores: Arc<[Core]>,
    _running: Option<Arc<DropGuard>>,
}

#[derive(Debug)]
struct Core {
    runtime: runtime::Handle,
    connections: Arc<AtomicUsize>,
}

/// Counts a connection on its loop, with what becomes of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Cores {
    /// Starts so many; with none, or one that a runtime of a single thread already is, connections are served where they are accepted.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        if count == 1 && Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Ok(Self::default());
        }
        let stop = CancellationToken::new();
        let cores = (0..count).map(|number| Core::start(number, stop.clone())).collect::<io::Result<_>>()?;
        Ok(Self { cores, _running: Some(Arc::new(stop.drop_guard())) })
    }

    /// Serves a connection, which counts on its loop for as long as what it is served with is kept.
    pub(crate) fn spawn<F>(
        &self,
        connections: &TaskTracker,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream, Option<Counted>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(core) = self.cores.iter().min_by_key(|core| core.connections.load(Relaxed)) else {
            connections.spawn(serve(stream, None));
            return;
        };
        core.connections.fetch_add(1, Relaxed);
        let counted = Counted(Arc::clone(&core.connections));
        // Fails only on a socket that is broken already.
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

impl Drop for Counted {
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

    /// Serves so many connections at a time and says on which threads.
    async fn served(cores: usize, count: usize) -> HashMap<String, usize> {
        let cores = Cores::start(cores).unwrap();
        let tracker = TaskTracker::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (told, mut names) = mpsc::unbounded_channel();
        let mut programs = Vec::new();
        for _ in 0..count {
            let (program, accepted) =
                tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
            programs.push(program.unwrap());
            let told = told.clone();
            cores.spawn(&tracker, accepted.unwrap().0, async move |mut stream, _counted| {
                told.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
                let byte = stream.read_u8().await.unwrap();
                stream.write_u8(byte).await.unwrap();
            });
        }
        for program in &mut programs {
            program.write_u8(7).await.unwrap();
            assert_eq!(program.read_u8().await.unwrap(), 7);
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
    async fn connections_are_spread_over_the_loops_and_stay_where_they_are() {
        let on = served(3, 6).await;
        assert_eq!(on, (0..3).map(|number| (format!("core-{number}"), 2)).collect());
        let own = thread::current().name().unwrap_or_default().to_owned();
        assert_eq!(served(0, 2).await, HashMap::from([(own.clone(), 2)]));
        assert_eq!(served(1, 2).await, HashMap::from([(own, 2)]), "this runtime is a single loop already");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_loop_beside_several_threads_has_one_of_its_own() {
        assert_eq!(served(1, 2).await, HashMap::from([("core-0".to_owned(), 2)]));
    }
}
