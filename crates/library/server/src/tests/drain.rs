use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_test_support::eventually;
use fairmesh_wire::{
    transport::{Address, Transport, connect_channel_lazy},
    v1::{CampaignRequest, checker_client::CheckerClient, checker_server::CheckerServer},
};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tower::service_fn;

use super::{
    calls::App,
    control::{BOUND, FakeRegistry, RegistryRequest, send, until},
};
use crate::{Drained, EndpointState, MeshServer, Outstanding, RegistrationState, serve_http};

/// Serves calls that finish when `finish` is notified.
async fn serving(control: &Address, finish: Arc<Notify>) -> (MeshServer, SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = MeshServer::builder("shop/cart")
        .address(address)
        .drain_deadline(Duration::from_secs(10))
        .agent(control.clone())
        .start()
        .await
        .unwrap();
    let service = service_fn(move |_: Request<_>| {
        let finish = Arc::clone(&finish);
        async move {
            finish.notified().await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
        }
    });
    let serving = server.clone();
    let task = tokio::spawn(async move { serve_http(listener, service, &serving).await.unwrap() });
    (server, address, task)
}

#[tokio::test]
async fn stopping_server_reports_counts_of_its_last_calls() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let finish = Arc::new(Notify::new());
    let (server, address, task) = serving(&control.address, Arc::clone(&finish)).await;
    for _ in 0..3 {
        finish.notify_one();
        send(address, Request::get("/")).await.unwrap();
    }
    assert_eq!(timeout(BOUND, server.shutdown()).await.unwrap(), Drained::CallersMoved);
    timeout(BOUND, task).await.unwrap().unwrap();
    assert_eq!(control.registry.counted.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn drain_moves_callers_finishes_calls_then_deregisters() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    control.registry.callers_moved.send_replace(false);
    let finish = Arc::new(Notify::new());
    let (server, address, task) = serving(&control.address, Arc::clone(&finish)).await;
    let call = tokio::spawn(send(address, Request::get("/")));
    eventually("one call is in flight", || server.outstanding().calls == 1).await;

    let (terminate, terminated) = oneshot::channel::<()>();
    server.drain_on(async { drop(terminated.await) });
    terminate.send(()).unwrap();
    control.registry.until(|requests| requests.contains(&RegistryRequest::Drain)).await;
    // A caller that has not moved yet is still served.
    let late = tokio::spawn(send(address, Request::get("/")));
    until(|| server.outstanding().calls == 2).await;
    control.registry.callers_moved.send_replace(true);
    assert!(!control.registry.requests().contains(&RegistryRequest::Deregister));
    finish.notify_waiters();
    for call in [call, late] {
        let response = timeout(BOUND, call).await.unwrap().unwrap().unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
    }
    assert_eq!(timeout(BOUND, server.shutdown()).await.unwrap(), Drained::CallersMoved);
    timeout(BOUND, task).await.unwrap().unwrap();
    assert_eq!(control.registry.requests().last(), Some(&RegistryRequest::Deregister));
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
}

#[tokio::test]
async fn unreachable_control_plane_does_not_delay_stop() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let (server, _, task) = serving(&control.address, Arc::new(Notify::new())).await;
    control.stop().await;
    let drained = timeout(BOUND, server.shutdown()).await.unwrap();
    assert!(matches!(drained, Drained::Unreported(_)), "{drained:?}");
    let state = server.registration_state().borrow().clone();
    assert_ne!(state, RegistrationState::Registered(EndpointState::Draining), "the registry did not say so");
    timeout(BOUND, task).await.unwrap().unwrap();
}

