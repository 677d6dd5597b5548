//! Calls in progress as parents of other calls, with their classes and counts.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fairmesh_model::{CallNode, Match, PathMatch, Policy, Region, Route, ServiceName};
use fairmesh_signals::{NodeId, ServedCall, ServedMeter};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::time::sleep;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::{
    ParentCall, ServerLayer,
    layer::{LayerState, processed_call::ServedClasses},
};

/// Returns the layer of a server whose calls below `/bulk` have the class `bulk`.
fn layer(service: &str) -> ServerLayer {
    let served = ServedClasses::of_server(ServiceName::new(service).unwrap());
    let bulk = Route {
        matches: Match { path: Some(PathMatch::Prefix("/bulk".into())), ..Match::default() },
        class: Some("bulk".parse().unwrap()),
        ..Route::new("bulk".parse().unwrap())
    };
    served.apply(&Policy { routes: vec![bulk], ..Policy::default() });
    ServerLayer { shared: Arc::new(LayerState { served: Arc::new(served), ..LayerState::default() }) }
}

/// Returns the parent of a call made here.
fn parent() -> Option<CallNode> {
    ServedCall::current_node().and_then(NodeId::node)
}

fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).unwrap()
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[tokio::test]
async fn calls_from_handlers_bodies_and_scoped_tasks_have_served_call_as_parent() {
    let layer = layer("parents/web");
    let node = |class: Option<&str>| CallNode {
        service: ServiceName::new("parents/web").unwrap(),
        class: class.map(|class| class.parse().unwrap()),
    };
    let seen = service_fn(|_: Request<()>| async {
        let before = parent();
        tokio::task::yield_now().await;
        let unscoped = tokio::spawn(async { parent() }).await.unwrap();
        let scoped = tokio::spawn(ParentCall::current().scope(async { parent() })).await.unwrap();
        assert_eq!((before.as_ref(), unscoped), (scoped.as_ref(), None));
        let body = futures_util::stream::once(async move {
            assert_eq!(parent(), before);
            Ok::<_, Infallible>(Frame::data(Bytes::from(format!("{:?}", before.unwrap().class))))
        });
        Ok::<_, Infallible>(Response::new(StreamBody::new(Box::pin(body))))
    });
    for (path, class) in [("/page", None), ("/bulk/1", Some("bulk"))] {
        let response = layer.layer(seen).oneshot(get(path)).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, format!("{:?}", node(class).class));
        assert_eq!(parent(), None, "outside of the call");
    }
}

#[tokio::test(start_paused = true)]
async fn exclusive_time_by_class_excludes_time_of_child_calls() {
    let layer = layer("parents/cart");
    let slow = service_fn(|request: Request<()>| async move {
        sleep(Duration::from_millis(10)).await;
        let children = [ServedCall::begin_child(now), ServedCall::begin_child(now)];
        sleep(Duration::from_millis(50)).await;
        children.into_iter().flatten().for_each(|child| child.end(now()));
        if request.uri().path() == "/bulk" {
            sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    });
    let (mut meter, region) = (ServedMeter::default(), Region::new("eu").unwrap());
    let served = &layer.shared.served;
    meter.read(&served.counters().unwrap(), &region, 0);
    for path in ["/page", "/bulk", "/bulk"] {
        layer.layer(slow).oneshot(get(path)).await.unwrap();
    }
    let rates = meter.read(&served.counters().unwrap(), &region, 1_000);
    let rows = rates.iter().map(|(path, rates)| (path.node.class.is_some(), rates.calls, rates.exclusive_us));
    assert_eq!(rows.collect::<Vec<_>>(), [(false, 1_000, 10_000), (true, 2_000, 60_000)]);
    // If the classes are unchanged, counters continue.
    let before = served.counters().unwrap();
    let mut policy = Policy::default();
    policy.routes.push(Route { class: Some("bulk".parse().unwrap()), ..Route::new("all".parse().unwrap()) });
    served.apply(&policy);
    assert!(Arc::ptr_eq(&before, &served.counters().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn late_and_failed_calls_are_counted_as_processed() {
    let layer = layer("parents/stock");
    let failing = service_fn(|request: Request<()>| async move {
        if request.uri().path() == "/late" {
            sleep(Duration::from_secs(60)).await;
        }
        Err::<Response<Full<Bytes>>, _>("no response")
    });
    let (mut meter, region) = (ServedMeter::default(), Region::new("eu").unwrap());
    let served = &layer.shared.served;
    meter.read(&served.counters().unwrap(), &region, 0);
    layer.layer(failing).oneshot(get("/failed")).await.unwrap_err();
    let mut late = get("/late");
    late.headers_mut().insert(fairmesh_headers::DEADLINE, "100".parse().unwrap());
    let response = layer.layer(failing).oneshot(late).await.unwrap();
    assert_eq!(response.status(), 504);
    let rates = meter.read(&served.counters().unwrap(), &region, 1_000);
    assert_eq!(rates.values().map(|rates| rates.calls).sum::<u64>(), 2_000);
}
