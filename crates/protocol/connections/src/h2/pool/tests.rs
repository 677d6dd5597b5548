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
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{Head, Request, RequestBody, h2::shared_connection::StreamPermit};
use fairmesh_http::h2;

/// Encodes SETTINGS with a limit of concurrent streams.
fn allows(calls: u32) -> Vec<u8> {
    [&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3][..], &calls.to_be_bytes()].concat()
}

fn request(body: RequestBody) -> PendingRequest {
    let head = Head {
        method: Method::POST,
        authority: Authority::from_static("one.shop"),
        path: PathAndQuery::from_static("/").into(),
        headers: http::HeaderMap::new(),
        grpc: false,
    };
    Some(Request { head, body, left: Some(Duration::from_secs(1)) })
}

/// Returns a connection of this pool whose server has sent these bytes, and the server's end.
async fn connected(pool: &Pool, sent: &[u8]) -> (Arc<SharedConnection>, DuplexStream) {
    let (near, mut far) = duplex(1 << 16);
    let shared = connection::start(near, (), Arc::clone(&pool.stream_freed));
    pool.change(|list| list.push(Arc::clone(&shared)));
    settle(&mut far, sent).await;
    shared.refresh_limit();
    (shared, far)
}

/// Sends SETTINGS, and reads until they are acknowledged.
async fn settle(server: &mut DuplexStream, settings: &[u8]) {
    server.write_all(settings).await.unwrap();
    let (ack, mut received) = ([0, 0, 0, 4, 1, 0, 0, 0, 0], BytesMut::new());
    while !received.ends_with(&ack) {
        server.read_buf(&mut received).await.unwrap();
    }
}

fn begin(shared: &Arc<SharedConnection>) -> (h2::Call<RequestBody>, StreamPermit) {
    match shared.begin(&mut request(RequestBody::empty())) {
        Ok(Begun::Call(call, stream)) => (call, stream),
        _ => panic!("there is no free stream"),
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), work).await.expect("it hangs")
}

