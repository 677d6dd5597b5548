//! Accepts the connections of listeners of all kinds.

use std::{net::SocketAddr, path::Path, pin::pin, sync::Arc};

use fairmesh_edge::{
    counter::increment,
    forward::connection_info::ConnectionInfo,
    listen::{socket_options, transparent_proxying::original_dst},
    server::{AcceptedConnection, ConnectionServer},
};
use futures_util::{
    FutureExt as _, StreamExt as _,
    stream::{FuturesUnordered, unfold},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::{
    kernel::{
        attached_maps::RedirectTarget,
        attachment::Attachment,
        caller::KernelCaller,
        caller_stream::CallerStream,
        container_listeners::{ContainerListener, ContainerListeners},
        metrics::KernelMetrics,
        redirected_connection::RedirectedConnection,
    },
    listeners::listener_config::{ListenerConfig, ListenerKind},
    passthrough::{
        http2_passthrough::CapturedConnection,
        metrics::CaptureMetrics,
        original_dst::Destination,
        traffic_classification::{CapturedTraffic, Passthrough},
    },
};

/// Accepts connections that clients opened to services, and connections that nftables or eBPF programs
/// redirected.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    pub(crate) server: Arc<ConnectionServer>,
    passthrough: Arc<Passthrough>,
    redirected: Arc<Attachment>,
}

impl Acceptor {
    pub(crate) fn new(
        server: Arc<ConnectionServer>,
        capture: Arc<CaptureMetrics>,
        kernel: Arc<KernelMetrics>,
    ) -> Self {
        let passthrough = Passthrough::new(Arc::clone(&server), capture);
        let redirected = Attachment::new(kernel);
        Self { server, passthrough: Arc::new(passthrough), redirected: Arc::new(redirected) }
    }

    /// Accepts connections once `known` completes, until the proxy stops.
    pub(crate) async fn accept(
        self,
        listener: TcpListener,
        listen: Arc<ListenerConfig>,
        known: impl Future<Output = ()>,
        connections: TaskTracker,
    ) {
        tokio::select! {
            () = known => {}
            () = self.server.shutdown.started().cancelled() => return,
        }
        if let Some(options) = listen.serve_options() {
            let (server, options) = (Arc::clone(&self.server), Arc::new(options));
            let serve = move |accepted| Arc::clone(&server).serve_connection(accepted, Arc::clone(&options));
            return self.server.accept(&listener, &connections, serve).await;
        }
        let own = self.clone();
        let kind = Arc::clone(&listen);
        let serve = move |accepted| {
            let (own, listen) = (own.clone(), Arc::clone(&kind));
            async move { own.serve_redirected(accepted, &listen).boxed().await }
        };
        let accepted = self.server.accept(&listener, &connections, serve.clone());
        let ListenerKind::Kernel { only_services, pins } = &listen.kind else { return accepted.await };
        let containers = ContainerListeners::open();
        let socket = containers.as_ref().map(|containers| containers.socket);
        let to = RedirectTarget { listener: &listener, only_services: *only_services, containers: socket };
        let in_containers = self.accept_in_containers(containers, pins, &connections, serve);
        let all = async {
            tokio::join!(
                async {
                    accepted.await;
                    self.redirected.stop()
                },
                in_containers
            );
        };
        tokio::select! {
            // Polled first: connections waiting here were redirected, which only the maps show.
            biased;
            () = self.redirected.follow(pins, &to, &self.server.forwarder) => {}
            () = all => {}
        }
    }

