//! A proxy that is replaced while it has the kernel send requests.

use fairmesh_model::Protocol;
use tokio::io::AsyncReadExt as _;

use super::Attached;
use crate::{
    harness::{RawServer, Spec, World, beside_others, free_port, say, until},
    upgrade::Place,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_sends_for_the_successor_while_the_predecessor_drains() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("upgrade").await else { return };
    let world = World::start("").await;
    let _hello = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let slow = RawServer::start(&world, "shop/slow", "slow-1").await;
    let place = Place::new(&world);
    let more = format!(
        " --drain-deadline 60s --listen kernel:127.0.0.1:{}+bpffs={}",
        free_port(),
        attached.pins().display()
    );
    let mut first = place.proxy("first", &more);
    place.ready().await;
    attached.attach().await;
    let sends = async || {
        let before = attached.counter("sent-by-kernel").await;
        let said = attached.curl(&["http://hello.shop/"; 4]).await.ok();
        assert_eq!(said.matches("HTTP/1.1 200").count(), 4, "{said}");
        attached.counter("sent-by-kernel").await > before
    };
    until("the kernel sends for the first proxy", sends).await;

    // A request without a response keeps the first proxy.
    let mut waiting = say(&place.by_host, "GET / HTTP/1.1\r\nhost: slow.shop\r\n\r\n").await;
    let (listener, _registered) = slow.into_parts();
    let (_connection, _) = listener.accept().await.unwrap();
    let mut second = place.proxy("second", &more);
    until("the kernel sends for the second proxy", async || {
        let status = attached.kernel(&["status"]).await.ok();
        status.contains(&format!("process {}", second.pid().as_raw_nonzero())) && sends().await
    })
    .await;
    assert!(first.has_ended().is_none() && second.has_ended().is_none());
    let mut byte = [0];
    tokio::select! {
        read = waiting.read(&mut byte) => panic!("{read:?}"),
        () = std::future::ready(()) => {}
    }
}
