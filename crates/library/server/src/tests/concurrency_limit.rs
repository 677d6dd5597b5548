//! Servers with a concurrency limit.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::{
    ServerLayer,
    layer::{LayerState, concurrency_limit::ConcurrencyLimit},
};
use fairmesh_headers::{FAULT, GRPC_STATUS, LOAD};

fn layer(concurrency_limit: ConcurrencyLimit) -> ServerLayer {
    ServerLayer { shared: Arc::new(LayerState { concurrency_limit, ..LayerState::default() }) }
}

/// Serves a call as soon as a worker is free. The call occupies the worker for 10 ms.
async fn call(layer: &ServerLayer, workers: &Arc<Semaphore>, request: Request<()>) -> Response<Bytes> {
    let workers = Arc::clone(workers);
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let workers = Arc::clone(&workers);
        async move {
            let _worker = workers.acquire().await.unwrap();
            sleep(Duration::from_millis(10)).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
        }
    }));
    let (head, body) = service.oneshot(request).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_concurrency_limit_are_rejected() {
    let (layer, workers) = (layer(ConcurrencyLimit::new(Some(2), None)), Arc::new(Semaphore::new(2)));
    let (one, two) = (call(&layer, &workers, Request::new(())), call(&layer, &workers, Request::new(())));
    let third = async {
        let refused = call(&layer, &workers, Request::new(())).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[FAULT]),
            (503, &"overloaded".parse().unwrap())
        );
        assert!(refused.headers()[LOAD].to_str().unwrap().ends_with("concurrent_requests=2"));
        let grpc = Request::post("/a/b").header(header::CONTENT_TYPE, "application/grpc").body(()).unwrap();
        let refused = call(&layer, &workers, grpc).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[GRPC_STATUS]),
            (200, &"14".parse().unwrap())
        );
        assert_eq!(refused.headers()[FAULT], "overloaded");
    };
    let (one, two, ()) = tokio::join!(one, two, third);
    assert_eq!((one.status().as_u16(), two.status().as_u16()), (200, 200));
    let admission = layer.admission();
    assert_eq!((admission.limit, admission.refused, admission.outstanding.calls), (Some(2), 2, 0));
    assert_eq!(layer.shared.load.begun(), 2, "a rejected call does not count");
}

#[tokio::test(start_paused = true)]
async fn adaptive_server_serves_at_its_capacity_with_low_latency() {
    let (layer, workers) = (layer(ConcurrencyLimit::new(None, Some(7))), Arc::new(Semaphore::new(8)));
    // Eight workers of 10 ms serve 800 calls per second.
    let run = async |gap: Duration, seconds: u64| {
        let (began, before) = (Instant::now(), layer.admission().refused);
        let mut calls = tokio::task::JoinSet::new();
        while began.elapsed() < Duration::from_secs(seconds) {
            let (layer, workers) = (layer.clone(), Arc::clone(&workers));
            calls.spawn(async move {
                let came = Instant::now();
                (call(&layer, &workers, Request::new(())).await.status().as_u16(), came.elapsed())
            });
            sleep(gap).await;
        }
        let ended = calls.join_all().await;
        let good: Vec<_> = ended.iter().filter(|(status, _)| *status == 200).map(|(_, took)| *took).collect();
        let refused = layer.admission().refused - before;
        assert_eq!(ended.len() as u64, good.len() as u64 + refused);
        (good.len() as u64 / seconds, refused, good.into_iter().max().unwrap_or_default())
    };
    let (_, refused, _) = run(Duration::from_millis(3), 5).await;
    assert_eq!((refused, layer.admission().limit), (0, Some(1024)), "without overload");
    run(Duration::from_micros(400), 5).await;
    let (rate, refused, longest) = run(Duration::from_micros(400), 10).await;
    assert!(
        rate >= 720 && refused > 0 && longest < Duration::from_millis(80),
        "{rate} {refused} {longest:?}"
    );
    assert!(layer.admission().limit.unwrap() < 64, "{:?}", layer.admission());
    let (_, refused, _) = run(Duration::from_millis(3), 10).await;
    assert_eq!(refused, 0, "after the overload: {:?}", layer.admission());
}