    /// Accepts connections in containers whose listeners are passed to this proxy, until the proxy stops, and passes the
    /// listeners to its successor.
    async fn accept_in_containers<S, F>(
        &self,
        listeners: Option<ContainerListeners>,
        pins: &Path,
        connections: &TaskTracker,
        serve: S,
    ) where
        S: Fn(AcceptedConnection) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(listeners) = listeners else { return };
        let offers = unfold(listeners, |listeners| async move {
            let offer = listeners.next().await;
            Some((offer, listeners))
        });
        let mut offers = pin!(offers);
        let mut accepting = FuturesUnordered::new();
        let stopped = self.server.shutdown.started();
        loop {
            tokio::select! {
                () = stopped.cancelled() => break,
                Some(offer) = offers.next() => {
                    let Some(container) = self.redirected.add_listener(offer).await else { continue };
                    accepting.push(self.accept_in_container(pins, container, connections, serve.clone()));
                }
                Some(()) = accepting.next() => {}
            }
        }
        while accepting.next().await.is_some() {}
    }

    async fn accept_in_container<S, F>(
        &self,
        pins: &Path,
        container: ContainerListener,
        connections: &TaskTracker,
        serve: S,
    ) where
        S: Fn(AcceptedConnection) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::select! {
            () = self.server.accept(&container.listener, connections, serve) => {}
            () = container.wait_closed() => {}
        }
        container.closed.cancel();
        if self.server.shutdown.started().is_cancelled() {
            Attachment::pass_on(pins, &container).await;
        }
    }

    /// Waits until the calls that the kernel sent for this proxy are counted, for a few seconds at most. Call this
    /// when no connection is left.
    pub(crate) async fn wait_recorded(&self) {
        self.redirected.wait_recorded().await;
    }

    /// Serves HTTP to services, and passes other traffic through to its original destination.
    async fn serve_redirected(&self, accepted: AcceptedConnection, listen: &ListenerConfig) {
        let AcceptedConnection { stream, caller, permit } = accepted;
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        let Some((destination, kernel)) = self.destination(&stream, caller, listen) else {
            increment(&self.passthrough.metrics.loops);
            tracing::debug!(%caller, "refused a connection that was not redirected");
            return socket_options::reset(stream);
        };
        match self.passthrough.detect(&stream, caller, destination).await {
            CapturedTraffic::Service => {
                let client_info =
                    ConnectionInfo::new(caller, None, Arc::clone(&permit)).allow_connect(listen.connect);
                socket_options::set_user_timeout(&stream, self.server.limits.idle_timeout);
                let captured = CapturedConnection::new(destination, Arc::clone(&self.passthrough));
                match kernel {
                    // The connection may be silent here because the kernel sends its requests.
                    Some(caller) => {
                        let origin = RedirectedConnection::new(captured, caller);
                        self.server.serve_http(CallerStream::new(stream), client_info, origin).await;
                    }
                    None => {
                        let served = self.server.serve_http(stream, client_info, captured);
                        self.server.until_displaced(permit, caller, served).await;
                    }
                }
            }
            CapturedTraffic::Other(server) => {
                // Closes the kernel state's own descriptor of the connection.
                drop(kernel);
                self.passthrough.pass_through(stream, destination.address, server).await;
            }
            CapturedTraffic::Refused => {
                drop(kernel);
                socket_options::reset(stream);
            }
            CapturedTraffic::Ended => {}
        }
    }

    /// The original destination of a connection, and its caller if eBPF programs redirected it. `None` if the
    /// connection was not redirected.
    fn destination(
        &self,
        stream: &TcpStream,
        caller: SocketAddr,
        listen: &ListenerConfig,
    ) -> Option<(Destination, Option<KernelCaller>)> {
        match listen.kind {
            ListenerKind::Captured { only_services, transparent } => {
                let address = original_dst(stream, transparent.then_some(listen.address))?;
                Some((Destination { address, only_services }, None))
            }
            ListenerKind::Kernel { only_services, .. } => {
                let (address, kernel) = self.redirected.original_dst(stream, caller)?;
                let only_services = only_services || kernel.only_services;
                Some((Destination { address, only_services }, Some(kernel)))
            }
            ListenerKind::Http { .. } | ListenerKind::Tcp { .. } => None,
        }
    }
}
