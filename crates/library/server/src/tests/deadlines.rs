//! Calls whose deadline passes while the service processes them.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::{Outstanding, ServerLayer, layer::LayerState};
use fairmesh_headers::{DEADLINE, FAULT, GRPC_STATUS, GRPC_TIMEOUT, LOAD, LOAD_BIN};

/// Counts calls that began, and calls that were dropped halfway.
#[derive(Default)]
struct CallCounts {
    begun: AtomicU32,
    dropped: AtomicU32,
}

struct Halfway<'a>(&'a CallCounts);

impl Drop for Halfway<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Relaxed);
    }
}

/// Responds to a call after ten seconds.
async fn call(layer: &ServerLayer, work: &Arc<CallCounts>, request: Request<()>) -> Response<Bytes> {
    let work = Arc::clone(work);
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let work = Arc::clone(&work);
        async move {
            work.begun.fetch_add(1, Relaxed);
            let halfway = Halfway(&work);
            sleep(Duration::from_secs(10)).await;
            std::mem::forget(halfway);
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
        }
    }));
    let (head, body) = service.oneshot(request).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

fn within(millis: u32) -> Request<()> {
    Request::get("/").header(DEADLINE, millis).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn handler_past_call_deadline_is_dropped_and_call_gets_504() {
    let (layer, work) = (ServerLayer::default(), Arc::<CallCounts>::default());
    let began = Instant::now();
    let response = call(&layer, &work, within(500)).await;
    assert_eq!((response.status().as_u16(), &response.headers()[FAULT]), (504, &"deadline".parse().unwrap()));
    assert!(response.headers().contains_key(LOAD) && response.body().ends_with(b"in part\n"));
    assert_eq!(began.elapsed().as_millis() / 10, 50);
    assert_eq!((work.begun.load(Relaxed), work.dropped.load(Relaxed)), (1, 1));
    assert_eq!((layer.admission().late, layer.outstanding()), (1, Outstanding::default()));

    let response = call(&layer, &work, within(10_001)).await;
    assert_eq!(
        (response.status().as_u16(), &response.body()[..], layer.admission().late),
        (200, &b"done"[..], 1)
    );
    let response = call(&layer, &work, Request::new(())).await;
    assert_eq!((response.status().as_u16(), layer.admission().late), (200, 1));
}

#[tokio::test(start_paused = true)]
async fn call_without_time_left_is_not_started() {
    let (layer, work) = (ServerLayer::default(), Arc::<CallCounts>::default());
    let response = call(&layer, &work, within(0)).await;
    assert_eq!((response.status().as_u16(), work.begun.load(Relaxed), layer.admission().late), (504, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn finish_late_calls_option_lets_late_calls_complete() {
    let shared = LayerState { finishes_late: true, ..LayerState::default() };
    let (layer, work) = (ServerLayer { shared: Arc::new(shared) }, Arc::<CallCounts>::default());
    for millis in [0, 500] {
        assert_eq!(call(&layer, &work, within(millis)).await.status().as_u16(), 200);
    }
    assert_eq!((work.dropped.load(Relaxed), layer.admission().late), (0, 0));
}

fn grpc(timeout: &str) -> Request<()> {
    let call = Request::post("/shop.v1.Cart/Get").header(header::CONTENT_TYPE, "application/grpc");
    call.header(GRPC_TIMEOUT, timeout).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn late_grpc_call_gets_deadline_exceeded() {
    let (layer, work) = (ServerLayer::default(), Arc::<CallCounts>::default());
    let response = call(&layer, &work, grpc("500m")).await;
    let headers = response.headers();
    assert_eq!((response.status().as_u16(), &headers[GRPC_STATUS]), (200, &"4".parse().unwrap()));
    assert!(headers.contains_key(LOAD_BIN) && headers.contains_key("grpc-message"));
    assert_eq!((work.dropped.load(Relaxed), layer.admission().late), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_grpc_stream_but_not_http_body() {
    let layer = ServerLayer::default();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        let messages = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("one")))]);
        Ok::<_, Infallible>(Response::new(StreamBody::new(messages.chain(stream::pending()))))
    }));
    let began = Instant::now();
    let response = service.clone().oneshot(grpc("5S")).await.unwrap();
    let response = response.into_body().collect().await.unwrap();
    assert_eq!(response.trailers().unwrap()[GRPC_STATUS], "4");
    assert_eq!((response.to_bytes(), began.elapsed().as_secs()), (Bytes::from("one"), 5));
    assert_eq!((layer.admission().late, layer.outstanding()), (1, Outstanding::default()));

    let mut body = service.oneshot(within(500)).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    let more = tokio::time::timeout(Duration::from_secs(60), body.frame()).await;
    assert!(more.is_err(), "{more:?}");
    assert_eq!((layer.admission().late, layer.outstanding().streams), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_busy_grpc_stream() {
    let layer = ServerLayer::default();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        let messages = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from("one"))));
        Ok::<_, Infallible>(Response::new(StreamBody::new(messages)))
    }));
    let mut body = service.oneshot(grpc("5S")).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    tokio::time::advance(Duration::from_secs(6)).await;
    let last = body.frame().await.unwrap().unwrap();
    assert_eq!(last.trailers_ref().unwrap()[GRPC_STATUS], "4");
    assert_eq!((layer.admission().late, layer.outstanding()), (1, Outstanding::default()));
}

#[tokio::test(start_paused = true)]
async fn deadline_fault_header_relayed_from_another_server_is_removed() {
    let service = ServerLayer::default().layer(service_fn(async |_: Request<()>| {
        let response = Response::builder().status(504).header(FAULT, "deadline");
        Ok::<_, Infallible>(response.body(Full::new(Bytes::new())).unwrap())
    }));
    assert_eq!(service.oneshot(Request::new(())).await.unwrap().headers().get(FAULT), None);
}
