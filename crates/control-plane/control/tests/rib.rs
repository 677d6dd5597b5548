//! Tests of writing and reading the routing information base over sockets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use fairmesh_model::Protocol;
use fairmesh_wire::v1;
use support::{
    TestControl, at_revision, config, delete, number, policy, put, read_all, service, service_key,
};
use tokio::time::timeout;
use tonic::Code;

async fn write(
    connection: &fairmesh_wire::handshake::Connection,
    ops: Vec<v1::Op>,
) -> Result<u64, tonic::Status> {
    let response = connection.rib().write(v1::WriteRequest { ops }).await?;
    Ok(number(&response.into_inner().revision))
}

#[tokio::test]
async fn stale_write_is_refused_with_both_revisions() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let key = service_key("shop/cart");
    assert_eq!(write(&connection, vec![put(&key, service(Protocol::Http1))]).await.unwrap(), 1);
    assert_eq!(write(&connection, vec![put(&key, service(Protocol::Http2))]).await.unwrap(), 2);

    let stale =
        write(&connection, vec![at_revision(put(&key, service(Protocol::Grpc)), 1)]).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    let text = stale.message();
    assert!(text.contains(&key) && text.contains("revision 1") && text.contains("revision 2"), "{text}");
    assert_eq!(
        write(&connection, vec![at_revision(put(&key, service(Protocol::Grpc)), 2)]).await.unwrap(),
        3
    );
    control.stop().await;
}

#[tokio::test]
async fn batch_with_invalid_record_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let good = || put(service_key("shop/cart"), service(Protocol::Http1));
    let wrong = [
        put("/t/shop/services/web", b"\xff\xff\xff".to_vec()),
        put("/t/shop/nonsense/web", Vec::new()),
        put("/t/shop/services/web", policy(1)),
        delete("no key"),
    ];
    for op in wrong {
        let key = op.key.clone();
        let refused = write(&connection, vec![good(), op]).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{key}: {refused}");
        assert!(refused.message().contains("ops[1]"), "{refused}");
    }
    assert!(read_all(&connection).await.entries.is_empty());
    control.stop().await;
}

#[tokio::test]
async fn control_plane_clients_read_their_own_writes() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    for i in 0..50 {
        let revision =
            write(&connection, vec![put(service_key(&format!("shop/s{i}")), service(Protocol::Grpc))]);
        let revision = revision.await.unwrap();
        let read = read_all(&connection).await;
        assert_eq!((read.at.unwrap().numbers[&0], read.entries.len() as u64), (revision, revision));
    }
    control.stop().await;
}

#[tokio::test]
async fn records_survive_control_plane_restart() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let store = connection.hello.store;
    write(&connection, vec![put(service_key("shop/cart"), service(Protocol::Grpc))]).await.unwrap();
    write(&connection, vec![put(service_key("shop/web"), service(Protocol::Http1))]).await.unwrap();
    let before = read_all(&connection).await;
    control.stop().await;

    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    assert!(store.is_some());
    assert_eq!(connection.hello.store, store);
    assert_eq!(read_all(&connection).await, before);
    assert_eq!(write(&connection, vec![delete(service_key("shop/web"))]).await.unwrap(), 3);
    control.stop().await;
}

#[tokio::test]
async fn open_watch_does_not_delay_control_plane_stop() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    let subscribe = v1::Subscribe { prefix: "/".into(), ..Default::default() };
    let request = v1::WatchRequest { kind: Some(v1::watch_request::Kind::Subscribe(subscribe)) };
    let mut watch = connection.watch().await.unwrap();
    watch.send(&request);
    timeout(support::BOUND, watch.next()).await.unwrap().unwrap();
    control.stop().await;
    let end = timeout(support::BOUND, watch.next()).await.unwrap().unwrap_err();
    assert!(end.message().contains("connect again"), "{end}");
}
