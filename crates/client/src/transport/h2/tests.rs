use std::time::Duration;

use bytes::BytesMut;
use http::{
    Method,
    uri::{Authority, PathAndQuery},
};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::timeout,
};

use super::*;
use crate::{Body, transport::Head};
use fairmesh_http::h2;

/// Settings, of which the only one is how many calls are allowed at a time.
fn allows(calls: u32) -> Vec<u8> {
    [&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3][..], &calls.to_be_bytes()].concat()
}

fn request(body: Outgoing) -> Slot {
    let head = Head {
        method: Method::POST,
        authority: Authority::from_static("one.shop"),
        path: PathAndQuery::from_static("/").into(),
        headers: http::HeaderMap::new(),
        grpc: false,
    };
    Some(Request { head, body, left: Some(Duration::from_secs(1)) })
}

/// A connection of this pool, whose server has said something, and the server's end.
async fn connected(pool: &Pool, says: &[u8]) -> (Arc<Shared>, DuplexStream) {
    let (near, mut far) = duplex(1 << 16);
    let shared = connection::start(near, (), Arc::clone(&pool.freed));
    pool.change(|list| list.push(Arc::clone(&shared)));
    settle(&mut far, says).await;
    shared.refresh_limit();
    (shared, far)
}

/// Says this, and hears that it was taken.
async fn settle(server: &mut DuplexStream, says: &[u8]) {
    server.write_all(says).await.unwrap();
    let (agreed, mut heard) = ([0, 0, 0, 4, 1, 0, 0, 0, 0], BytesMut::new());
    while !heard.ends_with(&agreed) {
        server.read_buf(&mut heard).await.unwrap();
    }
}

fn begin(shared: &Arc<Shared>) -> (h2::Call<Outgoing>, Place) {
    match shared.begin(&mut request(Outgoing::empty())) {
        Ok(Begun::Call(call, place)) => (call, place),
        _ => panic!("there is no place"),
    }
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), what).await.expect("it hangs")
}

#[tokio::test(start_paused = true)]
async fn each_who_waits_is_told_of_a_place_however_many_are_freed_at_once() {
    let pool = Arc::new(Pool::default());
    let (shared, _server) = connected(&pool, &allows(2)).await;
    let calls = [begin(&shared), begin(&shared)];
    assert!(!pool.has_room());
    let _somebody_connects = Arc::clone(&pool.opening).lock_owned().await;
    let wait = || {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move { pool.opened_or_freed().await.is_none() })
    };
    let waiting = [wait(), wait()];
    tokio::task::yield_now().await;
    drop(calls);
    for waiting in waiting {
        assert!(in_time(waiting).await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_learn_that_more_are_allowed_when_one_is_told_of_a_place() {
    let pool = Arc::new(Pool::default());
    let (shared, mut server) = connected(&pool, &allows(2)).await;
    let [first, _second] = [begin(&shared), begin(&shared)];
    let _somebody_connects = Arc::clone(&pool.opening).lock_owned().await;
    let wait = || {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move { pool.opened_or_freed().await.is_none() })
    };
    let waiting = [wait(), wait(), wait()];
    settle(&mut server, &allows(4)).await;
    drop(first);
    for waiting in waiting {
        assert!(in_time(waiting).await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_stays_at_hand_until_there_is_a_place_for_it() {
    let pool = Pool::default();
    let (shared, server) = connected(&pool, &allows(1)).await;
    let _first = begin(&shared);
    let mut slot = request(Outgoing::empty());
    assert!(matches!(shared.begin(&mut slot), Ok(Begun::Taken)) && slot.is_some());
    drop(server);
    in_time(async {
        while !matches!(shared.begin(&mut slot), Ok(Begun::None)) {
            assert!(slot.is_some());
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(slot.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_be_the_body_of_another_call_on_its_connection() {
    let pool = Pool::default();
    let (shared, mut server) = connected(&pool, &allows(2)).await;
    let mut slot = request(Outgoing::empty());
    let asking = shared.call(&mut slot);
    // `:status: 200`, of which more is to come.
    server.write_all(&[&[0, 0, 1, 1, 4, 0, 0, 0, 1][..], &[0x88]].concat()).await.unwrap();
    let answer = in_time(asking).await.unwrap().expect("there is a place");
    let body = Body::answer(crate::transport::Reply::H2(answer), None).into_body();
    let mut slot = request(Outgoing::take(body).await.unwrap());
    let asking = shared.call(&mut slot);
    server.write_all(&[&[0, 0, 3, 0, 1, 0, 0, 0, 1][..], b"tea"].concat()).await.unwrap();
    server.write_all(&[&[0, 0, 1, 1, 5, 0, 0, 0, 3][..], &[0x88]].concat()).await.unwrap();
    let second = in_time(asking).await.unwrap().expect("there is a place");
    assert!(in_time(second.into_body().collect()).await.is_ok_and(|body| body.to_bytes().is_empty()));
}
