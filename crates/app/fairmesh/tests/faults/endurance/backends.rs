use fairmesh_model::Protocol;

use crate::harness::{Echo, World};

/// Servers of three services; one after the other is replaced by a new server at another address.
pub(super) struct Backends {
    running: Vec<(usize, Echo)>,
    replaced: usize,
}

const SERVICES: [(&str, Protocol); 3] =
    [("shop/one", Protocol::Http1), ("shop/two", Protocol::Http2), ("shop/rpc", Protocol::Grpc)];
/// Servers per service.
const EACH: usize = 3;

impl Backends {
    pub(super) async fn start(world: &World) -> Self {
        let mut backends = Self { running: Vec::new(), replaced: 0 };
        for n in 0..EACH * SERVICES.len() {
            backends.start_one(world, n).await;
        }
        backends
    }

    async fn start_one(&mut self, world: &World, n: usize) {
        let (service, protocol) = SERVICES[n % SERVICES.len()];
        self.running.push((n, Echo::start(world, service, &format!("server-{n}"), protocol).await));
    }

    /// Starts another server of the next service, then stops that service's oldest server.
    pub(super) async fn roll_one(&mut self, world: &World) {
        let (n, oldest) = self.running.remove(0);
        self.start_one(world, n + EACH * SERVICES.len()).await;
        oldest.stop().await;
        self.replaced += 1;
    }

    pub(super) fn replaced(&self) -> usize {
        self.replaced
    }
}
