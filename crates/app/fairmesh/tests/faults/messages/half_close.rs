//! A request that ends with an empty DATA frame reaches an HTTP/2 server in this form on every path. gRPC servers
//! accept no other frame as the end of a message stream (PROTOCOL-HTTP2, Requests).

use bytes::Bytes;
use fairmesh_client::BoxError;
use futures_util::stream;
use http::Request;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::Frame;
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use super::{Endpoint, HALF_CLOSED, OK, fields, response_to};
use crate::harness::{
    Process, Program, Proxy, World, beside_others, free_port,
    h2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, frame},
};

const GRPC: Option<&str> = Some("application/grpc");

/// HEADERS of a request, and the empty DATA frame that ends it.
fn open(stream: u32, method: &str, content_type: Option<&str>) -> [Vec<u8>; 2] {
    let headers = frame(HEADERS, END_HEADERS, stream, &fields(method, content_type));
    [headers, frame(DATA, END_STREAM, stream, &[])]
}

/// Sends requests with these methods to a listener in front of the endpoint: once with both frames in one write, and
/// once with the second frame after the endpoint has received the first.
async fn arrives_as_sent(listener: &str, endpoint: &mut Endpoint, requests: &[(&str, Option<&str>)]) {
    let mut program = h2::connect(listener, &[]).await;
    let mut streams = (0..).map(|n| 2 * n + 1);
    for (method, content_type) in requests {
        let mut stream = streams.next().unwrap();
        program.write_all(&open(stream, method, *content_type).concat()).await.unwrap();
        let (parts, of) = endpoint.request().await;
        assert_eq!(parts, HALF_CLOSED, "{method} {content_type:?} at once");
        endpoint.responds(of, "200").await;
        assert_eq!(response_to(&mut program, stream).await, (1, 0));

        stream = streams.next().unwrap();
        let [headers, end] = open(stream, method, *content_type);
        program.write_all(&headers).await.unwrap();
        let (first, of) = endpoint.part().await;
        program.write_all(&end).await.unwrap();
        let (second, _) = endpoint.part().await;
        assert_eq!([first, second], HALF_CLOSED, "{method} {content_type:?} apart");
        endpoint.responds(of, "200").await;
        assert_eq!(response_to(&mut program, stream).await, (1, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_data_frame_at_request_end_is_forwarded() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut endpoint = Endpoint::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let requests = [("POST", None), ("POST", GRPC), ("GET", None), ("PUT", None), ("DELETE", None)];
    arrives_as_sent(&proxy.for_one, &mut endpoint, &requests).await;
    arrives_as_sent(&proxy.by_host, &mut endpoint, &requests[..2]).await;
    // A retry has the same frames as the first attempt.
    let mut program = h2::connect(&proxy.for_one, &[]).await;
    program.write_all(&open(1, "PUT", None).concat()).await.unwrap();
    for status in ["503", "503", "200"] {
        let (parts, of) = endpoint.request().await;
        assert_eq!(parts, HALF_CLOSED, "before {status}");
        endpoint.responds(of, status).await;
    }
    assert_eq!(response_to(&mut program, 1).await, (1, 0));
    // A request that ends with its HEADERS is forwarded in that form.
    let mut program = h2::connect(&proxy.for_one, &[]).await;
    let headers = |stream, method| frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(method, None));
    for (stream, method) in [(1, "GET"), (3, "POST")] {
        program.write_all(&headers(stream, method)).await.unwrap();
        let (parts, of) = endpoint.request().await;
        assert_eq!(parts, [(HEADERS, true, 0)], "{method}");
        endpoint.responds(of, "200").await;
        response_to(&mut program, stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hedged_and_mirrored_requests_end_with_same_frame_as_original() {
    let _machine = beside_others().await;
    let declared = "kind: Service\nname: shop/one\nprotocol: http2\n---\nkind: Service\nname: shop/two\nprotocol: http2\n---\n\
        kind: Policy\nservice: shop/one\nroutes:\n  - name: all\n    hedge: {after: 50ms}\n    \
        mirror: {service: shop/two, share: 100%}\n";
    let world = World::start(declared).await;
    let mut one = Endpoint::start(&world, "shop/one", "one").await;
    let mut other = Endpoint::start(&world, "shop/one", "other").await;
    let mut mirrored = Endpoint::start(&world, "shop/two", "mirrored").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let mut program = h2::connect(&proxy.for_one, &[]).await;
    program.write_all(&open(1, "PUT", None).concat()).await.unwrap();
    let ((parts, of), hedged, copied) = tokio::join!(one.request(), other.request(), mirrored.request());
    assert_eq!([parts, hedged.0, copied.0], [HALF_CLOSED; 3]);
    one.responds(of, "200").await;
    assert_eq!(response_to(&mut program, 1).await, (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn library_ends_empty_request_body_with_data_frame() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut endpoint = Endpoint::start(&world, "shop/one", "one").await;
    let service = world.mesh().await.service("shop/one").unwrap();
    let no_frames = || stream::empty::<Result<Frame<Bytes>, BoxError>>();
    let none = || Empty::<Bytes>::new().map_err(|never| match never {});
    let ended_by_headers = [(HEADERS, true, 0)];
    for (body, kind, expected) in [
        (StreamBody::new(no_frames()).boxed_unsync(), None, &HALF_CLOSED[..]),
        (StreamBody::new(no_frames()).boxed_unsync(), GRPC, &HALF_CLOSED),
        (none().boxed_unsync(), None, &ended_by_headers),
        // Regardless of the end announced by the caller's body.
        (none().boxed_unsync(), GRPC, &HALF_CLOSED),
    ] {
        let mut request = Request::post("/").body(body).unwrap();
        if let Some(kind) = kind {
            request.headers_mut().insert("content-type", kind.parse().unwrap());
        }
        let calling = tokio::spawn({
            let service = service.clone();
            async move { service.send(request).await.unwrap().status() }
        });
        let (parts, of) = endpoint.request().await;
        assert_eq!(parts, expected, "{kind:?}");
        endpoint.responds(of, "204").await;
        assert_eq!(calling.await.unwrap(), 204);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbound_proxy_forwards_end_of_request_unchanged() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    // Not registered here, since the proxy registers it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let [address, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let args = format!(
        "proxy --agent {} --listen {listen} --admin none --inbound shop/one@{address}={} --inbound-instance one \
         --inbound-protocol grpc",
        world.agent_address(),
        listener.local_addr().unwrap()
    );
    let _proxy = Process::start(Program::fairmesh(world.path("inbound.log"), &args));
    world.serves("shop/one", "one").await;
    let mut endpoint = Endpoint::behind(listener);
    arrives_as_sent(&address, &mut endpoint, &[("POST", GRPC), ("POST", None), ("PUT", None)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_end_is_equal_with_or_without_empty_data_frame() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut endpoint = Endpoint::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let mut program = h2::connect(&proxy.for_one, &[]).await;
    for (stream, is_apart) in [(1, false), (3, true)] {
        let headers = frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields("GET", None));
        program.write_all(&headers).await.unwrap();
        let (_, of) = endpoint.request().await;
        let [headers, end] = [frame(HEADERS, END_HEADERS, of, OK), frame(DATA, END_STREAM, of, &[])];
        match is_apart {
            false => endpoint.send(&[headers, end].concat()).await,
            true => {
                endpoint.send(&headers).await;
                let came = h2::read_message(&mut program).await;
                assert_eq!((came.kind, came.flags & END_STREAM), (HEADERS, 0));
                endpoint.send(&end).await;
            }
        }
        let heads = usize::from(!is_apart);
        assert_eq!(response_to(&mut program, stream).await, (heads, 0));
    }
}