#[tokio::test(start_paused = true)]
async fn freeing_several_streams_at_once_wakes_as_many_waiting_calls() {
    let pool = Arc::new(Pool::default());
    let (shared, _server) = connected(&pool, &allows(2)).await;
    let calls = [begin(&shared), begin(&shared)];
    assert!(!pool.has_capacity());
    let _another_connects = Arc::clone(&pool.opening).lock_owned().await;
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
async fn raised_http2_stream_limit_reaches_all_waiting_calls() {
    let pool = Arc::new(Pool::default());
    let (shared, mut server) = connected(&pool, &allows(2)).await;
    let [first, _second] = [begin(&shared), begin(&shared)];
    let _another_connects = Arc::clone(&pool.opening).lock_owned().await;
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
async fn request_without_free_http2_stream_stays_available_for_retry() {
    let pool = Pool::default();
    let (shared, server) = connected(&pool, &allows(1)).await;
    let _first = begin(&shared);
    let mut pending = request(RequestBody::empty());
    assert!(matches!(shared.begin(&mut pending), Ok(Begun::AtCapacity)) && pending.is_some());
    drop(server);
    in_time(async {
        while !matches!(shared.begin(&mut pending), Ok(Begun::Closing)) {
            assert!(pending.is_some());
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(pending.is_some());
}

#[tokio::test(start_paused = true)]
async fn response_body_may_be_request_body_of_another_call_on_same_connection() {
    let pool = Pool::default();
    let (shared, mut server) = connected(&pool, &allows(2)).await;
    let mut pending = request(RequestBody::empty());
    let calling = shared.call(&mut pending);
    // `:status: 200`, with a body.
    server.write_all(&[&[0, 0, 1, 1, 4, 0, 0, 0, 1][..], &[0x88]].concat()).await.unwrap();
    let response = in_time(calling).await.unwrap().expect("there is a free stream");
    let body = response.into_body();
    let mut pending = request(RequestBody::take(body).await.unwrap());
    let calling = shared.call(&mut pending);
    server.write_all(&[&[0, 0, 3, 0, 1, 0, 0, 0, 1][..], b"tea"].concat()).await.unwrap();
    server.write_all(&[&[0, 0, 1, 1, 5, 0, 0, 0, 3][..], &[0x88]].concat()).await.unwrap();
    let second = in_time(calling).await.unwrap().expect("there is a free stream");
    assert!(in_time(second.into_body().collect()).await.is_ok_and(|body| body.to_bytes().is_empty()));
}

/// Begins an upload larger than the connection's initial window, and reads it up to the window.
async fn stalled_upload(held: &Arc<SharedConnection>, server: &mut DuplexStream) -> AbortOnDropHandle<()> {
    let body = http_body_util::Full::new(vec![7; 80_000].into());
    let mut pending = request(RequestBody::take(body).await.unwrap());
    let held = Arc::clone(held);
    let upload = tokio::spawn(async move { held.call(&mut pending).await.map_or((), |_| ()) });
    let mut received = BytesMut::new();
    while received.len() < 65_535 {
        server.read_buf(&mut received).await.unwrap();
    }
    AbortOnDropHandle::new(upload)
}

#[tokio::test(start_paused = true)]
async fn connection_window_opened_by_single_bytes_counts_as_stalled() {
    let pool = Pool::default();
    let (held, mut server) = connected(&pool, &allows(100)).await;
    let _upload = stalled_upload(&held, &mut server).await;
    // WINDOW_UPDATE of the stream by 64 KB.
    server.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 1, 0, 0]).await.unwrap();
    for _ in 0..4 {
        // WINDOW_UPDATE of the connection by one byte.
        server.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]).await.unwrap();
        let (data, mut received) = ([0, 0, 1, 0, 0, 0, 0, 0, 1, 7], BytesMut::new());
        while !received.ends_with(&data) {
            in_time(server.read_buf(&mut received)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    held.refresh_limit();
    assert!(!pool.has_capacity(), "another connection is opened");
}

#[tokio::test(start_paused = true)]
async fn connection_window_opened_steadily_in_small_steps_counts_as_open() {
    let pool = Pool::default();
    let (held, mut server) = connected(&pool, &allows(100)).await;
    let _upload = stalled_upload(&held, &mut server).await;
    // WINDOW_UPDATE of the stream by 64 KB.
    server.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 1, 0, 0]).await.unwrap();
    for _ in 0..6 {
        // WINDOW_UPDATE of the connection by 2 KB.
        server.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0]).await.unwrap();
        let mut received = BytesMut::new();
        while received.len() < 2_048 {
            in_time(server.read_buf(&mut received)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        held.refresh_limit();
        assert!(pool.has_capacity(), "it reads on");
    }
}

#[tokio::test(start_paused = true)]
async fn connection_with_stalled_window_accepts_only_requests_without_body() {
    let pool = Pool::default();
    let (held, mut server) = connected(&pool, &allows(100)).await;
    let _upload = stalled_upload(&held, &mut server).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let body = http_body_util::Full::new(vec![7; 8].into());
    let mut with_body = request(RequestBody::take(body).await.unwrap());
    assert!(matches!(held.begin_held_back(&mut with_body), Ok(Begun::AtCapacity)) && with_body.is_some());
    assert!(matches!(held.begin_held_back(&mut request(RequestBody::empty())), Ok(Begun::Call(..))));
}

#[tokio::test(start_paused = true)]
async fn calls_avoid_connection_whose_window_stays_stalled() {
    let pool = Pool::default();
    let (held, mut server) = connected(&pool, &allows(100)).await;
    let _upload = stalled_upload(&held, &mut server).await;
    assert!(pool.has_capacity(), "it may open soon");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut pending = request(RequestBody::empty());
    assert!(matches!(held.begin(&mut pending), Ok(Begun::AtCapacity)));
    assert!(!pool.has_capacity(), "another connection is opened");
    let (other, _other_server) = connected(&pool, &allows(100)).await;
    for _ in 0..2 {
        let least = pool.least_loaded(true).unwrap();
        assert!(Arc::ptr_eq(&least, &other));
    }
    // WINDOW_UPDATE of the connection by 64 KB.
    server.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0]).await.unwrap();
    in_time(async {
        while held.limit.load(Relaxed) == 0 {
            held.refresh_limit();
            tokio::task::yield_now().await;
        }
    })
    .await;
}
