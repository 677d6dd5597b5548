//! A RIB stub that responds to handshakes and to few calls.

use std::{
    future::{pending, poll_fn},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{Identity, Location, Region, StoreId};
use fairmesh_wire::{
    grpc_stubs,
    handshake::{Hello, negotiate},
    identity_of, software_of,
    transport::{Address, Services, Socket, Transport, serve},
    v1::{rib_server::Rib, *},
    watch::{WatchServer, frame},
};
use tokio::sync::{Semaphore, oneshot};
use tonic::{Request, Response, Status, service::Routes};

/// The stub's hello.
pub(crate) fn hello(version: u32) -> Hello {
    Hello {
        version,
        store: Some(StoreId(7)),
        location: Some(Location::in_region(Region::new("eu").unwrap())),
        software: "stub".into(),
    }
}

#[derive(Clone)]
pub(crate) struct Stub {
    /// The version in every response; `None` to negotiate.
    pub(crate) version: Option<u32>,
    /// Permits for reads to respond.
    pub(crate) reads: Arc<Semaphore>,
    /// Gets a permit whenever a read arrives.
    pub(crate) reading: Arc<Semaphore>,
}

impl Default for Stub {
    fn default() -> Self {
        Self { version: None, reads: Arc::new(Semaphore::new(0)), reading: Arc::new(Semaphore::new(0)) }
    }
}

#[tonic::async_trait]
impl Rib for Stub {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let version = match self.version {
            Some(version) => version,
            None => negotiate(request.get_ref())?,
        };
        Ok(Response::new(hello(version).into()))
    }

    async fn write(&self, _: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    /// Waits until the test releases the read.
    async fn read(&self, _: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        self.reading.add_permits(1);
        self.reads.acquire().await.unwrap().forget();
        Ok(Response::new(ReadResponse::default()))
    }

    /// Returns the caller's identity as the only watcher.
    async fn watchers(
        &self,
        request: Request<WatchersRequest>,
    ) -> Result<Response<WatchersResponse>, Status> {
        let caller = Watcher {
            software: software_of(&request).into(),
            identity: identity_of(&request).to_string(),
            applied: None,
            ..Watcher::default()
        };
        Ok(Response::new(WatchersResponse { watchers: vec![caller], ..WatchersResponse::default() }))
    }
}

/// Accepts the hello, reports the watcher, and stays open and idle.
async fn watch(stub: Stub, socket: Socket) {
    let (mut watched, greeting) = WatchServer::accept(socket, None).await.unwrap();
    watched.send_hello(hello(stub.version.unwrap_or_else(|| negotiate(&greeting).unwrap())));
    let refused = Refused { prefix: greeting.software, reason: watched.identity().to_string() };
    watched.send(frame(&WatchResponse { kind: Some(watch_response::Kind::Refused(refused)), more: false }));
    poll_fn(|cx| watched.poll_flush(cx)).await.unwrap();
    pending().await
}

/// A stub that is being served.
pub(crate) struct Served {
    pub(crate) address: Address,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

pub(crate) async fn serve_stub(stub: Stub, address: &Address, drain: Duration) -> Served {
    let listener = Transport::default().bind(address).await.unwrap();
    let address = listener.address().unwrap();
    let (stop, stopped) = oneshot::channel();
    let watched = stub.clone();
    let services = Services::new(Routes::new(grpc_stubs::rib_server(stub)), move |socket| {
        watch(watched.clone(), socket)
    });
    let shutdown = async {
        let _ = stopped.await;
    };
    let task = tokio::spawn(serve(services, listener, shutdown, drain));
    Served { address, stop, task }
}

impl Served {
    /// Starts a graceful stop.
    pub(crate) fn stop(self) -> tokio::task::JoinHandle<Result<(), tonic::transport::Error>> {
        self.stop.send(()).unwrap();
        self.task
    }
}

pub(crate) fn free_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

pub(crate) fn own_uid() -> Identity {
    use std::os::unix::fs::MetadataExt;
    Identity::Local { uid: std::fs::metadata("/proc/self").unwrap().uid() }
}

/// Waits for a future, and fails the test if it does not complete in time.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("not complete within 20 s")
}