#[tokio::test]
async fn pending_registry_connection_does_not_count_as_request() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    // A registry that accepts connections but never responds on them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = MeshServer::builder("shop/cart")
        .address(([127, 0, 0, 1], 7).into())
        .drain_deadline(Duration::from_secs(10))
        .agent(Address::Tcp(silent.local_addr().unwrap().to_string()))
        .agent(control.address.clone())
        .start()
        .await
        .unwrap();
    let registered = |one: &RegistryRequest| matches!(one, RegistryRequest::Register { .. });
    control.registry.until(|requests| requests.iter().any(registered)).await;
    control.registry.refuses_drains.store(true, Ordering::Relaxed);
    let drained = timeout(BOUND, server.shutdown()).await.unwrap();
    assert!(matches!(drained, Drained::Unreported(_)), "{drained:?}");
    // The second connection takes longer than a registry that was never reached is retried.
    let asked = control.registry.requests().iter().filter(|one| **one == RegistryRequest::Drain).count();
    assert_eq!(asked, 1, "{:?}", control.registry.requests());
}

#[tokio::test]
async fn server_drain_is_retried_when_registry_connection_is_lost() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    control.registry.callers_moved.send_replace(false);
    let (server, _, _task) = serving(&control.address, Arc::new(Notify::new())).await;
    let stopping = server.clone();
    let drained = tokio::spawn(async move { stopping.shutdown().await });
    control.registry.until(|requests| requests.contains(&RegistryRequest::Drain)).await;
    // Longer than a registry that was never reached is retried: a fifth of six tenths of the drain deadline.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let address = control.address.clone();
    let registry = control.stop().await;
    registry.callers_moved.send_replace(true);
    let _control = registry.serve(Some(&address)).await;
    assert_eq!(timeout(BOUND, drained).await.unwrap().unwrap(), Drained::CallersMoved);
    let state = server.registration_state().borrow().clone();
    assert_eq!(state, RegistrationState::Registered(EndpointState::Draining));
}

#[tokio::test]
async fn call_unfinished_at_drain_deadline_is_reported() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = MeshServer::builder("shop/cart").address(address).agent(control.address.clone());
    let server = server.drain_deadline(Duration::from_secs(1)).start().await.unwrap();
    let service =
        service_fn(|_: Request<_>| std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>());
    let serving = server.clone();
    let task = tokio::spawn(async move { serve_http(listener, service, &serving).await.unwrap() });
    let call = tokio::spawn(send(address, Request::get("/")));
    eventually("one call is in flight", || server.outstanding().calls == 1).await;
    let drained = timeout(BOUND, server.shutdown()).await.unwrap();
    assert_eq!(drained, Drained::Unfinished(Outstanding { calls: 1, streams: 0 }));
    assert!(timeout(BOUND, call).await.unwrap().unwrap().is_err());
    timeout(BOUND, task).await.unwrap().unwrap();
}

#[tokio::test]
async fn endless_stream_delays_stop_only_until_drain_deadline() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let incoming = tonic::transport::server::TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = incoming.local_addr().unwrap();
    let server = MeshServer::builder("shop/cart").address(address).agent(control.address.clone());
    let server = server.drain_deadline(Duration::from_secs(1)).start().await.unwrap();
    let serving = tonic::transport::Server::builder()
        .layer(server.layer())
        .add_service(CheckerServer::new(App::default()))
        .serve_with_incoming_shutdown(incoming, server.draining());
    let gone = server.gone();
    let program = tokio::spawn(async move {
        tokio::select! {
            ended = serving => ended.map(|()| "all calls had ended"),
            () = gone => Ok("the deadline had passed"),
        }
    });
    let channel = connect_channel_lazy(&Transport::default(), &address.to_string().parse().unwrap());
    let mut client = CheckerClient::new(channel);
    let mut call = tonic::Request::new(CampaignRequest::default());
    call.metadata_mut().insert("for-ever", "true".parse().unwrap());
    let mut open = client.campaign(call).await.unwrap().into_inner();
    open.message().await.unwrap();
    assert!(!program.is_finished(), "nothing has asked for a drain");
    server.shutdown().await;
    let ended = timeout(BOUND, program).await.unwrap().unwrap().unwrap();
    assert_eq!(ended, "the deadline had passed");
}
